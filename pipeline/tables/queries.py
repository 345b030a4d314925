"""The one reader of tables: a version of a table, asked by SQL, with the answers of delta-rs' own engine in pyarrow.

The engine reads only the columns and files it needs, and holds no whole table. No file is read through Python. Rows
come in no order: who needs one says ORDER BY.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from pydantic import BaseModel

from pipeline.errors import TableMissing
from pipeline.tables.opening import columns_of_others, open_table, unreadable
from pipeline.tables.port import HELD_TYPE, TARGET, Condition, Instant, TableReader, of_newest_epoch, table_uri
from schemas.rows import BatchRow

_ENGINE: Final = {
    "datafusion.execution.parquet.pushdown_filters": "true",
    "datafusion.execution.parquet.max_predicate_cache_size": "0",
    "datafusion.execution.target_partitions": "1",
}
"""The engine reads a filter's columns, and of the others only what it lets pass.

It keeps no values of the filter's columns for later: of a large file they took 40 MB. And it runs on one core: with
two, a query of few rows takes half as much CPU again, and the job needs the other core.
"""

Row = dict[str, Any]
_TIME: Final = "evaluated_at_ms"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The job writes a file or two per second: to read those of a minute takes 70 ms, those of the newest instant 3 ms.
_SPANS_MS: Final = (0, 2_000, 16_000, 128_000, 3_600_000)


class StoredTable:
    """One version of a table. All that is read fits together.

    Conditions of a list must all hold. What cannot be read is `TableUnreadable`.

    Args:
        place: Its address, for the newest version, or a handle that is open.
        model: What "all columns" are; columns that others have added to the table are left out. None = its columns.
    """

    def __init__(self, place: str | DeltaTable, model: type[BaseModel] | None = None) -> None:
        self._table = open_table(place) if isinstance(place, str) else place
        address = urlsplit(self._table.table_uri)
        is_on_disk = address.scheme == "file"
        self.uri: str = unquote(address.path).rstrip("/") if is_on_disk else self._table.table_uri
        self.version: int = self._table.version()
        self._model = model

    @property
    def columns(self) -> list[str]:
        """All columns, in the order of the table."""
        added = [] if self._model is None else columns_of_others(self._table, self._model)
        return [field.name for field in self._table.schema().fields if field.name not in added]

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """The rows that meet all conditions; `columns` None = all, in the order of the table."""
        return self.answer(_rows_where(self.columns if columns is None else columns, where))

    def rows(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> list[Row]:
        """These rows, each as a mapping of plain Python values."""
        return rows_of(self.read(columns, where))

    def count(self, where: Sequence[Condition]) -> int:
        """How many rows meet all conditions."""
        return self._figure("count(*)", where) or 0

    def smallest(self, column: str, where: Sequence[Condition] = ()) -> int | None:
        """The smallest value of an INT64 column in rows that meet all conditions; None without such rows."""
        return self._figure(f"min({_name(column)})", where)

    def largest(self, column: str, where: Sequence[Condition] = ()) -> int | None:
        """The largest value of such a column; otherwise as `smallest`."""
        return self._figure(f"max({_name(column)})", where)

    def newest_value(self, column: str) -> int | None:
        """The largest value of an INT64 column with statistics, from the log; None without rows."""
        return self._extreme(f"max.{column}", max)

    def oldest_value(self, column: str) -> int | None:
        """The smallest value of an INT64 column with statistics, from the log; None without rows."""
        return self._extreme(f"min.{column}", min)

    def newest_instant(self) -> Instant | None:
        """The newest instant that a row was evaluated at; None without rows.

        It is in the statistics of two columns. Only files with rows of several epochs are opened.
        """
        files = self.file_statistics()
        names = ("min.time_epoch", "max.time_epoch", "max.evaluated_at_ms")
        if names[1] not in files.column_names:
            return None  # no file has a row
        rows = [row for row in zip(*(files[name].to_pylist() for name in names), strict=True) if None not in row]
        if not rows:
            return None
        epoch = max(last for _, last, _ in rows)
        newest_ms = max((ms for first, _, ms in rows if first == epoch), default=-1)
        if any(last == epoch != first and ms > newest_ms for first, last, ms in rows):
            later = self.largest(_TIME, [("time_epoch", "=", epoch), (_TIME, ">", newest_ms)])
            newest_ms = newest_ms if later is None else later
        return Instant(epoch, newest_ms)

    def last_of_each(
        self, keys: Sequence[str], order: str, among: Sequence[Condition] = (), where: Sequence[Condition] = ()
    ) -> pa.Table:
        """See `TableReader`."""
        last = f"SELECT max({_name(order)}) FROM source{_where(among)} GROUP BY {key_list(keys)}"  # noqa: S608 - quoted by us
        conditions = " AND ".join([f"{_name(order)} IN ({last})", *map(_predicate, [*among, *where])])
        return self.answer(f"SELECT {column_list(self.columns)} FROM source WHERE {conditions}")  # noqa: S608 - quoted by us

    def newest(self, order: Sequence[str], where: Sequence[Condition] = ()) -> Row | None:
        """The row that is last in the order of these INT64 columns, with all columns; None if no row fits.

        * `order`: `evaluated_at_ms` is among them, at most `time_epoch` before it. It is looked for at the newest
          instant, then in spans before it that become longer, and at last in all rows.
        """
        newest = self.newest_instant()
        spans = () if newest is None else [newest.since(span_ms) for span_ms in _SPANS_MS]
        last_first = ", ".join(f"{_name(column)} DESC NULLS LAST" for column in order)
        for recent in (*spans, []):
            sql = f"{_rows_where(self.columns, [*where, *recent])} ORDER BY {last_first} LIMIT 1"
            if found := rows_of(self.answer(sql)):
                return found[0]
        return None

    def file_statistics(self) -> pa.Table:
        """One row per data file: `num_records`, and `min.x` and `max.x` for each column x that has statistics."""
        return pa.RecordBatchReader.from_stream(self._table.get_add_actions(flatten=True)).read_all()

    def answer(self, sql: str) -> pa.Table:
        """The answer to a query over `source`, this table; in its types."""
        try:
            query = QueryBuilder(_ENGINE).register("source", self._table)
            found = pa.RecordBatchReader.from_stream(query.execute(sql)).read_all()
        except Exception as exc:  # delta-rs raises plain exceptions here
            raise unreadable(self.uri, exc) from exc
        # The engine has types of its own for texts and bytes, which hold on to whole pages of a file.
        types = pa.schema(self._table.schema())
        return found.cast(pa.schema([_stored(field, types) for field in found.schema]))

    def _extreme(self, statistic: str, choose: Callable[[list[int]], int]) -> int | None:
        files = self.file_statistics()
        values = files[statistic].drop_null().to_pylist() if statistic in files.column_names else []
        return choose(values) if values else None

    def _figure(self, figure: str, where: Sequence[Condition]) -> int | None:
        found = self.answer(f"SELECT {figure} AS n FROM source{_where(where)}")  # noqa: S608 - quoted by us
        value: int | None = found["n"][0].as_py()
        return value


def _stored(field: pa.Field, types: pa.Schema) -> pa.Field:
    if field.name in types.names and not pa.types.is_dictionary(field.type):
        return types.field(field.name)
    return field


def _rows_where(columns: Sequence[str], where: Sequence[Condition]) -> str:
    return f"SELECT {column_list(columns)} FROM source{_where(where)}"  # noqa: S608 - quoted by us


def _where(conditions: Sequence[Condition]) -> str:
    return f" WHERE {predicates(conditions)}" if conditions else ""


def predicates(conditions: Sequence[Condition]) -> str:
    """The SQL of conditions that must all hold, with names and texts quoted; "" without any."""
    return " AND ".join(map(_predicate, conditions))


def _predicate(condition: Condition) -> str:
    column, operator, value = condition
    if operator in {"in", "not in"}:
        if not value:
            return "false" if operator == "in" else "true"
        return f"{_name(column)} {operator} ({', '.join(map(_literal, value))})"
    if operator == "holds":
        name = _literal(value)
        return f"(client_id = {name} OR client_id IS NULL AND NOT array_has(except_client_ids, {name}))"
    return f"{_name(column)} {operator} {_literal(value)}"


def column_list(columns: Sequence[str]) -> str:
    """Columns as SQL lists them, quoted."""
    return ", ".join(map(_name, columns))


def key_list(keys: Sequence[str]) -> str:
    """Columns as SQL groups by them, quoted; `HELD_TYPE` may be one of them."""
    of_user = "CASE WHEN client_id IS NULL THEN quota_type END"
    return ", ".join(of_user if key == HELD_TYPE else _name(key) for key in keys)


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"DATE '{value.isoformat()}'" if isinstance(value, date) else str(value)


def rows_of(found: pa.Table) -> list[Row]:
    """The rows of an answer by column. Instants (TIMESTAMP columns in microseconds) are in UTC."""
    return [dict(zip(found.column_names, row, strict=True)) for row in zip(*map(_values, found.columns), strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any]
    if not pa.types.is_timestamp(column.type):
        values = column.to_pylist()
        return values
    # By pyarrow an instant would need the machine's time zone database, to know UTC.
    values = column.cast(pa.int64()).to_pylist()
    return [None if instant is None else _EPOCH + timedelta(microseconds=instant) for instant in values]


def newest_value(uri: str, column: str) -> int | None:
    """See `StoredTable.newest_value`; None if the table is missing, too."""
    try:
        return StoredTable(uri).newest_value(column)
    except TableMissing:
        return None


# The newest rows of a table that the job writes, and the newest row of `batches`.


def newest_rows(table: TableReader) -> pa.Table:
    """The rows of the newest instant of a table with `evaluated_at_ms`, in no order; perhaps of several batches.

    Within a time epoch the job never evaluates a batch before the one before it, so these rows are the newest.
    """
    newest = table.newest_instant()
    return table.read(None, [] if newest is None else newest.conditions)


def newest_batch(batches: TableReader) -> Row | None:
    """The newest row of `batches` by column, in the order of `quota.decisions.Evaluation`; None without rows."""
    return max(rows_of(newest_rows(batches)), key=lambda row: int(row["batch_id"]), default=None)


def newest_batch_under(root: str) -> Row | None:
    """The newest row of `batches` of the tables under a root, for a command."""
    return newest_batch(StoredTable(table_uri(root, "batches"), BatchRow))


# What the job and replays ask for: slices of time, and common questions.


def read_table(uri: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The newest rows of a table, in no order."""
    return StoredTable(uri).read(columns, where)


