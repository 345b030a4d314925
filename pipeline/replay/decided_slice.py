"""A slice of a range decided on its own: the dear part of a replay, the same whoever does it and in whatever order.

First decisions depend on the usage of the (N + 1) · w before them alone. Holds reach further: they are left to
`pipeline.replay.holding`, which needs what is kept here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.pieces import Client, Piece, Pieces
from pipeline.replay.plan import Slice
from pipeline.replay.replay_request import ReplayOrder
from pipeline.throttle.assembly import new_engine
from quota.engine import QuotaEngine

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in groups that follow each other, one a decided instant.

    Attributes:
        ends: Where each group ends.
        columns: Of all rows.
    """

    ends: Ints
    columns: tuple[Ints, ...]

    @classmethod
    def joined(cls, groups: Sequence[tuple[Ints, ...]], width: int) -> Self:
        """Of the columns of each group, `width` in all."""
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
    """What happened in a slice, instant by instant.

    Attributes:
        clients: Those that are numbered.
        at_ms: The instants.
        usage: Of each instant: number of the client, when it was used, bytes.
        throttles: Of each replay and instant: number of the client, X before the cap.
    """

    clients: tuple[Client, ...]
    at_ms: Ints
    usage: Groups
    throttles: tuple[Groups, ...]


def decide(order: ReplayOrder, part: Slice) -> DecidedSlice:
    """Decide a slice once for each replay, after the warm-up before it; what is read, is read once.

    Only first decisions are asked for, so the engines keep no token buckets: they never change one.
    """
    settings = order.settings.model_copy(update={"carry_debt": False})
    engines = [new_engine(settings, order.scope) for _ in order.quotas]
    pieces = Pieces(order.root, order.source, order.scope == "broker", settings.sample_window_ms, order.version)
    for piece in pieces.read(max(part.start_ms - order.settings.rate_span_ms, order.begin_ms), part.start_ms):
        _throttles(order, engines, piece)
    at_ms: list[int] = []
    usage: list[tuple[Ints, ...]] = []
    throttles: list[list[tuple[Ints, ...]]] = [[] for _ in order.quotas]
    for piece in pieces.read(part.start_ms, part.end_ms):
        at_ms.append(piece.at_ms)
        usage.append((piece.clients, piece.used_at_ms, piece.used_bytes))
        for found, of_replay in zip(_throttles(order, engines, piece), throttles, strict=True):
            of_replay.append(found)
    return DecidedSlice(
        tuple(pieces.numbers),
        np.array(at_ms, np.int64),
        Groups.joined(usage, width=3),
        tuple(Groups.joined(of_replay, width=2) for of_replay in throttles),
    )


def _throttles(order: ReplayOrder, engines: Sequence[QuotaEngine], piece: Piece) -> list[tuple[Ints, ...]]:
    """Numbers of clients and their X, in each replay."""
    found: list[tuple[Ints, ...]] = []
    for engine, quotas in zip(engines, order.quotas, strict=True):
        version = piece.quota_version
        engine.load_quotas(quotas.at(piece.at_ms) if version is None else quotas.version(version))
        throttles = engine.throttles(piece.usage, piece.at_ms)
        found.append((piece.clients[throttles.rows], throttles.raw_ms))
    return found
