"""Values of Python as Arrow's and back, without pandas and without pyarrow.compute, which takes 30 ms to load.

To convert some values, pyarrow imports pandas if it is installed, only to ask whether they are values of pandas. That
takes 0.2 s, and no command needs it to answer.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from arro3.core import Array, DataType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def arrow_scalar(value: int | str) -> pa.Scalar:
    """An INT64 or STRING scalar, to compare columns with."""
    kind = DataType.int64() if isinstance(value, int) else DataType.string()
    return pa.array(Array([value], kind))[0]


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows by column, as `to_pylist` has them. Instants (TIMESTAMP columns in microseconds) are in UTC."""
    columns = {name: _python_values(table[name]) for name in table.column_names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        values: list[Any] = column.to_pylist()
        return values
    instants = (instant for chunk in column.chunks for instant in chunk.view(pa.int64()).to_pylist())
    return [None if instant is None else _EPOCH + timedelta(microseconds=instant) for instant in instants]
