"""Reads a table through delta-rs: the adapter of `TableReader`, for the command line and for checks."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import Array, DataType
from deltalake import DeltaTable
from pyarrow.parquet import filters_to_expression

from pipeline.tables.address import table_uri
from pipeline.tables.errors import TableMissing
from pipeline.tables.opening import (
    Options,
    file_statistics,
    local_path,
    newest_in,
    newest_instant_in,
    oldest_in,
    open_table,
)
from pipeline.tables.port import Condition, Instant, TableReader, of_epoch
from pipeline.tables.queries import (
    ADDED_COLUMN,
    answer,
    column_names,
    count_where,
    largest_where,
    last_values_of_each,
    rows_where,
    smallest_where,
)
from quota.current_rates import SENSOR, SPAN_MS, exempt_request_percentage, throttle_times
from quota.replay import EpochSpan, with_time_epoch

# Queries of a table by delta-rs' own engine, with their answers as tables of pyarrow.
#
# Nothing here imports pyarrow.dataset or pandas, which take 0.4 s.


def select(table: DeltaTable, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The rows of a table, in no order.

    Args:
        table: the table at the version to read.
        columns: which ones, in which order; None = all.
        where: conditions that must all hold. Files whose statistics exclude them are not opened.

    Raises:
        TableUnreadable: a file of the table can not be read.
    """
    return run(table, rows_where(column_names(table) if columns is None else columns, where))


def count(table: DeltaTable, where: Sequence[Condition]) -> int:
    """Count the rows of a table that meet all conditions; otherwise as `select`."""
    return int(run(table, count_where(where))["n"][0].as_py())


def smallest(table: DeltaTable, column: str, where: Sequence[Condition] = ()) -> int | None:
    """The smallest value of an INT64 column in rows that meet all conditions; None without rows. Else as `select`."""
    value: int | None = run(table, smallest_where(column, where))["least"][0].as_py()
    return value


def largest(table: DeltaTable, column: str, where: Sequence[Condition] = ()) -> int | None:
    """The largest value of an INT64 column in rows that meet all conditions; None without rows. Else as `select`."""
    value: int | None = run(table, largest_where(column, where))["most"][0].as_py()
    return value


def newest_of_each(
    table: DeltaTable, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
) -> pa.Table:
    """For each combination of keys the row with the largest `order`, in no order; otherwise as `select`.

    Args:
        table: the table at the version to read.
        keys: columns that tell the combinations apart.
        order: an INT64 column; of each combination no two rows have the same value.
        columns: columns of the result besides `order`.
        where: conditions that must all hold.

    Returns:
        `order`, then `columns`.
    """
    return run(table, last_values_of_each(keys, order, columns, where))


def run(
    table: DeltaTable,
    sql: str,
    others: Mapping[str, DeltaTable] = MappingProxyType({}),
    engine: Mapping[str, str] | None = None,
) -> pa.Table:
    """The result of a query over the table `source`; columns of the table have the table's types.

    Args:
        table: the table at the version to read.
        sql: the query. Names and values in it are quoted by the caller.
        others: further tables, by the names that the query gives them.
        engine: see `answer`.

    Raises:
        TableUnreadable: a file of the table can not be read.
    """
    types = pa.schema(table.schema())
    found = answer(table, sql, others, engine)
    # The engine has types of its own for texts and bytes, which hold on to whole pages of a file. pyarrow's own cast
    # would load pyarrow.compute, which takes 30 ms: as long as a query.
    own = pa.schema(found.schema)
    wanted = pa.schema([types.field(field.name) if field.name in types.names else field for field in own])
    columns = [pa.chunked_array(found.column(field.name).cast(field)) for field in wanted]
    return pa.Table.from_arrays(columns, schema=wanted)


class DeltaRsReader:
    """A `RolledTable`. Each call opens the table at its newest version.

    A call raises `TableMissing` if there is no table then, and `TableUnreadable` if it can not be read.

    Args:
        uri: Address of the table.
        storage_options: See `Options`.
    """

    def __init__(self, uri: str, storage_options: Options = None) -> None:
        self.uri = uri
        self._options = storage_options

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """See `TableReader`."""
        return select(self._opened(), columns, where)

    def newest_value(self, column: str) -> int | None:
        """See `TableReader`."""
        return newest_in(self._opened(), column)

    def oldest_value(self, column: str) -> int | None:
        """See `RolledTable`."""
        return oldest_in(self._opened(), column)

    def newest_instant(self) -> Instant | None:
        """See `TableReader`."""
        table = self._opened()
        return newest_instant_in(table, partial(largest, table, "evaluated_at_ms"))

    def slices(
        self,
        column: str,
        dictionaries: Sequence[str] = (),
        version: int | None = None,
        time_epoch: int | None = None,
    ) -> "TimeSlices":
        """See `RolledTable`."""
        # Not at the top: it loads pyarrow.compute and numpy, and most commands need neither.

        return TimeSlices(self.uri, column, self._options, dictionaries, version, time_epoch)

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> pa.Table:
        """See `TableReader`."""
        return newest_of_each(self._opened(), keys, order, columns, where)

    def _opened(self) -> DeltaTable:
        return open_table(self.uri, storage_options=self._options)


