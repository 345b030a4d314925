"""Stored usage in the batches it is decided in, what a replay of them found, and the throttles that really happened."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.port import table_uri
from pipeline.tables.queries import TimeSlices
from quota.arrays import Ids, Ints
from quota.decisions import Evaluation, in_batches
from quota.entity import REQUEST
from quota.usage import IN_GAP, Usage
from schemas.names import ClientKey
from schemas.throttle_record import Target

if TYPE_CHECKING:
    from pipeline.replay.request import ReplayRequest

Source = Literal["usage_by_second", "usage"]
_BYTES: Final = ("produced_bytes", "fetched_bytes")
_TIMES: Final = ("io_time_ns", "network_time_ns")
_NAMES: Final = ("broker_id", "user", "client_id")
VERSIONS: Final = ("quota_version", "tenants_version")
"""The columns that say with which versions a batch was decided."""


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """Usage that is decided together, at one instant.

    Attributes:
        evaluation: Query "", batch 0 and quota version −1 if the table does not store them.
        clients: The number of the client of each row.
        used_bytes: Produced and fetched bytes of each row.
        is_old: It was too old to throttle by when the job collected it.
    """

    evaluation: Evaluation
    usage: Usage
    clients: Ids
    used_bytes: Ints
    is_old: bool = False


class UsageReader:
    """Reads the usage of a request in batches, in the order they are decided, and numbers the clients."""

    def __init__(self, request: "ReplayRequest") -> None:
        self._request = request
        self._time = "second_start_ms" if request.source == "usage_by_second" else "evaluated_at_ms"
        uri = table_uri(request.root, request.source)
        self.table = TimeSlices(uri, self._time, _NAMES, time_epoch=request.time_epoch)
        self._by_broker = request.scope == "broker"
        self._names = _NAMES if self._by_broker else _NAMES[1:]
        # Request times that no quota bounds are null: reading them takes time.
        self._reads_times = request.has_bounds(REQUEST)
        self._w = request.settings.engine.sample_window_ms
        self.numbers: dict[ClientKey, int] = {}
        """The number of every client known so far, in the order of the numbers."""

    def read(self, start_ms: int, end_ms: int) -> Iterator[UsageBatch]:
        """The batches of a slice of time, its end exclusive; slices are read in their order."""
        rows = self._rows(start_ms, end_ms)
        batches = self._seconds if self._request.source == "usage_by_second" else self._batches
        return batches(rows) if rows.num_rows else iter(())

    def _rows(self, start_ms: int, end_ms: int) -> pa.Table:
        columns = [self._time, *self._names, *_BYTES, "last_event_ms", *(_TIMES if self._reads_times else ())]
        if self._request.source == "usage":
            columns += ["time_epoch", "query_id", "batch_id", *VERSIONS, "sample_start_ms", IN_GAP]
        # One dictionary for all chunks, so that the batches are slices of one array.
        rows = self.table.read(columns, start_ms, end_ms).unify_dictionaries()
        for name in () if self._reads_times else _TIMES:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
        return rows

    def _batches(self, rows: pa.Table) -> Iterator[UsageBatch]:
        rows, first = in_batches(rows)
        facts = rows.select(["evaluated_at_ms", *VERSIONS, "query_id", "batch_id"]).take(pa.array(first))
        at_ms = rows["evaluated_at_ms"].to_numpy()
        for piece, row in zip(self._pieces(rows, first, at_ms), facts.to_pylist(), strict=True):
            is_old = (row["query_id"], row["batch_id"]) in self._request.old
            yield UsageBatch(Evaluation(**row), *piece, is_old)

    def _seconds(self, rows: pa.Table) -> Iterator[UsageBatch]:
        start_ms = rows["second_start_ms"].to_numpy()
        if (np.diff(start_ms) < 0).any():
            order = np.argsort(start_ms, kind="stable")
            rows, start_ms = rows.take(pa.array(order)), start_ms[order]
        rows = rows.combine_chunks()
        sample_start_ms = pa.array(start_ms // self._w * self._w)
        rows = rows.set_column(0, "sample_start_ms", sample_start_ms)
        first = np.flatnonzero(np.diff(start_ms, prepend=-1))
        at_ms = np.maximum.reduceat(rows["last_event_ms"].to_numpy(), first)
        evaluated_at_ms = np.repeat(at_ms, np.diff(first, append=rows.num_rows))
        for piece, instant in zip(self._pieces(rows, first, evaluated_at_ms), at_ms.tolist(), strict=True):
            yield UsageBatch(Evaluation("", 0, instant, -1), *piece)

    def _pieces(self, rows: pa.Table, first: Ints, evaluated_at_ms: Ints) -> Iterator[tuple[Usage, Ids, Ints]]:
        """The rows from each of these on, up to the next one, and the client and the bytes of each.

        `evaluated_at_ms` has the instant of each row.
        """
        ends = np.append(first, rows.num_rows)
        usage, clients = Usage.read(rows, self._by_broker, self._w, evaluated_at_ms), self._numbered(rows)
        produced, fetched, _ = usage.measures
        used_bytes = produced.values + fetched.values
        for begin, end in pairwise(ends.tolist()):
            yield usage.rows(begin, end), clients[begin:end], used_bytes[begin:end]

    def _numbered(self, rows: pa.Table) -> Ints:
        names = self._names
        local = np.zeros(rows.num_rows, np.int64)
        for name in names:
            column = rows[name].combine_chunks()
            local = local * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
        _, first, of_row = np.unique(local, return_index=True, return_inverse=True)
        found = rows.select(names).take(pa.array(first)).to_pylist()
        clients = (ClientKey(row.get("broker_id", ""), row["user"], row["client_id"]) for row in found)
        numbers = [self.numbers.setdefault(client, len(self.numbers)) for client in clients]
        return np.array(numbers, np.int64)[of_row]


# Results of a replay: how long each client would be held, and its usage.


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the throttles of a replay affect one client.

    Attributes:
        windows: Sample windows in which it was over quota when it was decided.
        throttle_ms: How long it would have been held.
        deferred_bytes: Bytes it used while it would have been held.
    """

    windows: int = 0
    throttle_ms: int = 0
    deferred_bytes: int = 0