# Reads a table in slices of time, so that a long range never has to be in memory as a whole.


def split_range(start_ms: int, end_ms: int, slice_ms: int) -> Iterator[tuple[int, int]]:
    """Split a range into slices of `slice_ms`: pairs (start inclusive, end exclusive). The last one may be shorter."""
    for slice_start_ms in range(start_ms, end_ms, slice_ms):
        yield slice_start_ms, min(slice_start_ms + slice_ms, end_ms)


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """The instants of the first and the last row of a time epoch. After its last comes the first of the next."""

    time_epoch: int
    first_ms: int
    last_ms: int


class TimeSlices:
    """One version of a table, read by ranges [start, end) of one of its columns of epoch milliseconds.

    A file is not opened if its statistics say that it has no row of the slice.

    Args:
        time_column: The column; it must have statistics.
        dictionaries: String columns to be read as dictionaries. If values repeat, that takes a quarter of the time.
        time_epoch: Only the rows of this time epoch; None = all.
    """

    def __init__(
        self, uri: str, time_column: str, dictionaries: Sequence[str] = (), time_epoch: int | None = None
    ) -> None:
        self.uri = uri
        self._table = StoredTable(uri)
        self._column = time_column
        self._dictionaries = dictionaries
        self._of_epoch: list[Condition] = [] if time_epoch is None else [("time_epoch", "=", time_epoch)]

    def read(self, columns: Sequence[str], start_ms: int, end_ms: int, where: Sequence[Condition] = ()) -> pa.Table:
        """The rows of a slice that meet further conditions, in no order."""
        return self._table.answer(self._select(columns, [*self._range(start_ms, end_ms), *where]))

    def distinct(self, columns: Sequence[str]) -> pa.Table:
        """The values of some columns, each combination once, in no order."""
        return self._table.answer(f"SELECT DISTINCT {column_list(columns)} FROM source")  # noqa: S608 - quoted by us

    @cached_property
    def epochs(self) -> list[EpochSpan]:
        """The time epochs of all rows, in order. Files are opened only where they have rows of several epochs."""
        files = self._table.file_statistics()
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
            rows = self._table.read(
                ["time_epoch", self._column], [(self._column, ">=", first), (self._column, "<=", last)]
            )
            ends = rows.group_by("time_epoch").aggregate([(self._column, "min"), (self._column, "max")])
            for epoch, first_ms, last_ms in zip(*(column.to_pylist() for column in ends.columns), strict=True):
                _widen(found, epoch, first_ms, last_ms)
        return [EpochSpan(epoch, *found[epoch]) for epoch in sorted(found)]

    def last_time(self, start_ms: int, end_ms: int) -> int | None:
        """The latest time of a row in a range; None if there is none."""
        return self._table.largest(self._column, self._range(start_ms, end_ms))

    def estimated_rows(self, start_ms: int, end_ms: int) -> int:
        """About how many rows a range has, estimated from the statistics of the files. No file is opened."""
        files = self._table.file_statistics()
        rows, first_ms, last_ms = (
            pc.fill_null(files[name], 0).to_numpy()
            for name in ("num_records", f"min.{self._column}", f"max.{self._column}")
        )
        overlap_ms = np.minimum(last_ms + 1, end_ms) - np.maximum(first_ms, start_ms)
        return int((rows * np.clip(overlap_ms / (last_ms + 1 - first_ms), 0, 1)).sum())

    def span(self) -> tuple[int, int] | None:
        """The first and the last instant in the table, both inclusive; None if it has no rows."""
        first_ms, last_ms = self._table.oldest_value(self._column), self._table.newest_value(self._column)
        return None if first_ms is None or last_ms is None else (first_ms, last_ms)

    def _range(self, start_ms: int, end_ms: int) -> list[Condition]:
        return [(self._column, ">=", start_ms), (self._column, "<", end_ms), *self._of_epoch]

    def _select(self, columns: Sequence[str], where: Sequence[Condition]) -> str:
        listed = (
            f"arrow_cast({column_list([name])}, 'Dictionary(Int32, Utf8)') AS {column_list([name])}"
            if name in self._dictionaries
            else column_list([name])
            for name in columns
        )
        return f"SELECT {', '.join(listed)} FROM source WHERE {predicates(where)}"  # noqa: S608 - quoted by us


