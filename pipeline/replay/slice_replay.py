"""One slice of a range: decided on its own, then counted together with the holds of the slices before it.

Deciding takes most of the time and needs only the usage of the slice and of the (N + 1) · w before it, so slices are
decided in any order and in any process. Counting needs the ends of earlier holds: how long a client is held at the end
of a slice is the latest end of its decisions so far. It follows from the decisions alone, without counting.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.outcome import BINS, Outcome, ReplayResult
from pipeline.replay.request import ReplayRequest, Slice
from pipeline.replay.usage_batches import Client, UsageBatch, UsageReader
from pipeline.throttle.assembly import new_engine
from quota.engine import QuotaEngine
from quota.holds import Holds

Ints = NDArray[np.int64]

Held = dict[Client, int]
"""Until when clients are held, in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Consecutive groups of rows, one for each decided instant.

    Attributes:
        ends: Where each group ends.
        columns: The rows of all groups.
    """

    ends: Ints
    columns: tuple[Ints, ...]

    @classmethod
    def joined(cls, groups: Sequence[tuple[Ints, ...]], width: int) -> Self:
        """From the columns of each group; each group has `width` columns."""
        ends = np.cumsum([len(group[0]) for group in groups], dtype=np.int64)
        nothing = np.zeros(0, np.int64)
        return cls(ends, tuple(np.concatenate([nothing, *(group[i] for group in groups)]) for i in range(width)))

    def __iter__(self) -> Iterator[tuple[Ints, ...]]:
        """The columns of each group."""
        start = 0
        for end in self.ends.tolist():
            yield tuple(column[start:end] for column in self.columns)
            start = end


@dataclass(frozen=True, slots=True)
class DecidedSlice:
    """What was decided in a slice, instant by instant.

    Attributes:
        clients: The clients, in the order of their numbers.
        at_ms: The instants.
        usage: Of each instant: number of the client, when it was used, bytes.
        throttles: For each replay, of each instant: number of the client, X before the cap.
    """

    clients: tuple[Client, ...]
    at_ms: Ints
    usage: Groups
    throttles: tuple[Groups, ...]


def decide(request: ReplayRequest, part: Slice) -> DecidedSlice:
    """Decide a slice once for each replay, after the warm-up before it. The usage is read once for all replays.

    The engines keep no token buckets: only first decisions are needed, and a bucket never changes one.
    """
    settings = request.settings.model_copy(update={"carry_debt": False})
    engines = [new_engine(settings, request.scope) for _ in request.quotas]
    by_broker = request.scope == "broker"
    batches = UsageReader(request.root, request.source, by_broker, settings.sample_window_ms, request.version)
    for batch in batches.read(max(part.start_ms - request.settings.rate_span_ms, request.begin_ms), part.start_ms):
        _throttles(request, engines, batch)
    at_ms: list[int] = []
    usage: list[tuple[Ints, ...]] = []
    throttles: list[list[tuple[Ints, ...]]] = [[] for _ in request.quotas]
    for batch in batches.read(part.start_ms, part.end_ms):
        at_ms.append(batch.at_ms)
        usage.append((batch.clients, batch.used_at_ms, batch.used_bytes))
        for found, of_replay in zip(_throttles(request, engines, batch), throttles, strict=True):
            of_replay.append(found)
    return DecidedSlice(
        tuple(batches.numbers),
        np.array(at_ms, np.int64),
        Groups.joined(usage, width=3),
        tuple(Groups.joined(of_replay, width=2) for of_replay in throttles),
    )


def _throttles(request: ReplayRequest, engines: Sequence[QuotaEngine], batch: UsageBatch) -> list[tuple[Ints, ...]]:
    """Numbers of clients and their X, in each replay."""
    found: list[tuple[Ints, ...]] = []
    for engine, quotas in zip(engines, request.quotas, strict=True):
        version = batch.quota_version
        engine.load_quotas(quotas.at(batch.at_ms) if version is None else quotas.version(version))
        throttles = engine.throttles(batch.usage, batch.at_ms)
        found.append((batch.clients[throttles.rows], throttles.raw_ms))
    return found


def held_by(request: ReplayRequest, decided: DecidedSlice) -> tuple[Held, ...]:
    """For each replay, until when the decisions of a slice hold clients."""
    return tuple(_held_by(decided, replay, request.until_ms) for replay in range(len(request.quotas)))


def carried_into(request: ReplayRequest, part: Slice, held: Iterable[Held]) -> tuple[Held, ...]:
    """The earlier holds that can matter in a slice. Batches can have late usage, seconds cannot."""
    from_ms = part.start_ms if request.source == "usage_by_second" else request.begin_ms
    return tuple({client: until_ms for client, until_ms in of.items() if until_ms > from_ms} for of in held)


def lengthen(held: Iterable[Held], further: Iterable[Held]) -> None:
    """Add the holds of a further slice: of two ends of a client the later one counts."""
    for one, other in zip(held, further, strict=True):
        for client, until_ms in other.items():
            one[client] = max(one.get(client, 0), until_ms)


def count(request: ReplayRequest, decided: DecidedSlice, carried: Iterable[Held]) -> list[ReplayResult]:
    """How the throttles of a slice affect clients, in each replay.

    Args:
        request: What is replayed.
        decided: The slice.
        carried: For each replay, until when clients are held by earlier slices.
    """
    return [_count(request, decided, replay, held) for replay, held in enumerate(carried)]


def _count(request: ReplayRequest, decided: DecidedSlice, replay: int, held: Held) -> ReplayResult:
    holds = Holds(request.settings.sample_window_ms, request.since_ms, request.until_ms, BINS)
    holds.resume(np.array([held.get(client, 0) for client in decided.clients], np.int64))
    instants = zip(decided.at_ms.tolist(), decided.usage, decided.throttles[replay], strict=True)
    for at_ms, (clients, used_at_ms, used_bytes), (throttled, throttle_ms) in instants:
        holds.use(clients, used_at_ms, used_bytes)
        if len(throttled):
            holds.decide(throttled, throttle_ms, at_ms)
    totals = holds.totals
    figures = zip(totals.windows.tolist(), totals.throttle_ms.tolist(), totals.deferred_bytes.tolist(), strict=True)
    return ReplayResult(
        outcomes={client: Outcome(*of_client) for client, of_client in zip(decided.clients, figures, strict=False)},
        throttle_ms_by_bin=holds.throttle_ms_by_bin,
        evaluations=int((decided.at_ms >= request.since_ms).sum()),
        rows=len(decided.usage.columns[0]),
    )


def _held_by(decided: DecidedSlice, replay: int, until_ms: int) -> Held:
    groups = decided.throttles[replay]
    clients, throttle_ms = groups.columns
    at_ms = np.repeat(decided.at_ms, np.diff(groups.ends, prepend=0))
    ends_ms = np.zeros(len(decided.clients), np.int64)
    np.maximum.at(ends_ms, clients, at_ms + np.minimum(throttle_ms, until_ms - at_ms))
    return {decided.clients[number]: int(ends_ms[number]) for number in np.flatnonzero(ends_ms).tolist()}
