"""Values of Python as Arrow's, without pandas.

To convert some values, pyarrow imports pandas if it is installed, only to ask whether they are values of pandas. That
takes 0.2 s, and nothing here needs it to answer.
"""

import pyarrow as pa
from arro3.core import Array, DataType


def arrow_scalar(value: int | str) -> pa.Scalar:
    """An INT64 or STRING scalar, to compare columns with."""
    kind = DataType.int64() if isinstance(value, int) else DataType.string()
    return pa.array(Array([value], kind))[0]
