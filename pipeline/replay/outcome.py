"""What a replay found: how long each client would be held, and what it used meanwhile."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.names import ClientKey

BINS: Final = 120


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
        outcomes: One outcome for every client that sent usage.
        throttle_ms_by_bin: Time held, summed over all clients, in each of `BINS` equal parts of the range.
        has_batch: Whether a batch was decided in each of these parts.
        evaluations: How many batches of the range were decided.
        rows: How many rows of usage were read, those of the warm-up included.
    """

    outcomes: dict[ClientKey, Outcome] = field(default_factory=dict)
    throttle_ms_by_bin: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    has_batch: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(BINS, np.bool_))
    evaluations: int = 0
    rows: int = 0

    def add_users(self, other: "ReplayResult") -> None:
        """Add the result for other users. Both saw the same batches."""
        self.outcomes |= other.outcomes
        self.throttle_ms_by_bin = self.throttle_ms_by_bin + other.throttle_ms_by_bin
        self.has_batch = self.has_batch | other.has_batch
        self.evaluations = other.evaluations
        self.rows += other.rows
