"""What a replay comes to, client by client."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.pieces import Client

BINS: Final = 120


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

    def __add__(self, other: "Outcome") -> "Outcome":
        """Both together."""
        return Outcome(
            self.windows + other.windows,
            self.throttle_ms + other.throttle_ms,
            self.deferred_bytes + other.deferred_bytes,
        )


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

    def add(self, other: "ReplayResult") -> None:
        """Take in what another slice came to."""
        for client, outcome in other.outcomes.items():
            before = self.outcomes.get(client)
            self.outcomes[client] = outcome if before is None else before + outcome
        self.throttle_ms_by_bin += other.throttle_ms_by_bin
        self.evaluations += other.evaluations
        self.rows += other.rows
