"""Reads tables through delta-rs, with answers as tables of pyarrow: rows, slices of time, and common questions.

Nothing here imports pyarrow.dataset or pandas at the top, which take 0.4 s.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import Array, DataType
from deltalake import DeltaTable

from pipeline.errors import TableMissing
from pipeline.tables.opening import file_statistics, local_path, newest_in, oldest_in, open_table, reading
from pipeline.tables.port import Condition, Instant, TableReader, of_newest_epoch
from pipeline.tables.queries import (
    Engine,
    answer,
    column_list,
    column_names,
    largest,
    last_values_of_each,
    newest_instant_in,
    predicates,
    rows_where,
    smallest,
)
from quota.replay import EpochSpan


def select(table: DeltaTable, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The rows of a table; otherwise as `TableReader.read` and `run`."""
    return run(table, rows_where(column_names(table) if columns is None else columns, where))


def newest_of_each(
    table: DeltaTable, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
) -> pa.Table:
    """See `TableReader`; raises as `run`."""
    return run(table, last_values_of_each(keys, order, columns, where))


def run(
    table: DeltaTable, sql: str, others: Mapping[str, DeltaTable] = MappingProxyType({}), engine: Engine = None
) -> pa.Table:
    """The result of a query over `source`, in the table's types; `TableUnreadable` if a file is not readable."""
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

    A call raises `TableMissing` if the table does not exist, and `TableUnreadable` if it cannot be read.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        return select(open_table(self.uri), columns, where)

    def newest_value(self, column: str) -> int | None:
        return newest_in(open_table(self.uri), column)

    def oldest_value(self, column: str) -> int | None:
        return oldest_in(open_table(self.uri), column)

    def newest_instant(self) -> Instant | None:
        return newest_instant_in(open_table(self.uri))

    def slices(
        self, column: str, dictionaries: Sequence[str] = (), version: int | None = None, time_epoch: int | None = None
    ) -> "TimeSlices":
        return TimeSlices(self.uri, column, dictionaries, version, time_epoch)

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> pa.Table:
        return newest_of_each(open_table(self.uri), keys, order, columns, where)


