"""Stored usage in the batches it is decided in, what a replay of them found, and the throttles that really happened."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.address import table_uri
from pipeline.tables.reading import TimeSlices
from quota.arrays import Ids, Ints
from quota.entity import REQUEST
from quota.replay import EpochSpan, Evaluation, in_batches
from quota.usage import Usage
from schemas.arrow import arrow_schema
from schemas.names import ClientKey
from schemas.throttle_record import Target, ThrottleEventRow

if TYPE_CHECKING:
    from pipeline.replay.request import ReplayRequest

Source = Literal["usage_by_second", "usage"]
_BYTES: Final = ("produced_bytes", "fetched_bytes")
_TIMES: Final = ("io_time_ns", "network_time_ns")
_NAMES: Final = ("broker_id", "user", "client_id")
_EVER: Final = 2**62


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


class Slice(NamedTuple):
    """A slice of a time epoch: start inclusive, end exclusive."""

    start_ms: int
    end_ms: int
    time_epoch: int


class UsageReader:
    """Reads the usage of a request in batches, in the order they are decided, and numbers the clients."""

    def __init__(self, request: "ReplayRequest") -> None:
        self._request = request
        self._time = "second_start_ms" if request.source == "usage_by_second" else "evaluated_at_ms"
        self.table = request.usage or TimeSlices(table_uri(request.root, request.source), self._time, _NAMES)
        self.epochs = self.table.epochs
        self._by_broker = request.scope == "broker"
        self._names = _NAMES if self._by_broker else _NAMES[1:]
        # Request times that no quota bounds are null: reading them takes time.
        self._reads_times = any(quota.bounds[REQUEST] is not None for quota in request.all_quotas())
        self._w = request.settings.engine.sample_window_ms
        self.numbers: dict[ClientKey, int] = {}
        """The number of every client known so far, in the order of the numbers."""

    def number_of(self, client: ClientKey) -> int:
        """The number of a client, also if no usage of it was read so far."""
        return self.numbers.setdefault(client, len(self.numbers))

    def read(self, wanted: Slice) -> Iterator[UsageBatch]:
        """The batches of a slice; slices are read in the order of epoch and time."""
        rows = self._rows(wanted)
        batches = self._seconds if self._request.source == "usage_by_second" else self._batches
        return batches(rows, wanted.time_epoch) if rows.num_rows else iter(())

    def _rows(self, wanted: Slice) -> pa.Table:
        columns = [self._time, *self._names, *_BYTES, "last_event_ms", *(_TIMES if self._reads_times else ())]
        if self._request.source == "usage":
            columns += ["time_epoch", "query_id", "batch_id", "quota_version", "sample_start_ms"]
        # One dictionary for all chunks, so that the batches are slices of one array.
        where = [("time_epoch", "=", wanted.time_epoch)] if len(self.epochs) > 1 else []
        rows = self.table.read(columns, wanted.start_ms, wanted.end_ms, where).unify_dictionaries()
        for name in () if self._reads_times else _TIMES:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
        return rows

    def _batches(self, rows: pa.Table, time_epoch: int) -> Iterator[UsageBatch]:
        rows, first = in_batches(rows)
        facts = rows.select(["evaluated_at_ms", "quota_version", "query_id", "batch_id"]).take(pa.array(first))
        at_ms = rows["evaluated_at_ms"].to_numpy()
        for piece, row in zip(self._pieces(rows, first, at_ms), facts.to_pylist(), strict=True):
            is_old = (row["query_id"], row["batch_id"]) in self._request.old
            yield UsageBatch(Evaluation(**row, time_epoch=time_epoch), *piece, is_old)

    def _seconds(self, rows: pa.Table, time_epoch: int) -> Iterator[UsageBatch]:
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
            yield UsageBatch(Evaluation("", 0, instant, -1, time_epoch), *piece)

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
        return np.array([self.number_of(client) for client in clients], np.int64)[of_row]


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


# How long clients were really throttled in a range, by the stored rows of `decisions` and `throttle_events`.

_LONGEST_THROTTLE_MS: Final = 3_600_000
_THROTTLE_RECORD: Final = (
    *("publish_seq", "action", "quota_type", "except_client_ids"),
    *("time_epoch", "evaluated_at_ms", "throttle_time_ms"),
)


class Span(NamedTuple):
    """A time in which a target was held: start inclusive, end exclusive. `excepted`: the client-ids that were not."""

    time_epoch: int
    start_ms: int
    end_ms: int
    excepted: Collection[str] = ()


def held_ms(spans: Iterable[Span]) -> int:
    """How long at least one of these lasted."""
    by_epoch: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        by_epoch[span.time_epoch].append((span.start_ms, span.end_ms))
    return sum(end - start for of_epoch in by_epoch.values() for start, end in joined_spans(of_epoch))


class HeldTimes:
    """How long each client was held: by throttles of its own, and by those of its user that do not except it."""

    def __init__(self, spans: Mapping[Target, Sequence[Span]]) -> None:
        self._own: dict[tuple[str | None, ...], Sequence[Span]] = {}
        self._of_user: dict[tuple[str, str], list[Span]] = defaultdict(list)
        for target, of_target in spans.items():
            if target.client_id is None:
                self._of_user[target[:2]] += of_target
            else:
                self._own[target[:3]] = of_target
        self._excepted = {
            user: {name for span in of_user for name in span.excepted} for user, of_user in self._of_user.items()
        }
        self._whole_ms = {user: held_ms(of_user) for user, of_user in self._of_user.items()}

    def of(self, client: ClientKey) -> int:
        """The time of one client, in ms."""
        user, own = client[:2], self._own.get(client, ())
        if not own and client.client_id not in self._excepted.get(user, ()):
            return self._whole_ms.get(user, 0)
        of_user = self._of_user.get(user, ())
        return held_ms([*own, *(span for span in of_user if client.client_id not in span.excepted)])


def recorded_outcomes(
    root: str, since_ms: int, until_ms: int, sample_window_ms: int, clients: Iterable[ClientKey] = ()
) -> dict[ClientKey, Outcome]:
    """For each client the sample windows in which it was over quota, and the time it was held, renewals included.

    `decisions` keeps at most 100 clients of a sensor: further ones have no sample windows. `deferred_bytes` is always
    0: how many bytes a client held back is not known. `until_ms` is exclusive.

    * `clients`: All that are known: a record of a user names none of its clients.
    """
    decisions = TimeSlices(table_uri(root, "decisions"), "evaluated_at_ms")
    columns = [*_NAMES, "time_epoch", "evaluated_at_ms", "mode", "throttle_time_ms"]
    rows = decisions.read(columns, since_ms, until_ms)
    windows: dict[ClientKey, set[tuple[int, int]]] = defaultdict(set)
    of_clients = pc.and_(pc.is_valid(rows["client_id"]), pc.equal(rows["mode"], "enforce"))
    for row in rows.filter(pc.and_(of_clients, pc.greater(rows["throttle_time_ms"], 0))).to_pylist():
        windows[ClientKey.of(row)].add((row["time_epoch"], row["evaluated_at_ms"] // sample_window_ms))
    epochs = TimeSlices(table_uri(root, "batches"), "evaluated_at_ms").epochs
    by_target: dict[Target, list[dict[str, Any]]] = defaultdict(list)
    for row in _throttle_events(root, since_ms, until_ms, epochs).sort_by("publish_seq").to_pylist():
        by_target[Target.of(row)].append(row)
    times = HeldTimes({one: [*held_spans(rows, since_ms, until_ms, epochs)] for one, rows in by_target.items()})
    named = (ClientKey(broker, user, name) for broker, user, name, _ in by_target if name is not None)
    return {one: Outcome(len(windows.get(one, ())), times.of(one)) for one in {*windows, *named, *clients}}


def _throttle_events(root: str, since_ms: int, until_ms: int, epochs: Sequence[EpochSpan]) -> pa.Table:
    """The records that say who was throttled in a range: of the range, and of before it or before an epoch in it."""
    events = TimeSlices(table_uri(root, "throttle_events"), "evaluated_at_ms")
    columns = [*_NAMES, *_THROTTLE_RECORD]
    ends = [(one.last_ms - _LONGEST_THROTTLE_MS, one.last_ms + _LONGEST_THROTTLE_MS) for one in epochs[:-1]]
    spans = joined_spans([(since_ms - _LONGEST_THROTTLE_MS, until_ms), *ends])
    return pa.concat_tables([events.read(columns, *span) for span in spans])


def last_records(root: str, until_ms: int) -> pa.Table:
    """The last row of `throttle_events` of each target up to an instant; of the hour before it."""
    events = TimeSlices(table_uri(root, "throttle_events"), "evaluated_at_ms")
    rows = events.read(arrow_schema(ThrottleEventRow).names, until_ms - _LONGEST_THROTTLE_MS, until_ms + 1)
    of_user = pc.if_else(pc.is_null(rows["client_id"]), rows["quota_type"], None)
    targets = rows.append_column("of_user", of_user).group_by([*_NAMES, "of_user"])
    last = targets.aggregate([("publish_seq", "max")])["publish_seq_max"]
    return rows.filter(pc.is_in(rows["publish_seq"], value_set=last.combine_chunks()))


def joined_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of time in order, as (start inclusive, end exclusive), without empty ones; those that touch are one."""
    joined: list[tuple[int, int]] = []
    for start_ms, end_ms in sorted(span for span in spans if span[0] < span[1]):
        if joined and start_ms <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end_ms)
        else:
            joined.append((start_ms, end_ms))
    return joined


