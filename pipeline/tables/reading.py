"""Reads tables through delta-rs as the job and replays need them: slices of time, and common questions."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import TableMissing
from pipeline.tables.port import TARGET, Condition, TableReader, of_newest_epoch
from pipeline.tables.queries import StoredTable, column_list, predicates
from quota.replay import EpochSpan


def read_table(uri: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The newest rows of a table, in no order."""
    return StoredTable(uri).read(columns, where)


# Reads a table in slices of time, so that a long range never has to be in memory as a whole.


def split_range(start_ms: int, end_ms: int, slice_ms: int) -> Iterator[tuple[int, int]]:
    """Split a range into slices of `slice_ms`: pairs (start inclusive, end exclusive). The last one may be shorter."""
    for slice_start_ms in range(start_ms, end_ms, slice_ms):
        yield slice_start_ms, min(slice_start_ms + slice_ms, end_ms)


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
_NONE: Final = pa.schema([("user", pa.string()), ("client_id", pa.string())]).empty_table()


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
        table = StoredTable(usage_uri)
    except TableMissing:
        return None
    newest = table.newest_instant()
    if newest is None:
        return None
    since: Condition = ("sample_start_ms", ">=", newest.evaluated_at_ms - _RECENT_MS)
    recent = predicates([since, *of_newest_epoch(newest.time_epoch)])
    return table.answer(f"SELECT {selected} FROM source WHERE {recent}{grouped}")  # noqa: S608 - quoted by us
