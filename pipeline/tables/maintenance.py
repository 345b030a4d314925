"""Upkeep of a table while the stream writes it: delete old rows, merge files, checkpoint and shorten the log.

These commits do not carry the job's app id, and they use handles of their own. If one of them comes first, the job
makes its append again (`delta_rs`). If an append of the job comes first, the step is made again here. Each step can be
repeated, and interrupted at any point: the next round does what is left.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipeline.tables.errors import LostRace
from pipeline.tables.scan import dataset_of

_MANY_FILES: Final = 200
_ATTEMPTS: Final = 5

_Result = TypeVar("_Result")
Options = Mapping[str, str] | None


def trim(uri: str, column: str, before_ms: int, storage_options: Options = None) -> int:
    """Delete the rows whose time is before an instant. If there are none, no commit is made.

    Args:
        uri: address of the table.
        column: an INT64 `_ms` column that is never before the day in `date`.
        before_ms: rows at exactly this instant stay.
        storage_options: options of delta-rs, for stores that need them.

    Returns:
        Number of rows that were deleted.

    Raises:
        LostRace: other commits came first at every attempt.
    """
    day = datetime.fromtimestamp(before_ms / 1000, UTC).date()

    def delete(table: DeltaTable) -> int:
        old = (pc.field("date") <= day) & (pc.field(column) < before_ms)
        count = int(dataset_of(table).count_rows(filter=old))
        if count:
            table.delete(f"date <= '{day.isoformat()}' AND {column} < {before_ms}")
        return count

    return _committed(uri, delete, storage_options)


def compact(uri: str, many_files: int = _MANY_FILES, storage_options: Options = None) -> bool:
    """Merge small files if the table has more than `many_files`. Returns True if it did.

    Raises:
        LostRace: other commits came first at every attempt.
    """

    def optimize(table: DeltaTable) -> bool:
        is_due = len(table.file_uris()) > many_files
        if is_due:
            table.optimize.compact()
        return is_due

    return _committed(uri, optimize, storage_options)


def clean(uri: str, storage_options: Options = None) -> int:
    """Write a log checkpoint, then delete log entries and replaced files after the times in the table's properties.

    Returns:
        Number of data files that were deleted.
    """
    table = DeltaTable(uri, storage_options=dict(storage_options) if storage_options else None)
    table.create_checkpoint()
    table.cleanup_metadata()
    return len(table.vacuum(dry_run=False))


def _committed(uri: str, commit: Callable[[DeltaTable], _Result], storage_options: Options) -> _Result:
    for _ in range(_ATTEMPTS):
        table = DeltaTable(uri, storage_options=dict(storage_options) if storage_options else None)
        try:
            return commit(table)
        except CommitFailedError:
            continue
    raise LostRace(uri, _ATTEMPTS)
