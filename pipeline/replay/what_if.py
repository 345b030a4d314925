"""One replay of kept usage under quotas of one's choice, and what it would have meant to each client."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.errors import NothingKept, SampleTooFine
from pipeline.replay.pieces import Client, Piece, Pieces, Source
from pipeline.replay.stretch import Scope
from pipeline.settings.model import EngineSettings
from pipeline.throttle.building import new_engine
from quota.engine import QuotaEngine
from quota.holds import Holds
from quota.replay import warm_up_ms
from quota.snapshot import QuotaSnapshot

BINS: Final = 120
_SECOND_MS: Final = 1_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Which quotas were in force when. Plain values: it goes to other processes.

    Attributes:
        from_ms: Begin of each, ascending; the first holds before it too.
        snapshots: The quotas of each.
    """

    from_ms: tuple[int, ...]
    snapshots: tuple[QuotaSnapshot, ...]

    def at(self, instant_ms: int) -> QuotaSnapshot:
        """The quotas in force at an instant."""
        return self.snapshots[max(bisect_right(self.from_ms, instant_ms) - 1, 0)]

    def version(self, version: int) -> QuotaSnapshot:
        """The quotas of a version of the table; the newest earlier one if that is not among them."""
        versions = [snapshot.version for snapshot in self.snapshots]
        return self.snapshots[max(bisect_right(versions, version) - 1, 0)]


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """What to replay, with which quotas.

    Attributes:
        root: Of the tables.
        source: Which table.
        scope: The engine's.
        settings: The engine's.
        since_ms: Begin of the range, inclusive.
        until_ms: End of the range, exclusive.
        quotas: One snapshot throughout, or those that were in force.
    """

    root: str
    source: Source
    scope: Scope
    settings: EngineSettings
    since_ms: int
    until_ms: int
    quotas: Timeline


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay meant to one client.

    Attributes:
        windows: Sample windows in which it was over quota.
        throttle_ms: Time it would have been held.
        deferred_bytes: Bytes it used while it would have been held.
    """

    windows: int = 0
    throttle_ms: int = 0
    deferred_bytes: int = 0


@dataclass(slots=True)
class ReplayResult:
    """What a replay came to.

    Attributes:
        outcomes: Of every client that sent usage.
        throttle_ms_by_bin: Of all clients, in `BINS` equal parts of the range.
        evaluations: How many instants were decided.
        rows: How many rows of usage were read for them.
    """

    outcomes: dict[Client, Outcome] = field(default_factory=dict)
    throttle_ms_by_bin: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    evaluations: int = 0
    rows: int = 0


def run(order: ReplayOrder, progress: Progress) -> ReplayResult:
    """Replay a range, its warm-up before it included.

    Only first decisions are asked for, so the engine keeps no token buckets: they never change one.

    Args:
        order: What to replay.
        progress: Told how many ms of the range are done, now and then.

    Raises:
        SampleTooFine: Seconds are to fill sample windows that are no whole seconds.
        NothingKept: The range has no usage.
        TableMissing: Nor has the root such a table.
    """
    settings = order.settings
    if order.source == "usage_by_second" and settings.sample_window_ms % _SECOND_MS:
        raise SampleTooFine(settings.sample_window_ms)
    engine = new_engine(settings.model_copy(update={"carry_debt": False}), order.scope)
    pieces = Pieces(order.root, order.source, order.scope == "broker", settings.sample_window_ms)
    holds = Holds(settings.sample_window_ms, order.since_ms, order.until_ms, BINS)
    result = ReplayResult()
    told_ms = begin_ms = order.since_ms - warm_up_ms(settings.num_samples, settings.sample_window_ms)
    for piece in pieces.read(begin_ms, order.until_ms):
        exact = piece.quota_version is not None
        engine.load_quotas(order.quotas.version(piece.quota_version or 0) if exact else order.quotas.at(piece.at_ms))
        _decide(engine, pieces, holds, piece)
        result.evaluations += piece.at_ms >= order.since_ms
        result.rows += piece.usage.num_rows
        if piece.at_ms - told_ms > (order.until_ms - begin_ms) // 200:
            told_ms = piece.at_ms
            progress(told_ms - begin_ms, order.until_ms - begin_ms)
    if not result.evaluations:
        raise NothingKept(pieces.table.uri)
    totals = holds.totals
    for client, number in pieces.numbers.items():
        figures = (totals.windows[number], totals.throttle_ms[number], totals.deferred_bytes[number])
        result.outcomes[client] = Outcome(*(int(figure) for figure in figures))
    result.throttle_ms_by_bin = holds.throttle_ms_by_bin
    return result


def _decide(engine: QuotaEngine, pieces: Pieces, holds: Holds, piece: Piece) -> None:
    decisions = engine.record(piece.usage, piece.at_ms)
    holds.use(piece.clients, piece.used_at_ms, piece.used_bytes)
    if not decisions.num_rows:
        return
    applied = np.flatnonzero(decisions["applied"].to_numpy())
    columns = (decisions[name].to_pylist() for name in ("broker_id", "user", "client_id"))
    clients = list(zip(*columns, strict=True))
    numbers = np.array([pieces.numbers[clients[row]] for row in applied.tolist()], np.int64)
    holds.decide(numbers, decisions["raw_throttle_time_ms"].to_numpy()[applied], piece.at_ms)
