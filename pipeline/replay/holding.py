"""Decided slices put together: holds go from one into the next, so they are counted in order, or with what is carried.

How long a client is held at the end of a slice is the latest end of its decisions, in this slice or any before. That
needs the decisions alone; so what is carried into every slice can be known before any slice is counted.
"""

from collections.abc import Iterable

import numpy as np

from pipeline.replay.decided_slice import DecidedSlice
from pipeline.replay.outcome import BINS, Outcome, ReplayResult
from pipeline.replay.pieces import Client
from pipeline.replay.plan import Slice
from pipeline.replay.replay_request import ReplayOrder
from quota.holds import Holds

Held = dict[Client, int]
"""Until when clients are held, in ms since the epoch."""


def held_by(order: ReplayOrder, decided: DecidedSlice) -> tuple[Held, ...]:
    """Until when the decisions of a slice hold clients, for each replay."""
    return tuple(_held_by(decided, replay, order.until_ms) for replay in range(len(order.quotas)))


def carried_into(order: ReplayOrder, part: Slice, held: Iterable[Held]) -> tuple[Held, ...]:
    """What holds from before matter in a slice. Batches can have late usage, seconds can not."""
    from_ms = part.start_ms if order.source == "usage_by_second" else order.begin_ms
    return tuple({client: until_ms for client, until_ms in of.items() if until_ms > from_ms} for of in held)


def lengthen(held: Iterable[Held], further: Iterable[Held]) -> None:
    """Add what a further slice holds: a later end takes the place of an earlier one."""
    for one, other in zip(held, further, strict=True):
        for client, until_ms in other.items():
            one[client] = max(one.get(client, 0), until_ms)


def count(order: ReplayOrder, decided: DecidedSlice, carried: Iterable[Held]) -> list[ReplayResult]:
    """What a slice meant to clients, in each replay.

    Args:
        order: What is replayed.
        decided: The slice.
        carried: Until when clients are held from before, for each replay.
    """
    return [_count(order, decided, replay, held) for replay, held in enumerate(carried)]


def _count(order: ReplayOrder, decided: DecidedSlice, replay: int, held: Held) -> ReplayResult:
    holds = Holds(order.settings.sample_window_ms, order.since_ms, order.until_ms, BINS)
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
        evaluations=int((decided.at_ms >= order.since_ms).sum()),
        rows=len(decided.usage.columns[0]),
    )


def _held_by(decided: DecidedSlice, replay: int, until_ms: int) -> Held:
    groups = decided.throttles[replay]
    clients, throttle_ms = groups.columns
    at_ms = np.repeat(decided.at_ms, np.diff(groups.ends, prepend=0))
    ends_ms = np.zeros(len(decided.clients), np.int64)
    np.maximum.at(ends_ms, clients, at_ms + np.minimum(throttle_ms, until_ms - at_ms))
    return {decided.clients[number]: int(ends_ms[number]) for number in np.flatnonzero(ends_ms).tolist()}
