"""The newest and the oldest value of a column, from the log's statistics: no file is opened for it."""

from collections.abc import Callable, Iterable

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError


def newest_value(uri: str, column: str) -> int | None:
    """The largest value; None for a table without rows, or without a table.

    Args:
        uri: address of the table.
        column: an INT64 column with statistics.
    """
    return _extreme(uri, "max", column, max)


def oldest_value(uri: str, column: str) -> int | None:
    """The smallest value; otherwise as `newest_value`."""
    return _extreme(uri, "min", column, min)


def _extreme(uri: str, statistic: str, column: str, choose: Callable[[Iterable[int]], int]) -> int | None:
    try:
        table = DeltaTable(uri)
    except TableNotFoundError:
        return None
    files = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    name = f"{statistic}.{column}"
    if name not in files.column_names:
        return None
    values = [value for value in files[name].to_pylist() if value is not None]
    return choose(values) if values else None
