"""Opens a Delta table.

A table that is missing, one that cannot be read and one that a power loss has damaged are different errors.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pydantic import BaseModel

from pipeline.errors import first_line
from pipeline.tables.address import creating_elsewhere, table_missing
from pipeline.tables.log_files import LogFiles
from pipeline.tables.object_store import delta_rs_options
from pipeline.tables.port import TableUnreadable
from pipeline.tables.table_features import given, unfit_features, without_features

_NO_SUCH_VERSION: Final = ("LogSegment end version", "No table metadata or protocol found in delta log")
# delta-rs prints each cause of an error of a store on a line of its own, with an arrow in colour.
_CAUSE: Final = re.compile(r"\x1b\[31m↳\x1b\[0m (.*)")
OF_FEATURES: Final = re.compile(r"[Ff]eature|[Cc]olumn mapping|catalog-managed")
"""What delta-rs says about a table with features that it does not have."""


def open_table(uri: str, version: int | None = None) -> DeltaTable:
    """Open a table at a version; None = the newest.

    Raises:
        TableMissing: there is no table, or it does not have this version any more or not yet.
        TableUnreadable: the store does not answer or refuses, or the table's log is damaged.
    """
    try:
        table = DeltaTable(uri, version=version, storage_options=delta_rs_options(uri))
    except TableNotFoundError as exc:
        # delta-rs has one error for a folder that does not exist and for one that may not be read.
        if "PermissionDenied" in str(exc):
            raise unreadable(uri, exc, version) from exc
        raise table_missing(uri, version) from exc
    except (DeltaError, OSError) as exc:
        if version is not None and any(text in str(exc) for text in _NO_SUCH_VERSION):
            raise table_missing(uri, version) from exc
        raise unreadable(uri, exc, version) from exc
    _refuse_cut(uri, table.version(), is_newest=version is None)
    return table


def _refuse_cut(uri: str, version: int, *, is_newest: bool) -> None:
    files = LogFiles.of(uri)
    cut = None if files is None else files.cut(version)
    if files is None or cut is None:
        return
    if not is_newest:
        raise table_missing(uri, version)
    damage = files.cut_at(cut)
    raise TableUnreadable(uri, damage.cause, damage.fix, exit_code=_DAMAGED)


_DAMAGED: Final = 5  # no other attempt helps


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


def unreadable(uri: str, failure: Exception, version: int | None = None) -> TableUnreadable:
    """The error for what delta-rs raised while it read a table, at a version; None = the newest."""
    cause, text = causes_of(failure), str(failure)
    is_gone = "Object at location" in text and "not found" in text
    if version is not None:
        return TableUnreadable(f"{uri}, version {version}", cause, is_file_missing=is_gone)
    files = LogFiles.of(uri)
    if (damage := None if files is None else files.damage()) is not None:
        return TableUnreadable(uri, damage.cause, damage.fix, is_file_missing=is_gone, exit_code=_DAMAGED)
    if OF_FEATURES.search(text) and (unfit := unfit_features(uri)):
        return TableUnreadable(uri, given(unfit), without_features(uri, unfit), exit_code=_DAMAGED)
    fix = None
    if is_gone:
        fix = "repeat it: a file was replaced, and cleaned away while it was read"
    elif "No field named" in text:
        fix = f"it lacks a column: start with new tables under another root: {creating_elsewhere(uri)}"
    return TableUnreadable(uri, cause, fix, is_file_missing=is_gone)


def causes_of(failure: Exception) -> str:
    """The first line of what delta-rs raised, with the causes below it."""
    return ": ".join([first_line(failure), *_CAUSE.findall(str(failure))])
