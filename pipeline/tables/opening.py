"""Opens a Delta table. A table that is missing and one that can not be read are different errors."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pipeline.errors import first_line
from pipeline.store.access import delta_rs_options
from pipeline.tables.errors import TableMissing, TableUnreadable

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