def _widen(spans: dict[int, tuple[int, int]], time_epoch: int, first_ms: int, last_ms: int) -> None:
    known_first_ms, known_last_ms = spans.get(time_epoch, (first_ms, last_ms))
    spans[time_epoch] = min(known_first_ms, first_ms), max(known_last_ms, last_ms)


# The throttles that may still run: the last row of each target in `throttle_events`, if it is not a release.

_NEVER: Final = 2**62


def last_throttles(events: TableReader, since_ms: int, where: Sequence[Condition] = ()) -> pa.Table:
    """The last row of each target, if it is a throttle that ends at `since_ms` (wall clock) or later; in no order.

    `where` are further conditions on the rows that are found. Only the files from the first such throttle on are read.
    """
    runs: list[Condition] = [("throttled_until_ms", ">=", since_ms), ("action", "=", "throttle")]
    # The release of a target may end before the throttle that it ends. So from the first throttle that could run on,
    # the last row of each target counts, whatever its end.
    candidates = events.read(["publish_seq"], runs)["publish_seq"]
    first = pc.min(candidates).as_py() if len(candidates) else _NEVER
    return events.last_of_each(TARGET, "publish_seq", [("publish_seq", ">=", first)], [*runs, *where])


# The clients that use the cluster now, read from the `usage` table.

