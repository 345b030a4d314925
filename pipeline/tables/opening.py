"""Opens a Delta table. A table that is missing and one that can not be read are different errors."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

from arro3.core import Table
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pipeline.errors import first_line
from pipeline.tables.errors import TableMissing, TableUnreadable
from pipeline.tables.object_store import delta_rs_options
from pipeline.tables.port import Condition, Instant

Options = Mapping[str, str] | None
"""Options of delta-rs in place of those that an address brings along."""

# What delta-rs says of a version that is above the newest one, and of one whose log entries were cleaned away.
_NO_SUCH_VERSION: Final = ("LogSegment end version", "No table metadata or protocol found in delta log")
# delta-rs prints each cause of an error of a store on a line of its own, with an arrow in colour.
_CAUSE: Final = re.compile(r"\x1b\[31m↳\x1b\[0m (.*)")


def open_table(uri: str, version: int | None = None, storage_options: Options = None) -> DeltaTable:
    """Open a table.

    Args:
        uri: address of the table.
        version: the version to open; None = the newest.
        storage_options: see `Options`.

    Raises:
        TableMissing: there is no table, or it does not have this version any more or not yet.
        TableUnreadable: the store does not answer or refuses, or the table's log is damaged.
    """
    place = uri if version is None else f"{uri}, version {version}"
    options = dict(storage_options) if storage_options else delta_rs_options(uri)
    try:
        return DeltaTable(str(uri), version=version, storage_options=options)
    except TableNotFoundError as exc:
        # delta-rs has one error for a folder that does not exist and for one that may not be read.
        if "PermissionDenied" in str(exc):
            raise unreadable(place, exc) from exc
        raise TableMissing(uri, version) from exc
    except (DeltaError, OSError) as exc:
        if version is not None and any(text in str(exc) for text in _NO_SUCH_VERSION):
            raise TableMissing(uri, version) from exc
        raise unreadable(place, exc) from exc


def local_path(table: DeltaTable) -> str | None:
    """The folder of a table on a local disk; None for a table in another store."""
    address = urlsplit(table.table_uri)
    return unquote(address.path).rstrip("/") if address.scheme == "file" else None


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Turn what delta-rs raises in this block into `TableUnreadable`."""
    try:
        yield
    except (DeltaError, OSError) as exc:
        raise unreadable(table, exc) from exc


def unreadable(table: str, failure: Exception) -> TableUnreadable:
    """The error for what delta-rs raised while it read a table."""
    causes = [first_line(failure), *_CAUSE.findall(str(failure))]
    is_gone = "Object at location" in str(failure) and "not found" in str(failure)
    return TableUnreadable(table, ": ".join(causes), is_file_missing=is_gone)


# The newest and the oldest value of a column, read from the statistics in the Delta log. No data file is opened.


def newest_value(uri: str, column: str) -> int | None:
    """The largest value of a column; None if the table has no rows or is missing.

    Args:
        uri: address of the table.
        column: an INT64 column with statistics.
    """
    table = _opened(uri)
    return None if table is None else newest_in(table, column)


def newest_in(table: DeltaTable, column: str) -> int | None:
    """As `newest_value`, for a table that is open."""
    return _extreme(table, "max", column, max)


def oldest_in(table: DeltaTable, column: str) -> int | None:
    """The smallest value of a column; otherwise as `newest_in`."""
    return _extreme(table, "min", column, min)


def newest_instant_in(table: DeltaTable, newest_where: Callable[[list[Condition]], int | None]) -> Instant | None:
    """The newest instant that a row was evaluated at; None without rows.

    Args:
        table: one that is open, with statistics of `time_epoch` and `evaluated_at_ms`.
        newest_where: the largest `evaluated_at_ms` of the rows that meet conditions. It is asked only if there is a
            file with rows of several epochs, and opens no other files then.
    """
    files = file_statistics(table)
    names = ("min.time_epoch", "max.time_epoch", "null_count.time_epoch", "max.evaluated_at_ms")
    if names[1] not in files.column_names:
        newest_ms = newest_in(table, "evaluated_at_ms")
        return None if newest_ms is None else Instant(0, newest_ms)
    rows = list(zip(*(files.column(name).to_pylist() for name in names), strict=True))
    epoch = max((last or 0 for _, last, _, _ in rows), default=0)
    of_epoch = [(first == epoch and not nulls, ms) for first, last, nulls, ms in rows if (last or 0) == epoch]
    pure = [ms for is_pure, ms in of_epoch if (is_pure or not epoch) and ms is not None]
    newest_ms = max(pure, default=-1)
    if len(pure) < len(of_epoch) and any(ms is not None and ms > newest_ms for _, ms in of_epoch):
        later = newest_where([("time_epoch", "=", epoch), ("evaluated_at_ms", ">", newest_ms)])
        newest_ms = newest_ms if later is None else later
    return None if newest_ms < 0 else Instant(epoch, newest_ms)


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
