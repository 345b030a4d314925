"""Opens a Delta table, and reads the newest and oldest values from its log.

A table that is missing and one that cannot be read are different errors.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

from arro3.core import Table
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pydantic import BaseModel

from pipeline.errors import TableMissing, first_line
from pipeline.tables.address import table_missing
from pipeline.tables.object_store import delta_rs_options
from pipeline.tables.port import TableUnreadable

_NO_SUCH_VERSION: Final = ("LogSegment end version", "No table metadata or protocol found in delta log")
# delta-rs prints each cause of an error of a store on a line of its own, with an arrow in colour.
_CAUSE: Final = re.compile(r"\x1b\[31m↳\x1b\[0m (.*)")


def open_table(uri: str, version: int | None = None) -> DeltaTable:
    """Open a table at a version; None = the newest.

    Raises:
        TableMissing: there is no table, or it does not have this version any more or not yet.
        TableUnreadable: the store does not answer or refuses, or the table's log is damaged.
    """
    place = uri if version is None else f"{uri}, version {version}"
    try:
        return DeltaTable(str(uri), version=version, storage_options=delta_rs_options(uri))
    except TableNotFoundError as exc:
        # delta-rs has one error for a folder that does not exist and for one that may not be read.
        if "PermissionDenied" in str(exc):
            raise unreadable(place, exc) from exc
        raise table_missing(uri, version) from exc
    except (DeltaError, OSError) as exc:
        if version is not None and any(text in str(exc) for text in _NO_SUCH_VERSION):
            raise table_missing(uri, version) from exc
        raise unreadable(place, exc) from exc


def local_path(table: DeltaTable) -> str | None:
    """The folder of a table on a local disk; None for a table in another store."""
    address = urlsplit(table.table_uri)
    return unquote(address.path).rstrip("/") if address.scheme == "file" else None


def columns_of_others(table: DeltaTable, model: type[BaseModel]) -> list[str]:
    """The columns that others have added to a table of this model. They are kept, and have no effect."""
    return [field.name for field in table.schema().fields if field.name not in model.model_fields]


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


# A handle that has followed many commits answers more slowly than one that was opened from a checkpoint.
_VERSIONS_PER_HANDLE: Final = 50


class FollowedTable:
    """A table whose handle is kept, so that a look takes 1 ms while nothing is new. Raises as `open_table`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._open()

    def look(self) -> DeltaTable:
        """The handle, at the newest version now."""
        try:
            self._handle.update_incremental()
        except (DeltaError, OSError):
            # The log entries after this version may be cleaned away: the newest version is opened without them.
            self._open()
        if self._handle.version() - self._opened_version >= _VERSIONS_PER_HANDLE:
            self._open()
        return self._handle

    def _open(self) -> None:
        self._handle = open_table(self.uri)
        self._opened_version = self._handle.version()


# The newest and the oldest value of an INT64 column with statistics, from the Delta log. No data file is opened.


def newest_value(uri: str, column: str) -> int | None:
    """The largest value of a column; None if the table has no rows or is missing."""
    try:
        return newest_in(open_table(uri), column)
    except TableMissing:
        return None


def newest_in(table: DeltaTable, column: str) -> int | None:
    """The largest value of a column; None without rows."""
    return _extreme(table, f"max.{column}", max)


def oldest_in(table: DeltaTable, column: str) -> int | None:
    """The smallest value of a column; None without rows."""
    return _extreme(table, f"min.{column}", min)


def file_statistics(table: DeltaTable) -> Table:
    """One row per data file: `num_records`, and `min.x` and `max.x` for each column x that has statistics."""
    return Table.from_arrow(table.get_add_actions(flatten=True))


def _extreme(table: DeltaTable, statistic: str, choose: Callable[[Iterable[int]], int]) -> int | None:
    files = file_statistics(table)
    if statistic not in files.column_names:
        return None
    values = [value for value in files.column(statistic).to_pylist() if value is not None]
    return choose(values) if values else None
