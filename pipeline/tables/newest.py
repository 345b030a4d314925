"""The newest value of a column, from the log's statistics: no file is opened for it."""

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError


def newest_value(uri: str, column: str) -> int | None:
    """The largest value; None for a table without rows, or without a table.

    Args:
        uri: address of the table.
        column: an INT64 column with statistics.
    """
    try:
        table = DeltaTable(uri)
    except TableNotFoundError:
        return None
    files = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    name = f"max.{column}"
    if name not in files.column_names:
        return None
    return max((value for value in files[name].to_pylist() if value is not None), default=None)