_RECENT_MS: Final = 300_000
_NONE: Final = pa.Table.from_batches([], pa.schema([("user", pa.string()), ("client_id", pa.string())]))


def live_clients(usage_uri: str) -> pa.Table:
    """Each `<user, client-id>` with usage in the last minutes, once: user and client_id, sorted by both.

    The minutes are counted back from the newest batch, so the answer is the same while the job is stopped. Rows of
    older time epochs do not count: a clock that was set back since has dated them. No rows without usage or a table.
    """
    found = _recent(usage_uri, '"user", client_id', " GROUP BY 1, 2 ORDER BY 1, 2")
    return _NONE if found is None else found


def clients_seen(usage_uri: str) -> dict[tuple[str, str], int]:
    """When each of the `live_clients` last used something: the start of its newest sample window, in epoch ms."""
    found = _recent(usage_uri, '"user", client_id, max(sample_start_ms) AS seen_ms', " GROUP BY 1, 2")
    rows = [] if found is None else found.to_pylist()
    return {(row["user"], row["client_id"]): row["seen_ms"] for row in rows}


def recent_usage(usage_uri: str, columns: Sequence[str], where: Sequence[Condition] = ()) -> pa.Table | None:
    """The rows of `usage` of the last minutes, counted as `live_clients` does; None if there are none, or no table."""
    return _recent(usage_uri, column_list(columns), "", where)


def _recent(usage_uri: str, selected: str, grouped: str, where: Sequence[Condition] = ()) -> pa.Table | None:
    try:
        table = StoredTable(usage_uri)
    except TableMissing:
        return None
    newest = table.newest_instant()
    if newest is None:
        return None
    since: Condition = ("sample_start_ms", ">=", newest.evaluated_at_ms - _RECENT_MS)
    recent = predicates([since, *of_newest_epoch(newest.time_epoch), *where])
    return table.answer(f"SELECT {selected} FROM source WHERE {recent}{grouped}")  # noqa: S608 - quoted by us