def read_table(uri: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The newest rows of a table, in no order.

    Args:
        uri: Address of the table.
        columns: Which ones, in which order; None = all.
        where: Conditions that must all hold. Conditions on `date` skip whole partitions.

    Raises:
        TableMissing: There is no table.
        TableUnreadable: The table can not be read.
    """
    return DeltaRsReader(uri).read(columns, where)


# Scans of a table's data files by Arrow.


def dataset_of(table: DeltaTable, dictionaries: Sequence[str] = ()) -> Any:
    """The data files of a table as a `pyarrow.dataset.Dataset`.

    The files of a local table are read through Arrow's own file system. By default delta-rs gives Arrow a file system
    that is written in Python. What is read through it belongs to Python, and Arrow's threads free it shortly after the
    scan has returned. If the interpreter ends at that moment, the process aborts with exit code 134. Other stores are
    still read through delta-rs; for these `pipeline.process` keeps the exit code.

    Args:
        table: the table at the version to read.
        dictionaries: string columns to be read as dictionaries.
    """
    # Not at the top: pyarrow.dataset and pandas, which it imports, take 0.4 s, and most commands need neither.
    from pyarrow.dataset import ParquetReadOptions  # noqa: PLC0415
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem  # noqa: PLC0415

    path = local_path(table)
    files = None if path is None else SubTreeFileSystem(path, LocalFileSystem())
    options = ParquetReadOptions(dictionary_columns=list(dictionaries)) if dictionaries else None
    dataset = table.to_pyarrow_dataset(filesystem=files, parquet_read_options=options)
    if ADDED_COLUMN in dataset.schema.names:
        return dataset
    return dataset.replace_schema(dataset.schema.append(pa.field(ADDED_COLUMN, pa.int64())))


# Reads a table in slices of time, so that a long range never has to be in memory as a whole.


def split_range(start_ms: int, end_ms: int, slice_ms: int) -> Iterator[tuple[int, int]]:
    """Split a range into slices of `slice_ms`: pairs (start inclusive, end exclusive). The last one may be shorter."""
    for slice_start_ms in range(start_ms, end_ms, slice_ms):
        yield slice_start_ms, min(slice_start_ms + slice_ms, end_ms)


class TimeSlices:
    """One version of a table, read by ranges of one of its columns of epoch milliseconds.

    A file is not opened if its statistics say that it has no row of the slice.

    Args:
        uri: Address of the table.
        time_column: The column; it must have statistics.
        storage_options: See `Options`.
        dictionaries: String columns to be read as dictionaries. If values repeat, that takes a quarter of the time.
        version: Version of the table; None = the newest.
        time_epoch: Only the rows of this time epoch; None = all.

    Raises:
        TableMissing: There is no table, or it does not have this version.
        TableUnreadable: The table can not be read.
    """

    def __init__(
        self,
        uri: str,
        time_column: str,
        storage_options: Options = None,
        dictionaries: Sequence[str] = (),
        version: int | None = None,
        time_epoch: int | None = None,
    ) -> None:
        table = open_table(uri, version, storage_options)
        self.uri = uri
        self.version: int = table.version()
        self._table = table
        self._column = time_column
        self._dataset = dataset_of(table, dictionaries)
        self._of_epoch: list[Condition] = [] if time_epoch is None else [of_epoch(time_epoch)]

    def read(
        self,
        columns: Sequence[str],
        start_ms: int,
        end_ms: int,
        where: Sequence[tuple[str, str]] = (),
    ) -> pa.Table:
        """The rows of a slice, in no order.

        Args:
            columns: Which ones, in which order.
            start_ms: Inclusive.
            end_ms: Exclusive.
            where: Pairs (column, text that it must equal); all must hold.
        """
        time = pc.field(self._column)
        condition = (time >= start_ms) & (time < end_ms)
        for column, text in where:
            condition &= pc.field(column) == text
        if self._of_epoch:
            condition &= filters_to_expression(self._of_epoch)
        return self._dataset.to_table(columns=list(columns), filter=condition)

    def of_epoch(self, time_epoch: int) -> "TimeSlices":
        """The same version of the table, but only the rows of this time epoch."""
        own = copy(self)
        own._of_epoch = [of_epoch(time_epoch)]
        return own

    def epochs(self) -> list[EpochSpan]:
        """The time epochs of all rows, in order. Files are opened only where they have rows of several epochs.

        A table of a release without time epochs has one, 0.
        """
        files = pa.table(file_statistics(self._table))
        names = [f"{end}.{column}" for column in ("time_epoch", self._column) for end in ("min", "max")]
        if names[2] not in files.column_names:
            return []
        count = f"null_count.{names[0][4:]}"
        found, mixed = dict[int, tuple[int, int]](), list[tuple[int, int]]()
        for row in files.to_pylist():
            oldest, newest, first_ms, last_ms = (row.get(name) for name in names)
            if first_ms is None:
                continue
            if newest is None or (oldest == newest and not (newest and row.get(count))):
                _widen(found, newest or 0, first_ms, last_ms)
            else:
                mixed.append((first_ms, last_ms))
        if mixed:
            time = pc.field(self._column)
            condition = (time >= min(first for first, _ in mixed)) & (time <= max(last for _, last in mixed))
            rows = with_time_epoch(self._dataset.to_table(columns=["time_epoch", self._column], filter=condition))
            ends = rows.group_by("time_epoch").aggregate([(self._column, "min"), (self._column, "max")])
            for epoch, first_ms, last_ms in zip(*(column.to_pylist() for column in ends.columns), strict=True):
                _widen(found, epoch, first_ms, last_ms)
        return [EpochSpan(epoch, *found[epoch]) for epoch in sorted(found)]

    def first_time(self, start_ms: int, end_ms: int, where: Sequence[Condition] = ()) -> int | None:
        """The earliest time of a row in a range; None if the range has no row.

        A file is not opened if its statistics say that it has no row of the range.

        Args:
            start_ms: Inclusive.
            end_ms: Exclusive.
            where: Further conditions; all must hold.
        """
        in_range: list[Condition] = [(self._column, ">=", start_ms), (self._column, "<", end_ms), *self._of_epoch]
        return smallest(self._table, self._column, [*in_range, *where])

    def last_time(self, start_ms: int, end_ms: int) -> int | None:
        """The latest time of a row in a range; otherwise as `first_time`."""
        in_range: list[Condition] = [(self._column, ">=", start_ms), (self._column, "<", end_ms), *self._of_epoch]
        return largest(self._table, self._column, in_range)

    def estimated_rows(self, start_ms: int, end_ms: int) -> int:
        """About how many rows a range has, estimated from the statistics of the files. No file is opened."""
        files = pa.table(file_statistics(self._table))
        rows, first_ms, last_ms = (
            pc.fill_null(files[name], 0).to_numpy()
            for name in ("num_records", f"min.{self._column}", f"max.{self._column}")
        )
        overlap_ms = np.minimum(last_ms + 1, end_ms) - np.maximum(first_ms, start_ms)
        return int((rows * np.clip(overlap_ms / (last_ms + 1 - first_ms), 0, 1)).sum())

    def span(self) -> tuple[int, int] | None:
        """The first and the last instant in the table, both inclusive; None if it has no rows."""
        times = self._dataset.to_table(columns=[self._column])[self._column]
        if not len(times):
            return None
        ends = pc.min_max(times)
        return ends["min"].as_py(), ends["max"].as_py()


def _widen(spans: dict[int, tuple[int, int]], time_epoch: int, first_ms: int, last_ms: int) -> None:
    known_first_ms, known_last_ms = spans.get(time_epoch, (first_ms, last_ms))
    spans[time_epoch] = min(known_first_ms, first_ms), max(known_last_ms, last_ms)


# What the tables say about the last minute, as the metrics of a broker do.


@dataclass(frozen=True, slots=True)
class LastMinute:
    """What the metrics of a broker show besides the rates.

    Attributes:
        throttle_times: See `quota.current_rates.throttle_times`.
        exempt_percentage: Request time that is charged to nobody, in percent of one thread.
    """

    throttle_times: pa.Table
    exempt_percentage: float


def last_minute(root: str, now_ms: int) -> LastMinute:
    """Mean throttle times and exempt request time over the minute that ends at `now_ms`.

    Of a minute that the clock showed twice it is the second time.
    """
    recent: list[Condition] = [("evaluated_at_ms", ">", now_ms - SPAN_MS), ("evaluated_at_ms", "<=", now_ms)]
    columns = ["time_epoch", "last_event_ms", "exempt_time_ns"]
    usage = with_time_epoch(read_table(table_uri(root, "usage"), columns, recent))
    newest = pc.max(usage["time_epoch"])
    usage = usage.filter(pc.equal(usage["time_epoch"], newest))
    columns = [*SENSOR, "time_epoch", "throttle_time_ms", "evaluated_at_ms"]
    decisions = with_time_epoch(read_table(table_uri(root, "decisions"), columns, recent))
    decisions = decisions.filter(pc.equal(decisions["time_epoch"], newest))
    return LastMinute(throttle_times(decisions, now_ms), exempt_request_percentage(usage, now_ms))


# Values of Python as Arrow's, without pandas.
#
# To convert some values, pyarrow imports pandas if it is installed, only to ask whether they are values of pandas. That
# takes 0.2 s, and nothing here needs it to answer.


def arrow_scalar(value: int | str) -> pa.Scalar:
    """An INT64 or STRING scalar, to compare columns with."""
    kind = DataType.int64() if isinstance(value, int) else DataType.string()
    return pa.array(Array([value], kind))[0]


# The throttles that may still run: the last row of each client in `throttle_events`, if it is not a release.

_CLIENT: Final = ("cluster", "broker_id", "user", "client_id")
_NO_ROWS: Final[list[Condition]] = [("publish_seq", "<", 0)]


def last_throttles(events: TableReader, since_ms: int, of_clients: Sequence[Condition] = ()) -> pa.Table:
    """The last row of each client, if it is a throttle that ends at an instant or later; in no order.

    To find these rows, only the columns that are needed are read, and only the files from the first such throttle on.

    Args:
        events: the table `throttle_events`.
        since_ms: the instant, by wall clock, inclusive.
        of_clients: conditions on the columns that name a client.
    """
    running = _running(events, since_ms, of_clients)
    if not len(running):
        return events.read(None, _NO_ROWS)
    ends = pc.min_max(running)
    rows = events.read(
        None,
        [
            ("publish_seq", ">=", ends["min"].as_py()),
            ("publish_seq", "<=", ends["max"].as_py()),
            ("throttled_until_ms", ">=", since_ms),
            ("action", "=", "throttle"),
            *of_clients,
        ],
    )
    return rows.filter(pc.is_in(rows["publish_seq"], value_set=running.combine_chunks()))


def _running(events: TableReader, since_ms: int, of_clients: Sequence[Condition]) -> "pa.ChunkedArray":
    """The `publish_seq` of each row that `last_throttles` returns."""
    candidates = events.read(["publish_seq"], [("throttled_until_ms", ">=", since_ms), *of_clients])["publish_seq"]
    if not len(candidates):
        return candidates
    # The release of a client may end before the throttle that it ends. So from the first candidate on all rows count,
    # whatever their end.
    later: Condition = ("publish_seq", ">=", pc.min(candidates).as_py())
    last = events.newest_of_each(_CLIENT, "publish_seq", ["action", "throttled_until_ms"], [later, *of_clients])
    runs = pc.and_(
        pc.equal(last["action"], arrow_scalar("throttle")),
        pc.greater_equal(last["throttled_until_ms"], arrow_scalar(since_ms)),
    )
    return last["publish_seq"].filter(runs)


# The clients that use the cluster now, read from the `usage` table.

_RECENT_MS: Final = 300_000
# Made without an array, because pyarrow imports pandas when it makes its first array.
_NONE: Final = pa.Table.from_batches([], pa.schema([pa.field("user", pa.string()), pa.field("client_id", pa.string())]))


def live_clients(usage_uri: str, recent_ms: int = _RECENT_MS) -> pa.Table:
    """Each `<user, client-id>` with usage in the last minutes, once.

    The minutes are counted back from the newest batch, not from now. So the answer is the same while the job is
    stopped. Rows of older time epochs do not count: a clock that was set back since has dated them.

    Args:
        usage_uri: address of the table; it may be missing.
        recent_ms: how many milliseconds before the newest batch, inclusive.

    Returns:
        Columns user and client_id, sorted by both; no rows if there is no usage or no table.
    """
    try:
        table = open_table(usage_uri)
    except TableMissing:
        return _NONE
    newest = newest_instant_in(table, partial(largest, table, "evaluated_at_ms"))
    if newest is None:
        return _NONE
    own = f"AND time_epoch = {newest.time_epoch} " if newest.time_epoch else ""
    query = (
        'SELECT DISTINCT "user", client_id FROM source '  # noqa: S608 - all values are our own
        f"WHERE sample_start_ms >= {newest.evaluated_at_ms - recent_ms} {own}ORDER BY 1, 2"
    )
    return run(table, query)
