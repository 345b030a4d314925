"""The newest and the oldest value of a column, read from the statistics in the Delta log. No data file is opened."""

from collections.abc import Callable, Iterable

from arro3.core import Table
from deltalake import DeltaTable

from pipeline.tables.errors import TableMissing
from pipeline.tables.opening import open_table


def newest_value(uri: str, column: str) -> int | None:
    """The largest value of a column; None if the table has no rows or is missing.

    Args:
        uri: address of the table.
        column: an INT64 column with statistics.
    """
    table = _opened(uri)
    return None if table is None else newest_in(table, column)


def oldest_value(uri: str, column: str) -> int | None:
    """The smallest value of a column; otherwise as `newest_value`."""
    table = _opened(uri)
    return None if table is None else oldest_in(table, column)


def newest_in(table: DeltaTable, column: str) -> int | None:
    """As `newest_value`, for a table that is open."""
    return _extreme(table, "max", column, max)


def oldest_in(table: DeltaTable, column: str) -> int | None:
    """As `oldest_value`, for a table that is open."""
    return _extreme(table, "min", column, min)


def file_statistics(table: DeltaTable) -> Table:
    """What the Delta log says about the data files, one row per file.

    Columns: `num_records`, and `min.x` and `max.x` for each column x that has statistics.
    """
    return Table.from_arrow(table.get_add_actions(flatten=True))


def _opened(uri: str) -> DeltaTable | None:
    try:
        return open_table(uri)
    except TableMissing:
        return None


def _extreme(table: DeltaTable, statistic: str, column: str, choose: Callable[[Iterable[int]], int]) -> int | None:
    files = file_statistics(table)
    name = f"{statistic}.{column}"
    if name not in files.column_names:
        return None
    values = [value for value in files.column(name).to_pylist() if value is not None]
    return choose(values) if values else None
