"""Days of a roll-up by minute as one file each, sorted by client: to read one client is to read few pages.

The writer of delta-rs may put a run of some thousand rows a little earlier or later; that costs a page or two.

A day is read and rewritten at one version of the table, in one commit. If the job has committed meanwhile, delta-rs
refuses that commit and the rewrite is made again. A rewrite that is killed leaves files that no version names; a later
cleaning removes them. So no row is lost or doubled, and what the table records of the job's appends stays as it is.

For readers that follow the table as a stream such a commit is a change of data, as the deletion of old rows is:
Spark needs `skipChangeCommits` for both.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

from arro3.core import DataType, RecordBatch, RecordBatchReader, Table
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    WriterProperties,
    write_deltalake,
)

from pipeline.tables.maintenance import committed
from pipeline.tables.opening import Options
from pipeline.tables.reading.column_range import file_statistics

MANY_FILES: Final = 60
"""A day is rewritten when it has more files: an hour of the roll-up."""
QUIET_MS: Final = 3_600_000
ROWS_AT_ONCE: Final = 100_000
# One file for each day, whatever its size; row groups of which the writer holds little.
_FILE_BYTES: Final = 2**40
_ROW_GROUP_ROWS: Final = 131_072
_ORDER: Final = '"user", client_id, minute_start_ms'
# On one core: the micro-batches need the others.
_ENGINE: Final = {"datafusion.execution.target_partitions": "1"}
_HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def sort_day(
    uri: str,
    many_files: int = MANY_FILES,
    quiet_ms: int = QUIET_MS,
    rows_at_once: int = ROWS_AT_ONCE,
    storage_options: Options = None,
) -> str | None:
    """Rewrite the newest day that has many files, or several to which none was added for long. One day at a time.

    It takes the memory of `rows_at_once` rows and of a row group, however long a day is.

    Args:
        uri: Address of a roll-up by minute.
        many_files: A day may have as many; one more, and it is rewritten.
        quiet_ms: So much older than the newest file of the table are all files of a day that is over.
        rows_at_once: About so many are in memory; those of one user always are together.
        storage_options: See `Options`.

    Returns:
        The day, YYYY-MM-DD; None if none is due.

    Raises:
        LostRace: Other commits came first at every attempt.
    """

    def sort(table: DeltaTable) -> str | None:
        day = _due(table, many_files, quiet_ms)
        if day is not None:
            _rewrite(table, day, rows_at_once)
        return day

    return committed(uri, sort, storage_options)


def _due(table: DeltaTable, many_files: int, quiet_ms: int) -> str | None:
    files = file_statistics(table)
    if not files.num_rows:
        return None
    added_ms = files.column("modification_time").cast(DataType.int64()).to_pylist()
    by_day: dict[str, list[int]] = {}
    for day, at_ms in zip(files.column("partition.date").to_pylist(), added_ms, strict=True):
        by_day.setdefault(str(day), []).append(at_ms)
    over_ms = max(added_ms) - quiet_ms
    due = (day for day, at_ms in by_day.items() if len(at_ms) > many_files or (len(at_ms) > 1 and max(at_ms) < over_ms))
    return max(due, default=None)


def _rewrite(table: DeltaTable, day: str, rows_at_once: int) -> None:
    of_day = f"date = DATE '{day}'"
    users = _read(table, f'SELECT "user", count(*) AS n FROM source WHERE {of_day} GROUP BY 1 ORDER BY 1')  # noqa: S608
    names, rows = (cast(Any, users.column(name)).to_pylist() for name in ("user", "n"))  # the stubs say numpy
    spans = list(_spans(names, rows, rows_at_once))
    empty = _read(table, "SELECT * FROM source LIMIT 0")

    def batches() -> Iterator[RecordBatch]:
        # In a thread of ours: delta-rs asks for the batches in one of its own, in which its engine can not wait.
        with ThreadPoolExecutor(1, "sorted-days") as thread:
            for first, last in spans:
                some = f'"user" >= {_text(first)} AND "user" <= {_text(last)}'
                sql = f"SELECT * FROM source WHERE {of_day} AND {some} ORDER BY {_ORDER}"  # noqa: S608 - quoted by us
                yield from thread.submit(_read, table, sql).result().to_batches()

    write_deltalake(
        table,
        RecordBatchReader.from_batches(empty.schema, batches()),
        mode="overwrite",
        predicate=f"date = '{day}'",
        target_file_size=_FILE_BYTES,
        writer_properties=WriterProperties(max_row_group_size=_ROW_GROUP_ROWS),
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=_HOOKS,
    )


def _spans(users: Sequence[str], rows: Sequence[int], at_once: int) -> Iterator[tuple[str, str]]:
    """The first and the last user of spans with about so many rows."""
    first, held = 0, 0
    for place, count in enumerate(rows):
        if held and held + count > at_once:
            yield users[first], users[place - 1]
            first, held = place, 0
        held += count
    if users:
        yield users[first], users[-1]


def _read(table: DeltaTable, sql: str) -> Table:
    return QueryBuilder(_ENGINE).register("source", table).execute(sql).read_all()


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"
