"""The rules of a guarded append, without any I/O, and a writer that reports its commits.

Both adapters of `TableWriter` use the rules.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import pyarrow as pa

from pipeline.errors import Conflict, PipelineError
from pipeline.tables.port import TableWriter

Recorded = Callable[[str], int | None]
"""The version a table has recorded for an app id; None if it has none."""


def is_written(table: str, versions: Mapping[str, int], recorded: Recorded) -> bool:
    """Whether the rows of an append are in the table already.

    They are if the version recorded for the first app id, the guard, is the given one or a higher one.

    * `versions`: app id to the version the append would record, the guard first.

    Raises:
        ValueError: no app id is given.
        PipelineError: the guard has a lower version, but another app id of `versions` has reached its own.
    """
    if not versions:
        message = "'versions' must name at least one app id; got none"
        raise ValueError(message)
    guard, *others = versions
    if _has_reached(recorded(guard), versions[guard]):
        return True
    for app_id in others:
        found = recorded(app_id)
        if found is not None and found >= versions[app_id]:
            message = f"version {versions[app_id]} of '{app_id}' is not above {found}, which {table} has recorded"
            raise PipelineError(message, "restart the job; it continues after the versions in the table")
    return False


def checked_epoch(table: str, epoch: int | None, recorded_epoch: int | None) -> int:
    """The epoch of this driver, after a check that no higher one is recorded.

    Raises:
        PipelineError: this driver has not raised an epoch yet.
        Conflict: a higher one is recorded.
    """
    if epoch is None:
        message = f"an append to {table} came before the driver had raised its epoch"
        raise PipelineError(message, "raise the epoch when the driver starts")
    if is_fenced(epoch, recorded_epoch):
        raise _fenced(table, epoch, recorded_epoch or epoch)
    return epoch


def _fenced(table: str, epoch: int, recorded_epoch: int) -> Conflict:
    return Conflict(
        f"another driver writes {table}: epoch {recorded_epoch} is recorded, this driver has {epoch}",
        "stop one of the two drivers; the one that started last keeps running",
    )


def is_fenced(epoch: int, recorded_epoch: int | None) -> bool:
    """Whether a higher epoch than this driver's is recorded."""
    return recorded_epoch is not None and recorded_epoch > epoch


def refuse_taken_epoch(table: str, epoch: int, recorded_epoch: int | None) -> None:
    """Refuse to raise an epoch that is not above the recorded one.

    Raises:
        Conflict: an equal or higher epoch is recorded. An equal one means that another driver chose the same number.
    """
    if _has_reached(recorded_epoch, epoch):
        raise _fenced(table, epoch, recorded_epoch or epoch)


def commit_note(metadata: Mapping[str, str], versions: Mapping[str, int]) -> str:
    """The user metadata of a commit: one JSON object, readable in `DESCRIBE HISTORY`."""
    return json.dumps({**metadata, "versions": json.dumps(dict(versions))}, ensure_ascii=False)


def parse_commit_note(user_metadata: object) -> dict[str, str] | None:
    """Read what `commit_note` wrote; None if another program wrote the user metadata."""
    try:
        note = json.loads(user_metadata) if isinstance(user_metadata, str) else None
    except ValueError:
        return None
    return note if isinstance(note, dict) and "versions" in note else None


def _has_reached(recorded: int | None, version: int) -> bool:
    return recorded is not None and recorded >= version


class _NotedWriter:
    def __init__(self, writer: TableWriter, noted: Callable[[], None]) -> None:
        self._writer = writer
        self._noted = noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        has_written = self._writer.append(rows, versions, metadata)
        if has_written and rows.num_rows:
            self._noted()
        return has_written


def noting(writer: TableWriter, noted: Callable[[], None]) -> TableWriter:
    """The writer, which then calls a function after each commit with rows; it must be quick and must not raise."""
    return cast("TableWriter", _NotedWriter(writer, noted))
