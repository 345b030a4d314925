"""Upkeep of a table while the stream writes it: delete old rows, merge files, checkpoint and shorten the log.

These commits do not carry the job's app id, and they use handles of their own. If one of them comes first, the job
makes its append again (`delta_rs`). If an append of the job comes first, the step is made again here. Each step can be
repeated, and interrupted at any point: the next round does what is left.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipeline.tables.errors import LostRace
from pipeline.tables.opening import Options, open_table
from pipeline.tables.port import Condition
from pipeline.tables.reading.table_query import count

_MANY_FILES: Final = 200
_ATTEMPTS: Final = 5

_Result = TypeVar("_Result")


def trim(uri: str, column: str, before_ms: int, storage_options: Options = None) -> int:
    """Delete the rows whose time is before an instant. If there are none, no commit is made.

    Args:
        uri: address of the table.
        column: an INT64 `_ms` column that is never before the day in `date`.
        before_ms: rows at exactly this instant stay.
        storage_options: see `Options`.

    Returns:
        Number of rows that were deleted.

    Raises:
        LostRace: other commits came first at every attempt.
    """
    old, predicate = rows_before(column, before_ms)

    def delete(table: DeltaTable) -> int:
        rows = count(table, old)
        if rows:
            table.delete(predicate)
        return rows

    return committed(uri, delete, storage_options)


def rows_before(column: str, before_ms: int) -> tuple[list[Condition], str]:
    """The rows whose time is before an instant: as conditions, and as the same predicate in SQL.

    Args:
        column: see `trim`.
        before_ms: see `trim`.
    """
    day = datetime.fromtimestamp(before_ms / 1000, UTC).date()
    return [("date", "<=", day), (column, "<", before_ms)], f"date <= '{day.isoformat()}' AND {column} < {before_ms}"


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

    return committed(uri, optimize, storage_options)


def clean(uri: str, storage_options: Options = None) -> int:
    """Write a log checkpoint, then delete log entries and replaced files after the times in the table's properties.

    Returns:
        Number of data files that were deleted.
    """
    table = open_table(uri, storage_options=storage_options)
    table.create_checkpoint()
    table.cleanup_metadata()
    return len(table.vacuum(dry_run=False))


def committed(uri: str, commit: Callable[[DeltaTable], _Result], storage_options: Options = None) -> _Result:
    """What a function returns that makes a commit on a new handle; called again if another commit came first.

    Raises:
        LostRace: Other commits came first at every attempt.
    """
    for _ in range(_ATTEMPTS):
        table = open_table(uri, storage_options=storage_options)
        try:
            return commit(table)
        except CommitFailedError:
            continue
    raise LostRace(uri, _ATTEMPTS)