def held_spans(
    events: Iterable[Mapping[str, Any]], since_ms: int, until_ms: int, epochs: Sequence[EpochSpan] = ()
) -> Iterator[Span]:
    """When one target was held in a range.

    The throttle of a record lasts until its end or until the next record of the target, whichever comes first: the
    next record is either another throttle, which replaces it, or a release. A record counts from the instant it was
    evaluated at, which is on the clock of the usage, as everything in a replay is. What is left of a throttle when a
    time epoch ends goes on where the next one begins.

    Args:
        events: Its rows of `throttle_events`, in the order of `publish_seq`.
        epochs: The time epochs, in order.
    """
    last: Mapping[str, Any] | None = None
    for event in (*events, None):
        if last is not None and last["action"] == "throttle":
            next_epoch, next_ms = (_EVER, _EVER) if event is None else (event["time_epoch"], event["evaluated_at_ms"])
            for time_epoch, from_ms, to_ms in _throttled_spans(last, next_epoch, epochs):
                cut_ms = min(to_ms, next_ms) if time_epoch == next_epoch else to_ms
                first_ms, end_ms = max(from_ms, since_ms), min(cut_ms, until_ms)
                if first_ms < end_ms:
                    yield Span(time_epoch, first_ms, end_ms, last["except_client_ids"] or ())
        last = event


def _throttled_spans(
    event: Mapping[str, Any], last_epoch: int, epochs: Sequence[EpochSpan]
) -> Iterator[tuple[int, int, int]]:
    """The time of a throttle by time epochs, as (epoch, from, to), up to an epoch."""
    time_epoch, from_ms = event["time_epoch"], event["evaluated_at_ms"]
    to_ms = from_ms + event["throttle_time_ms"]
    for ended, begun in pairwise(epochs):
        if time_epoch == ended.time_epoch < last_epoch and to_ms > ended.last_ms:
            # A check may be after the last batch of its epoch.
            end_ms = max(from_ms, ended.last_ms)
            yield time_epoch, from_ms, end_ms
            time_epoch, from_ms, to_ms = begun.time_epoch, begun.first_ms, begun.first_ms + to_ms - end_ms
    if time_epoch <= last_epoch:
        yield time_epoch, from_ms, to_ms