@dataclass(slots=True)
class ReplayResult:
    """What a replay found.

    Attributes:
        outcomes: Of every client that sent usage or was held.
        evaluations: How many batches of the range were decided.
        rows: How many rows of usage were read, those of the warm-up included.
    """

    outcomes: dict[ClientKey, Outcome] = field(default_factory=dict)
    evaluations: int = 0
    rows: int = 0


# How long clients are held, by records of throttles: those of a replay, or those that were stored.

_LONGEST_THROTTLE_MS: Final = 3_600_000
_RECORD: Final = (
    *("publish_seq", "action", "quota_type", "except_client_ids"),
    *("evaluated_at_ms", "throttle_time_ms"),
)


class Span(NamedTuple):
    """A time in which a target was held: start inclusive, end exclusive. `excepted`: the client-ids that were not."""

    start_ms: int
    end_ms: int
    excepted: Collection[str] = ()


class HeldSpans:
    """When targets are held, by their records in order; the spans of a target follow one another.

    A throttle lasts until its end or until the next record of its target, which is another throttle, in its place, or
    a release. It counts from the instant the record was evaluated at, on the clock of the usage, as all of a replay.
    """

    def __init__(self) -> None:
        self.spans: dict[Target, list[Span]] = defaultdict(list)

    def hear(self, target: Target, at_ms: int, throttle_time_ms: int | None, excepted: Collection[str] = ()) -> None:
        """Take in a record; None for a release."""
        spans = self.spans[target]
        end_ms = at_ms if throttle_time_ms is None else at_ms + throttle_time_ms
        if spans and spans[-1].end_ms >= at_ms:
            start_ms, _, last_excepted = spans[-1]
            if throttle_time_ms is None or last_excepted == excepted:
                spans[-1] = Span(start_ms, end_ms, last_excepted)
                return
            spans[-1] = Span(start_ms, at_ms, last_excepted)
        if throttle_time_ms is not None:
            spans.append(Span(at_ms, end_ms, excepted))

    def hear_row(self, row: Mapping[str, Any], at_ms: int) -> None:
        """Take in a record as a row of `throttle_events`."""
        time_ms = row["throttle_time_ms"] if row["action"] == "throttle" else None
        self.hear(Target.of(row), at_ms, time_ms, tuple(row["except_client_ids"] or ()))


