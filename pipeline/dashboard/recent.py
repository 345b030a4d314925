"""Tables that are kept open, and their newest rows in memory, so that files are read only for what is new or old."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from numpy.typing import NDArray

from pipeline.errors import PipelineError
from pipeline.tables.address import table_missing, table_uri
from pipeline.tables.opening import FollowedTable, file_statistics, local_path, newest_in, oldest_in, reading
from pipeline.tables.port import Condition, Instant, of_newest_epoch, parse_commit_note
from pipeline.tables.queries import FILTER_FIRST, Row, answer, column_names, newest_instant_in, rows_of, rows_where
from pipeline.tables.reading import run
from schemas.throttle_record import verb

# A Delta table that is kept open at its newest version, so that a look costs nothing while nothing is new.

# A local table is asked at least so often whether the version after ours was cleaned away before we saw it.
_ASK_AGAIN_MS: Final = 5_000
_OLDEST_KEPT_MS: Final = 60_000
_SLACK: Final = 8


class WatchedTable:
    """One table. `refresh` is for one thread; reading is for any.

    Reading raises `TableMissing` if there was no table at the last `refresh`, and `TableUnreadable` for a bad file.
    """

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        self.uri = table_uri(root, name)
        self.failure: PipelineError | None = None
        """Why the last `refresh` could not see the table; None if it could."""
        self._seen_at_ms = 0
        self._followed: FollowedTable | None = None
        self._table: DeltaTable | None = None
        self._asked_at_ms = 0
        self._oldest: dict[str, tuple[int, int | None]] = {}
        self._commits: tuple[int, Mapping[tuple[str, int], int]] = (-1, {})

    @property
    def version(self) -> int | None:
        """The newest version seen; None without a table."""
        table = self._table
        return None if table is None else table.version()

    def refresh(self, now_ms: int) -> bool:
        """Whether there is a newer version than at the last call. A missing or damaged table is not an error."""
        before = self.version
        try:
            self._look(now_ms)
        except PipelineError as exc:
            self._followed = self._table = None
            self.failure = exc
        else:
            self.failure = None
        if self.version == before:
            return False
        self._seen_at_ms = now_ms
        return True

    def committed_at_ms(self) -> int | None:
        """When the newest version was committed, by the writer's clock; None without a table."""
        table = self._table
        if table is None:
            return None
        with reading(self.uri):
            return next((int(commit["timestamp"]) for commit in table.history(1)), None)

    def commits(self, most: int) -> Mapping[tuple[str, int], int]:
        """(query id, batch id) -> when the commit was made that names it, in epoch ms, of the newest commits.

        The first call reads the `most` newest commits, a later one only those that are new. 240 take 25 ms.
        """
        table, (known_version, known) = self.opened(), self._commits
        version = table.version()
        new = version - known_version
        if new:
            with reading(self.uri):
                # Some more than are new, as another thread may move the handle on meanwhile.
                history = table.history(min(new + _SLACK, most) if new > 0 else most)
            found: dict[tuple[str, int], int] = {}
            for commit in history:
                note = parse_commit_note(commit.get("userMetadata"))
                for app_id, batch_id in ({} if note is None else json.loads(note["versions"])).items():
                    found.setdefault((app_id, int(batch_id)), int(commit["timestamp"]))
            known = dict([*(known if new > 0 else {}).items(), *found.items()][-4 * most :])
            self._commits = version, known
        return known

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """Rows of the version seen last, in no order."""
        return self.query(self._rows_where(columns, where))

    def rows(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> list[Row]:
        """The same rows by column, for few of them."""
        return rows_of(answer(self.opened(), self._rows_where(columns, where), engine=FILTER_FIRST))

    def query(self, sql: str) -> pa.Table:
        """The result of a query over `source`, the version seen last."""
        return run(self.opened(), sql, engine=FILTER_FIRST)

    def newest_value(self, column: str) -> int | None:
        """The largest value of an INT64 column with statistics; None without rows or table."""
        table = self._table
        return None if table is None else newest_in(table, column)

    def newest_instant(self) -> Instant | None:
        """See `TableReader`; None without a table, too."""
        table = self._table
        return None if table is None else newest_instant_in(table)

    def oldest_value(self, column: str) -> int | None:
        """The smallest value of such a column; otherwise as `newest_value`. Looked up at most once a minute."""
        table = self._table
        if table is None:
            return None
        minute = self._seen_at_ms // _OLDEST_KEPT_MS
        known = self._oldest.get(column)
        if known is None or known[0] != minute or known[1] is None:
            self._oldest[column] = known = (minute, oldest_in(table, column))
        return known[1]

    def rows_about(self, column: str, since: int, until: int) -> int:
        """About how many rows have a value in [since, until), from the statistics of the files."""
        files = file_statistics(self.opened())
        rows = 0.0
        columns = (files.column(name).to_pylist() for name in ("num_records", f"min.{column}", f"max.{column}"))
        for count, least, most in zip(*columns, strict=True):
            if count and least is not None and most >= since and least < until:
                rows += count * (min(most + 1, until) - max(least, since)) / (most + 1 - least)
        return int(rows)

    def opened(self) -> DeltaTable:
        """The handle."""
        table = self._table
        if table is None:
            raise table_missing(self.uri)
        return table

    def _rows_where(self, columns: Sequence[str] | None, where: Sequence[Condition]) -> str:
        return rows_where(column_names(self.opened()) if columns is None else columns, where)

    def _look(self, now_ms: int) -> None:
        table = self._table
        is_due = abs(now_ms - self._asked_at_ms) >= _ASK_AGAIN_MS  # also if the clock was set back
        if table is not None and not is_due and not self._may_have_more(table):
            return
        self._followed = self._followed or FollowedTable(self.uri)
        self._table = self._followed.look()
        self._asked_at_ms = now_ms

    def _may_have_more(self, table: DeltaTable) -> bool:
        """Looks for the next entry of a local log; any other store is always read."""
        path = local_path(table)
        return path is None or Path(path, "_delta_log", f"{table.version() + 1:020d}.json").exists()


# Of decisions, and of records, what the view of a client shows.
DECISION_COLUMNS: Final = (
    "evaluated_at_ms", "quota_type", "observed", "bound", "window_ms", "raw_throttle_time_ms", "throttle_time_ms",
    "level", "mode", "applied", "decision_id", "batch_id", "quota_version",
)  # fmt: skip
RECORD_COLUMNS: Final = (
    "publish_seq", "action", "cause", "cluster", "query_id", "batch_id", "broker_id", "user", "client_id",
    "quota_type", "observed", "bound", "window_ms", "throttle_time_ms", "throttled_until_ms", "owed_ms", "tokens",
    "decision_id", "quota_version", "lateness_ms",
)  # fmt: skip


# The rows, by client. Pure. To find a client in the small files of the last minutes takes 250 ms; here it takes 1 ms.

TIME: Final = "evaluated_at_ms"
_LONGEST_MS: Final = 2_400_000
_BLOCK_ROWS: Final = 8_192


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows, and the hashes of their names: 16 bytes a row, however long the names are.

    Python's hashes have 64 bits and a secret of the process. That two of a million names have the same one happens
    once in ten million processes.
    """

    rows: pa.Table
    users: NDArray[np.int64]
    client_ids: NDArray[np.int64]
    largest_key: int


@dataclass(frozen=True, slots=True)
class RecentRows:
    """Every row of a table whose key is at `begin` or later. Immutable, so any thread may read it.

    Attributes:
        key: An INT64 column whose value does not go back from commit to commit.
        begin: Inclusive. Rows before it must be read from the table.
        blocks: The rows, oldest first; the oldest may have rows before `begin`, which do not count.
    """

    key: str
    begin: int
    blocks: tuple[_Block, ...] = ()

    def __len__(self) -> int:
        """How many rows are in memory."""
        return sum(block.rows.num_rows for block in self.blocks)

    def with_rows(self, rows: pa.Table, columns: Sequence[str], most_rows: int) -> "RecentRows":
        """These rows and newer ones, without the oldest ones where it would be too many, or more than 40 minutes.

        Args:
            columns: Which ones are kept; among them the key and `evaluated_at_ms`.
            most_rows: So many are kept, and at most 8192 more.
        """
        if not rows.num_rows:
            return self
        users, client_ids = (_hashes(rows[name]) for name in ("user", "client_id"))
        # Taken without the buffers of the query, which are several times as large.
        kept = taken(rows.select(list(columns)), np.arange(rows.num_rows))
        new = _Block(kept, users, client_ids, int(_ints(rows[self.key]).max()))
        last = self.blocks[-1] if self.blocks else None
        is_small = last is not None and last.rows.num_rows < _BLOCK_ROWS
        joined = (*self.blocks[:-1], _joined(last, new)) if last is not None and is_small else None
        begin, blocks = self.begin, joined or (*self.blocks, new)
        held, newest_ms = sum(block.rows.num_rows for block in blocks), _newest_ms(blocks[-1])
        while len(blocks) > 1 and (held > most_rows or _newest_ms(blocks[0]) < newest_ms - _LONGEST_MS):
            begin, held = blocks[0].largest_key + 1, held - blocks[0].rows.num_rows
            blocks = blocks[1:]
        return RecentRows(self.key, begin, blocks)

    def where(self, names: tuple[str | None, str | None], time: str, since_ms: int, until_ms: int) -> pa.Table:
        """The rows of a user and client-id in [since_ms, until_ms) by a column, in no order; the name None = any."""
        found = []
        for block in self.blocks:
            at_ms = _ints(block.rows[time])
            is_wanted = (at_ms >= since_ms) & (at_ms < until_ms) & (_ints(block.rows[self.key]) >= self.begin)
            for name, hashes in zip(names, (block.users, block.client_ids), strict=True):
                if name is not None:
                    is_wanted &= hashes == hash(name)
            places = np.flatnonzero(is_wanted)
            if len(places):
                found.append(taken(block.rows, places))
        if found:
            return pa.concat_tables(found)
        return self.blocks[0].rows.slice(0, 0) if self.blocks else pa.table({})


def _joined(first: _Block, second: _Block) -> _Block:
    return _Block(
        pa.concat_tables([first.rows, second.rows]).combine_chunks(),
        np.concatenate([first.users, second.users]),
        np.concatenate([first.client_ids, second.client_ids]),
        max(first.largest_key, second.largest_key),
    )


def taken(rows: pa.Table, places: NDArray[np.int64]) -> pa.Table:
    """The rows at some places, in that order."""
    # Not by pa.array, which imports pandas to look at its values.
    return rows.take(pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places.astype(np.int64))]))


def _newest_ms(block: _Block) -> int:
    return int(_ints(block.rows[TIME]).max())


def _hashes(names: "pa.ChunkedArray") -> NDArray[np.int64]:
    return np.fromiter(map(hash, names.to_pylist()), np.int64, len(names))


def _ints(column: "pa.ChunkedArray") -> NDArray[np.int64]:
    """Numbers, null as 0."""
    values = column.to_numpy()
    return np.asarray(np.nan_to_num(values) if values.dtype.kind == "f" else values, dtype=np.int64)


_NAMES: Final = ("user", "client_id")
_BATCH: Final = ("query_id", "batch_id")
_USAGE_COLUMNS: Final = ("sample_start_ms", "produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns")
_SPANS_MS: Final = (600_000, 420_000, 300_000, 240_000, 180_000, 120_000, 60_000, 30_000, 10_000)
# About 11 MB of usage, and 5 MB of each other table.
_MOST_USAGE: Final = 150_000
_MOST_THROTTLES: Final = 30_000
_LONGER: Final = 8
"""Each further step back reads a range of older records that is so many times as long."""
_PARTS: Final = 30
"""In which the first rows are read: all at once they would take several times the memory in which they are kept."""


class RecentTable:
    """A table with a key, of which the newest rows are in memory. `follow` is for one thread; reading is for any.

    Args:
        key: A column with statistics that has the order in which the job wrote: within a time epoch no commit has a
            smaller one than the commit before it, and rows of one batch with the same one are in one commit. Only rows
            of the newest epoch are in memory. `publish_seq` continues from epoch to epoch.
        most_rows: So many are kept, and some thousand more.
        spans: How far back from the newest key the first look reads: the first with at most `most_rows`.
    """

    def __init__(
        self, table: WatchedTable, key: str, columns: Sequence[str], most_rows: int, spans: Sequence[int]
    ) -> None:
        self._table = table
        self._key = key
        self._kept = tuple(dict.fromkeys((*columns, key, TIME)))
        self._most_rows = most_rows
        self._spans = spans
        self._seen_batches: set[tuple[Any, ...]] = set()
        self._newest_key: int | None = None
        self.time_epoch = 0
        """That of the rows that `follow` takes; 0 for a key that continues from epoch to epoch."""
        self.keeps = False
        """Whether rows are kept, which `follow` otherwise only passes on. To be set before the first `follow`."""
        self.held: RecentRows | None = None
        """What is in memory; None before the first `follow`, and if nothing is to be kept."""

    def follow(self, also: Sequence[str] = ()) -> pa.Table | None:
        """Take the rows that came since the last call. If it raises, the next call goes on where this one began.

        Returns:
            Those rows; None at the first call, which may take many, at the first of a time epoch, and for a table
            without rows.
        """
        newest = self._newest()
        if newest is None:
            return None
        time_epoch, newest_key = newest
        is_behind = self.keeps and self.held is None
        is_new = time_epoch != self.time_epoch
        if self._newest_key is None or is_new or newest_key < self._newest_key or is_behind:
            self.time_epoch = time_epoch
            self._begin(newest_key)
            return None
        rows = self._unseen(self._read([(self._key, ">=", self._newest_key)], also), self._newest_key)
        if self.held is not None:
            self.held = self.held.with_rows(rows, self._kept, self._most_rows)
        self._note(rows)
        return rows

    def rows(
        self, columns: Sequence[str], client: tuple[str | None, str | None], since_ms: int, until_ms: int
    ) -> list[dict[str, Any]]:
        """The rows of a client that were evaluated in [since_ms, until_ms), in no order. Raises as `WatchedTable`.

        Of all clients with the names None.
        """
        self._table.opened()
        held = self.held
        where = [*_of_client(client), (TIME, ">=", since_ms), (TIME, "<", until_ms)]
        if held is None:
            return self._table.rows(columns, where)
        recent = held.where(client, TIME, since_ms, until_ms)
        found: list[dict[str, Any]] = recent.select(list(columns)).to_pylist() if recent.num_rows else []
        if self._key == TIME and since_ms >= held.begin and not self.has_older_epochs:
            return found
        older = self._table.rows(columns, [*where, *of_newest_epoch(self.time_epoch), (self._key, "<", held.begin)])
        before: list[Condition] = [("time_epoch", "in", (None, *range(self.time_epoch)))]
        return [*found, *older, *(self._table.rows(columns, [*where, *before]) if self.has_older_epochs else [])]

    def stored(
        self,
        columns: Sequence[str],
        client: tuple[str | None, str | None],
        keys: tuple[int, int],
        decision_id: str,
    ) -> list[Row] | None:
        """Rows of a decision with a key in [first, last) from the table, in no order; None if it has no older ones."""
        oldest = self._table.oldest_value(self._key)
        if oldest is None or oldest >= keys[1]:
            return None
        where: list[Condition] = [(self._key, ">=", keys[0]), (self._key, "<", keys[1])]
        return self._table.rows(columns, [*where, *_of_client(client), ("decision_id", "=", decision_id)])

    @property
    def has_older_epochs(self) -> bool:
        """Whether the table may have rows of older time epochs, none of which are in memory."""
        return self.time_epoch > 0 and (self._table.oldest_value("time_epoch") or 0) < self.time_epoch

    def _newest(self) -> tuple[int, int] | None:
        if self._key == TIME:
            return self._table.newest_instant()
        newest_key = self._table.newest_value(self._key)
        return None if newest_key is None else (0, newest_key)

    def _begin(self, newest_key: int) -> None:
        self.held, self._newest_key = None, None
        begin = newest_key - self._span(newest_key) if self.keeps else newest_key
        held, step = RecentRows(self._key, begin), max(-(-(newest_key + 1 - begin) // _PARTS), 1)
        for since in range(begin, newest_key + 1, step):
            rows = self._read([(self._key, ">=", since), (self._key, "<", since + step)])
            held = held.with_rows(rows, self._kept, self._most_rows)
            self._note(rows)
        # Not before all of it is read: until then a request must read these rows from the table.
        self.held = held if self.keeps else None

    def _span(self, newest_key: int) -> int:
        sizes = ((span, self._table.rows_about(self._key, newest_key - span, newest_key + 1)) for span in self._spans)
        return next((span for span, rows in sizes if rows <= self._most_rows), self._spans[-1])

    def _read(self, where: Sequence[Condition], also: Sequence[str] = ()) -> pa.Table:
        columns = tuple(dict.fromkeys((*_NAMES, *_BATCH, *self._kept, *also)))
        return self._table.read(columns, [*where, *of_newest_epoch(self.time_epoch)])

    def _unseen(self, rows: pa.Table, newest_key: int) -> pa.Table:
        """These rows without those that were seen: of the newest key so far, and of a batch that was seen."""
        edge = np.flatnonzero(rows[self._key].to_numpy() == newest_key)
        if not len(edge):
            return rows
        of_edge = taken(rows, edge)
        batches = zip(*(of_edge[name].to_pylist() for name in _BATCH), strict=True)
        seen = [place for place, batch in zip(edge, batches, strict=True) if batch in self._seen_batches]
        return taken(rows, np.delete(np.arange(rows.num_rows), seen)) if seen else rows

    def _note(self, rows: pa.Table) -> None:
        """Remember up to where rows were seen."""
        if not rows.num_rows:
            return
        keys = rows[self._key].to_numpy()
        newest_key = int(keys.max())
        if newest_key != self._newest_key:
            self._seen_batches = set()
        newest = taken(rows, np.flatnonzero(keys == newest_key))
        self._seen_batches |= {*zip(*(newest[name].to_pylist() for name in _BATCH), strict=True)}
        self._newest_key = newest_key


def _of_client(names: tuple[str | None, str | None]) -> list[Condition]:
    return [(column, "=", name) for column, name in zip(_NAMES, names, strict=True) if name is not None]


@dataclass(frozen=True, slots=True)
class RecentTables:
    """The tables that get a file with every micro-batch, and that the view of a client reads."""

    usage: RecentTable
    decisions: RecentTable
    events: RecentTable

    @classmethod
    def of(cls, tables: Mapping[str, WatchedTable]) -> "RecentTables":
        """Those of these tables, by name."""
        seq = (_MOST_THROTTLES // 2,)
        return cls(
            RecentTable(tables["usage"], TIME, _USAGE_COLUMNS, _MOST_USAGE, _SPANS_MS),
            RecentTable(tables["decisions"], TIME, DECISION_COLUMNS, _MOST_THROTTLES, _SPANS_MS),
            RecentTable(tables["throttle_events"], "publish_seq", RECORD_COLUMNS, _MOST_THROTTLES, seq),
        )

    def keep(self) -> None:
        """See `RecentTable.keeps`."""
        for table in (self.usage, self.decisions, self.events):
            table.keeps = True

    def records_of(self, client: tuple[str | None, str | None], decision_id: str | None = None) -> list[Row]:
        """The records of a decision on a client, in order; None = of its newest throttle.

        [] if none of them is in memory, or if the first one is not kept any more.
        """
        held = self.events.held
        rows = [] if held is None else held.where(client, held.key, held.begin, sys.maxsize).to_pylist()
        rows.sort(key=lambda row: int(row["publish_seq"]))
        wanted: Any = rows[-1]["decision_id"] if rows and decision_id is None else decision_id
        found = [row for row in rows if row["decision_id"] == wanted]
        until, step = 0 if held is None else held.begin, _MOST_THROTTLES
        while found and verb(found[0]) != "throttle":
            older = self.events.stored((*RECORD_COLUMNS, TIME), client, (until - step, until), wanted)
            if older is None:
                return []
            found = [*sorted(older, key=lambda row: int(row["publish_seq"])), *found]
            until, step = until - step, step * _LONGER
        return found


# Sums of usage by step. Pure.


class Wanted(NamedTuple):
    """A sum of columns of the usage of a user and client-id; None = any."""

    name: str
    names: tuple[str | None, str | None]
    columns: Sequence[str]


def recent_sums(
    held: RecentRows, since_ms: int, until_ms: int, step_ms: int, wanted: Sequence[Wanted]
) -> Mapping[str, list[int]]:
    """The sums of rows of `usage` that begin in [since_ms, until_ms): `step`, each once, and each sum by its name."""
    of_names = {one.names: held.where(one.names, "sample_start_ms", since_ms, until_ms) for one in wanted}
    steps_of = {names: _ints(rows["sample_start_ms"]) // step_ms for names, rows in of_names.items() if rows.num_rows}
    if not steps_of:
        return {}
    steps = np.unique(np.concatenate([*steps_of.values()]))
    sums = {}
    for one in wanted:
        amounts = np.zeros(len(steps), np.int64)
        if one.names in steps_of:
            places = np.searchsorted(steps, steps_of[one.names])
            for column in one.columns:
                np.add.at(amounts, places, _ints(of_names[one.names][column]))
        sums[one.name] = amounts.tolist()
    return {"step": steps.tolist(), **sums}