def read_table(uri: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The newest rows of a table; otherwise as `select`."""
    return select(open_table(uri), columns, where)


# Reads a table in slices of time, so that a long range never has to be in memory as a whole.


def split_range(start_ms: int, end_ms: int, slice_ms: int) -> Iterator[tuple[int, int]]:
    """Split a range into slices of `slice_ms`: pairs (start inclusive, end exclusive). The last one may be shorter."""
    for slice_start_ms in range(start_ms, end_ms, slice_ms):
        yield slice_start_ms, min(slice_start_ms + slice_ms, end_ms)


_ROWS_OF_A_PIECE: Final = 100_000
_FEW_AHEAD: Final = {"batch_size": _ROWS_OF_A_PIECE, "batch_readahead": 1, "fragment_readahead": 1}


def _dataset_of(table: DeltaTable, dictionaries: Sequence[str]) -> Any:
    """The data files of a table as a `pyarrow.dataset.Dataset`.

    The files of a local table are read through Arrow's own file system. By default delta-rs gives Arrow a file system
    that is written in Python. What is read through it belongs to Python, and Arrow's threads free it shortly after the
    scan has returned. If the interpreter ends at that moment, the process aborts with exit code 134. Other stores are
    still read through delta-rs; for these `pipeline.process` keeps the exit code.
    """
    from pyarrow.dataset import ParquetReadOptions  # noqa: PLC0415 - with pandas, which it imports, it takes 0.4 s
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem  # noqa: PLC0415

    path = local_path(table)
    files = None if path is None else SubTreeFileSystem(path, LocalFileSystem())
    options = ParquetReadOptions(dictionary_columns=list(dictionaries)) if dictionaries else None
    with reading(path or table.table_uri):
        return table.to_pyarrow_dataset(filesystem=files, parquet_read_options=options)


class TimeSlices:
    """One version of a table, read by ranges [start, end) of one of its columns of epoch milliseconds.

    A file is not opened if its statistics say that it has no row of the slice.

    It can be sent to other processes and machines. There it has the rows and the epochs, also when the log of the table
    no longer has the version.

    Args:
        time_column: The column; it must have statistics.
        dictionaries: String columns to be read as dictionaries. If values repeat, that takes a quarter of the time.
        version: Version of the table; None = the newest. `TableMissing` if it is not there.
        time_epoch: Only the rows of this time epoch; None = all.
    """

    def __init__(
        self,
        uri: str,
        time_column: str,
        dictionaries: Sequence[str] = (),
        version: int | None = None,
        time_epoch: int | None = None,
    ) -> None:
        self.uri = uri
        self._table = open_table(uri, version)
        self.version: int = self._table.version()
        self._column = time_column
        self._dictionaries = dictionaries
        self._of_epoch: list[Condition] = [] if time_epoch is None else [("time_epoch", "=", time_epoch)]

    def __getstate__(self) -> dict[str, Any]:
        self.epochs, self._dataset  # noqa: B018 - are kept
        return {name: value for name, value in vars(self).items() if name != "_table"}

    @cached_property
    def _dataset(self) -> Any:
        return _dataset_of(self._table, self._dictionaries)

    def read(self, columns: Sequence[str], start_ms: int, end_ms: int, where: Sequence[Condition] = ()) -> pa.Table:
        """The rows of a slice that meet further conditions, in no order."""
        return self._scan(columns, [*self._range(start_ms, end_ms), *where])

    def pieces(self, columns: Sequence[str], start_ms: int, end_ms: int) -> Iterator[pa.Table]:
        """The same rows in tables of some 100 000, so that they are never in memory together; none without rows."""
        held: list[pa.RecordBatch] = []
        for batch in self._scanner(columns, self._range(start_ms, end_ms), **_FEW_AHEAD).to_batches():
            if batch.num_rows:
                held.append(batch)
            if sum(one.num_rows for one in held) >= _ROWS_OF_A_PIECE:
                yield pa.Table.from_batches(held)
                held = []
        if held:
            yield pa.Table.from_batches(held)

    @cached_property
    def epochs(self) -> list[EpochSpan]:
        """The time epochs of all rows, in order. Files are opened only where they have rows of several epochs."""
        files = pa.table(file_statistics(self._table))
        names = [f"{end}.{column}" for column in ("time_epoch", self._column) for end in ("min", "max")]
        if names[2] not in files.column_names:
            return []
        found, mixed = dict[int, tuple[int, int]](), list[tuple[int, int]]()
        for row in files.to_pylist():
            oldest, newest, first_ms, last_ms = (row.get(name) for name in names)
            if first_ms is None:
                continue
            if oldest == newest:
                _widen(found, newest, first_ms, last_ms)
            else:
                mixed.append((first_ms, last_ms))
        if mixed:
            first, last = min(first for first, _ in mixed), max(last for _, last in mixed)
            condition: list[Condition] = [(self._column, ">=", first), (self._column, "<=", last)]
            rows = self._scan(["time_epoch", self._column], condition)
            ends = rows.group_by("time_epoch").aggregate([(self._column, "min"), (self._column, "max")])
            for epoch, first_ms, last_ms in zip(*(column.to_pylist() for column in ends.columns), strict=True):
                _widen(found, epoch, first_ms, last_ms)
        return [EpochSpan(epoch, *found[epoch]) for epoch in sorted(found)]

    def first_time(self, start_ms: int, end_ms: int, where: Sequence[Condition] = ()) -> int | None:
        """The earliest time of a row in a range that meets further conditions; None if there is none."""
        return smallest(self._table, self._column, [*self._range(start_ms, end_ms), *where])

    def last_time(self, start_ms: int, end_ms: int) -> int | None:
        """The latest time of a row in a range; otherwise as `first_time`."""
        return largest(self._table, self._column, self._range(start_ms, end_ms))

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

    def _range(self, start_ms: int, end_ms: int) -> list[Condition]:
        return [(self._column, ">=", start_ms), (self._column, "<", end_ms), *self._of_epoch]

    def _scan(self, columns: Sequence[str], where: Sequence[Condition]) -> pa.Table:
        return self._scanner(columns, where).to_table()

    def _scanner(self, columns: Sequence[str], where: Sequence[Condition], **options: int) -> Any:
        from pyarrow.parquet import filters_to_expression  # noqa: PLC0415 - it takes 5 MB, with the stores' clients

        return self._dataset.scanner(columns=list(columns), filter=filters_to_expression(list(where)), **options)


def _widen(spans: dict[int, tuple[int, int]], time_epoch: int, first_ms: int, last_ms: int) -> None:
    known_first_ms, known_last_ms = spans.get(time_epoch, (first_ms, last_ms))
    spans[time_epoch] = min(known_first_ms, first_ms), max(known_last_ms, last_ms)


def arrow_scalar(value: int | str) -> pa.Scalar:
    """An INT64 or STRING scalar, to compare columns with.

    pyarrow itself would import pandas if it is installed, only to ask whether the value is one of pandas: 0.2 s.
    """
    kind = DataType.int64() if isinstance(value, int) else DataType.string()
    return pa.array(Array([value], kind))[0]


# The throttles that may still run: the last row of each client in `throttle_events`, if it is not a release.

_CLIENT: Final = ("cluster", "broker_id", "user", "client_id")
_NO_ROWS: Final[list[Condition]] = [("publish_seq", "<", 0)]


def last_throttles(events: TableReader, since_ms: int, of_clients: Sequence[Condition] = ()) -> pa.Table:
    """The last row of each client, if it is a throttle that ends at `since_ms` (wall clock) or later; in no order.

    Only the columns that are needed are read, and only the files from the first such throttle on. `of_clients` are
    conditions on the columns that name a client.
    """
    running = _running(events, since_ms, of_clients)
    if not len(running):
        return events.read(None, _NO_ROWS)
    ends = pc.min_max(running)
    publish_seqs: list[Condition] = [
        ("publish_seq", ">=", ends["min"].as_py()),
        ("publish_seq", "<=", ends["max"].as_py()),
    ]
    running_on: list[Condition] = [("throttled_until_ms", ">=", since_ms), ("action", "=", "throttle")]
    rows = events.read(None, [*publish_seqs, *running_on, *of_clients])
    return rows.filter(pc.is_in(rows["publish_seq"], value_set=running.combine_chunks()))


def _running(events: TableReader, since_ms: int, of_clients: Sequence[Condition]) -> "pa.ChunkedArray":
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


def live_clients(usage_uri: str) -> pa.Table:
    """Each `<user, client-id>` with usage in the last minutes, once: user and client_id, sorted by both.

    The minutes are counted back from the newest batch, so the answer is the same while the job is stopped. Rows of
    older time epochs do not count: a clock that was set back since has dated them. No rows without usage or a table.
    """
    found = _recent(usage_uri, '"user", client_id', " GROUP BY 1, 2 ORDER BY 1, 2")
    return _NONE if found is None else found


def clients_seen(usage_uri: str) -> dict[tuple[str, str], int]:
    """The same clients, and when each last used something: the start of its newest sample window, in epoch ms."""
    found = _recent(usage_uri, '"user", client_id, max(sample_start_ms) AS seen_ms', " GROUP BY 1, 2")
    rows = [] if found is None else found.to_pylist()
    return {(row["user"], row["client_id"]): row["seen_ms"] for row in rows}


def recent_usage(usage_uri: str, columns: Sequence[str]) -> pa.Table | None:
    """The rows of `usage` of the last minutes, counted as `live_clients` does; None if there are none, or no table."""
    return _recent(usage_uri, column_list(columns), "")


def _recent(usage_uri: str, selected: str, grouped: str) -> pa.Table | None:
    try:
        table = open_table(usage_uri)
    except TableMissing:
        return None
    newest = newest_instant_in(table)
    if newest is None:
        return None
    since: Condition = ("sample_start_ms", ">=", newest.evaluated_at_ms - _RECENT_MS)
    recent = predicates([since, *of_newest_epoch(newest.time_epoch)])
    return run(table, f"SELECT {selected} FROM source WHERE {recent}{grouped}")  # noqa: S608 - quoted by us