class HeldTimes:
    """The times in a range in which each client is held: by throttles of its own, and by those of its user.

    A throttle of its user does not count while the client is among its exceptions. `until_ms` is exclusive.
    """

    def __init__(self, holds: HeldSpans, since_ms: int, until_ms: int) -> None:
        self._range = since_ms, until_ms
        self._own: dict[tuple[str | None, ...], list[Span]] = {}
        self._of_user: dict[tuple[str, str], list[Span]] = defaultdict(list)
        for target, spans in holds.spans.items():
            if target.client_id is None:
                self._of_user[target[:2]] += self._within(spans)
            else:
                self._own[target[:3]] = [*self._within(spans)]
        self._excepted = {
            user: {name for span in of_user for name in span.excepted} for user, of_user in self._of_user.items()
        }
        self._whole = {user: _joined(of_user) for user, of_user in self._of_user.items()}

    def of(self, client: ClientKey) -> list[tuple[int, int]]:
        """The times of one client, in order, apart from one another."""
        user, own = client[:2], self._own.get(client, [])
        if not own and client.client_id not in self._excepted.get(user, ()):
            return self._whole.get(user, [])
        of_user = self._of_user.get(user, ())
        return _joined([*own, *(span for span in of_user if client.client_id not in span.excepted)])

    def ms_of(self, client: ClientKey) -> int:
        """How long it is held, in ms."""
        return sum(end_ms - start_ms for start_ms, end_ms in self.of(client))

    def _within(self, spans: list[Span]) -> Iterator[Span]:
        since_ms, until_ms = self._range
        begin = bisect_right(spans, since_ms, key=lambda span: span.end_ms)
        cut = (Span(max(span.start_ms, since_ms), min(span.end_ms, until_ms), span.excepted) for span in spans[begin:])
        return (span for span in cut if span.start_ms < span.end_ms)


def _joined(spans: Iterable[Span]) -> list[tuple[int, int]]:
    """Spans in order; those that touch are one."""
    joined: list[tuple[int, int]] = []
    for start_ms, end_ms, _ in sorted(spans, key=lambda span: span[:2]):
        if joined and start_ms <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end_ms)
        else:
            joined.append((start_ms, end_ms))
    return joined


def recorded_outcomes(request: "ReplayRequest", clients: Iterable[ClientKey] = ()) -> dict[ClientKey, Outcome]:
    """What happened to each client in a range: the sample windows in which it was over quota, and the time it was held.

    `decisions` keeps at most 100 clients of a sensor: further ones have no sample windows. `deferred_bytes` is always
    0: how many bytes a client held back is not known.

    * `clients`: All that are known: a record of a user names none of its clients.
    """
    since_ms, until_ms = request.since_ms, request.until_ms
    decisions, events = (
        TimeSlices(table_uri(request.root, name), "evaluated_at_ms", time_epoch=request.time_epoch)
        for name in ("decisions", "throttle_events")
    )
    rows = decisions.read([*_NAMES, "evaluated_at_ms", "mode", "throttle_time_ms"], since_ms, until_ms)
    windows: dict[ClientKey, set[int]] = defaultdict(set)
    of_clients = pc.and_(pc.is_valid(rows["client_id"]), pc.equal(rows["mode"], "enforce"))
    for row in rows.filter(pc.and_(of_clients, pc.greater(rows["throttle_time_ms"], 0))).to_pylist():
        windows[ClientKey.of(row)].add(row["evaluated_at_ms"] // request.settings.engine.sample_window_ms)
    records, holds = events.read([*_NAMES, *_RECORD], since_ms - _LONGEST_THROTTLE_MS, until_ms), HeldSpans()
    for row in records.sort_by("publish_seq").to_pylist():
        holds.hear_row(row, row["evaluated_at_ms"])
    times = HeldTimes(holds, since_ms, until_ms)
    named = (ClientKey(broker, user, name) for broker, user, name, _ in holds.spans if name is not None)
    return {one: Outcome(len(windows.get(one, ())), times.ms_of(one)) for one in {*windows, *named, *clients}}
