"""Opens a Delta table.

A table that is missing, one that cannot be read and one that a power loss has damaged are different errors.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pydantic import BaseModel

from pipeline.errors import Conflict, first_line
from pipeline.tables.log_files import LogFiles
from pipeline.tables.object_store import delta_rs_options
from pipeline.tables.port import UNDO_OTHERS, TableUnreadable, creating_elsewhere, table_missing

_NO_SUCH_VERSION: Final = ("LogSegment end version", "No table metadata or protocol found in delta log")
# delta-rs prints each cause of an error of a store on a line of its own, with an arrow in colour.
_CAUSE: Final = re.compile(r"\x1b\[31m↳\x1b\[0m (.*)")
OF_FEATURES: Final = re.compile(r"[Ff]eature|[Cc]olumn mapping|catalog-managed")
"""What delta-rs says about a table with features that it does not have."""
FIT: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        *("timestampNtz", "variantType", "variantType-preview", "deletionVectors", "v2Checkpoint"),
    }
)
"""The table features that keep kquota from nothing."""
_WRITTEN: Final = FIT | {"columnMapping"}


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


def unfit_features(table: DeltaTable) -> set[str]:
    """The features that others have given a table and that keep kquota from a part of its work."""
    return set(table.protocol().writer_features or ()) - FIT


def unwritable(uri: str, table: DeltaTable) -> Conflict:
    """The error of a table to which delta-rs does not write, or that it cannot read in slices, or not merge.

    A commit to it is refused with the class of error that a commit gets which another one came before.
    """
    unfit = unfit_features(table)
    unwritten = unfit - _WRITTEN
    fails = "cannot be written" if unwritten else "cannot be rolled up, replayed or merged"
    features = ", ".join(sorted(unwritten or unfit))
    message = f"{uri} {fails}: others have given it table features that kquota's library does not have ({features})"
    return Conflict(message, UNDO_OTHERS)


def refuse_unwritable(uri: str, table: DeltaTable) -> None:
    """Raise (`Conflict`) if delta-rs does not write to a table."""
    if unfit_features(table) - _WRITTEN:
        raise unwritable(uri, table)


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
    if not is_gone and OF_FEATURES.search(text.replace(uri, "")):
        return TableUnreadable(uri, cause, UNDO_OTHERS, exit_code=_DAMAGED)
    fix = None
    if is_gone:
        fix = "repeat it: a file was replaced, and cleaned away while it was read"
    elif "No field named" in text:
        fix = f"it lacks a column: start with new tables under another root: {creating_elsewhere(uri)}"
    return TableUnreadable(uri, cause, fix, is_file_missing=is_gone)


def causes_of(failure: Exception) -> str:
    """The first line of what delta-rs raised, with the causes below it."""
    return ": ".join([first_line(failure), *_CAUSE.findall(str(failure))])
