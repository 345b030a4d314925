"""The upkeep of the files of the job's tables: delete old rows, merge files, sort days, clean the log.

The stream writes the tables meanwhile. These commits do not carry the job's app id, and they use handles of their own.
If one of them comes first, the job makes its append again (`delta_rs`). If an append of the job comes first, the step
is made again here. Each step can be repeated, and interrupted at any point: the next round does what is left.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Final

from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import DeltaError

from pipeline.errors import PipelineError, first_line
from pipeline.tables.delta_rs import NO_CLEANING, committed, writing
from pipeline.tables.opening import keep_on_disk, open_table, refuse_unwritable
from pipeline.tables.port import Condition, table_uri
from pipeline.tables.queries import StoredTable, predicates

UPKEEP_EVERY_SECONDS: Final = 60.0
"""How often old rows are deleted and small files merged."""
MANY_FILES: Final = 200
_MANY_FILES_OF_SECONDS: Final = 20  # three a minute, 7 MB each at 20 000 events a second
# A merged file is merged again with those of the next minute until it is so large. With the 100 MB of delta-rs a round
# takes 0.8 to 4.5 s of CPU at 20 000 events per second, and micro-batches wait for it; with this it takes 0.7 to 2 s.
_MERGED_BYTES: Final = 32_000_000
_ROWS_OF_A_GROUP: Final = 131_072  # Arrow decodes a row group as a whole, also to read it in pieces
_MERGING: Final = WriterProperties(max_row_group_size=_ROWS_OF_A_GROUP, compression="SNAPPY")


def trim(uri: str, column: str, before_ms: int) -> int:
    """Delete the rows before an instant, not at it, and return how many; without such rows no commit is made.

    `column` is an INT64 `_ms` column that is never before the day in `date`.
    """
    old = rows_before(column, before_ms)

    def delete(table: DeltaTable) -> int:
        rows = StoredTable(table).count(old)
        if rows:
            table.delete(predicates(old), post_commithook_properties=NO_CLEANING)
        return rows

    return committed(uri, delete)


def rows_before(column: str, before_ms: int) -> list[Condition]:
    """The conditions of the rows whose time is before an instant."""
    return [("date", "<=", datetime.fromtimestamp(before_ms / 1000, UTC).date()), (column, "<", before_ms)]


def compact(uri: str, many_files: int = MANY_FILES) -> bool:
    """Merge small files, below 16 MB, if the table has more than `many_files` of them. Returns True if it did."""

    def optimize(table: DeltaTable) -> bool:
        sizes_bytes = StoredTable(table).file_statistics()["size_bytes"].to_pylist()
        is_due = sum(1 for size_bytes in sizes_bytes if size_bytes < _MERGED_BYTES // 2) > many_files
        if is_due:
            table.optimize.compact(
                target_size=_MERGED_BYTES,
                max_concurrent_tasks=1,
                writer_properties=_MERGING,
                post_commithook_properties=NO_CLEANING,
            )
        return is_due

    return committed(uri, optimize)


def clean(uri: str, *, files: bool = True) -> int:
    """Write a log checkpoint, then delete log entries and replaced files after the times in the table's properties.

    Returns the number of data files that were deleted; without `files` none are looked for. Nothing is deleted from a
    table to which delta-rs does not write: its log is the way back.
    """
    table = open_table(uri)
    refuse_unwritable(uri, table)
    with writing(uri):
        table.create_checkpoint()
        keep_on_disk(uri)  # before the entries go that it stands for
        table.cleanup_metadata()
        # All files are looked at: by itself, delta-rs knows only those that were replaced since the newest checkpoint.
        return len(table.vacuum(dry_run=False, full=True, post_commithook_properties=NO_CLEANING)) if files else 0


@contextmanager
def log_failures(log: logging.Logger, what: str) -> Iterator[None]:
    """Log a failure of the block as "<what> failed, the next round repeats it: …": throttling goes on meanwhile.

    Mistakes of the program are raised.
    """
    try:
        yield
    except (PipelineError, DeltaError, OSError, ValueError) as exc:
        log.warning("%s failed, the next round repeats it: %s", what, first_line(exc))


# Days of a roll-up by minute as one file each, in the order of users: to read one client is to read few row groups.
#
# A rewrite that is killed leaves files that no version names; a later cleaning removes them.

_FILES_OF_A_DAY: Final = 60  # an hour of the roll-up
_FILE_BYTES: Final = 2**40  # one file for each day, whatever its size
_SORTED_IN_MEMORY_BYTES: Final = 134_217_728  # the rest goes to temporary files


def sort_day(uri: str) -> str | None:
    """Rewrite the newest day that has too many files; returns the day, None if none has.

    Of the newest day of the table and the one before it these are more than `_FILES_OF_A_DAY`. An older day gets no
    more rows: it becomes one file. Rows that a clock dated ahead make no day old: the newest is today at most.
    """

    def sort(table: DeltaTable) -> str | None:
        day = _due(table)
        if day is not None:
            table.optimize.z_order(
                ["user"],
                partition_filters=[("date", "=", day)],
                target_size=_FILE_BYTES,
                max_concurrent_tasks=1,
                max_spill_size=_SORTED_IN_MEMORY_BYTES,
                writer_properties=_MERGING,
                post_commithook_properties=NO_CLEANING,
            )
        return day

    return committed(uri, sort)


def _due(table: DeltaTable) -> str | None:
    files = StoredTable(table).file_statistics()
    if not files.num_rows:
        return None
    files_of = Counter(map(str, files["partition.date"].to_pylist()))
    newest = min(date.fromisoformat(max(files_of)), datetime.now(UTC).date())
    filling_from = str(newest - timedelta(days=1))
    due = (day for day, count in files_of.items() if count > (_FILES_OF_A_DAY if day >= filling_from else 1))
    return max(due, default=None)


_SORTED: Final = ("usage_by_minute", "throttle_by_minute")


def merge(root: str, name: str) -> bool:
    """Merge small files of one of the job's tables if there are many; returns whether it did."""
    uri = table_uri(root, name)
    if name in _SORTED:
        return sort_day(uri) is not None
    return compact(uri, _MANY_FILES_OF_SECONDS if name == "usage_by_second" else MANY_FILES)
