"""The time in which one batch is the newest one: looks are based on it."""

from dataclasses import dataclass
from math import inf

from tests.faults.cut import Batch


@dataclass(frozen=True, slots=True)
class Reign:
    """From the collection of one batch to the collection of the next, by the driver's first clock.

    The batch is decided a little later than it is collected (`Rules.longest_append_ms`). In between, looks are still
    based on the batch before it.

    Attributes:
        batch: The batch.
        following: The next one; None for the last.
        since_ms: When the first batch of the same `evaluated_at_ms` was collected; None if it is this one. Batches
            without newer usage do not set the time of looks back, unless the driver has started anew.
        starts: Of drivers in this time whose clock was set since the batch: when, and how far the clock was moved
            since then. Each counts the time since the batch by its own wall clock.
        take_over_ms: How long before its start a driver may have read that clock.
    """

    batch: Batch
    following: Batch | None
    since_ms: int | None = None
    starts: tuple[tuple[int, int], ...] = ()
    take_over_ms: int = 0

    @property
    def begin_ms(self) -> int:
        """When it was collected."""
        return self.batch.steady_ms

    @property
    def end_ms(self) -> float:
        """When the next one was collected; infinite for the last."""
        return inf if self.following is None else self.following.steady_ms

    def instant_of(self, wall_ms: int) -> int:
        """The event time that a look at this time is evaluated at, had the batch been decided when it was collected."""
        return self._instant(wall_ms, self.begin_ms)

    def latest_instant_of(self, wall_ms: int) -> int:
        """The same at the latest: counted from the first batch of this event time and the first reading of a driver."""
        return self._instant(wall_ms, self.since_ms or self.begin_ms, self.take_over_ms)

    def _instant(self, wall_ms: int, since_ms: int, take_over_ms: int = 0) -> int:
        passed_ms = max(wall_ms - since_ms, 0)
        for start_ms, moved_ms in self.starts:
            if start_ms <= wall_ms:
                read_ms = start_ms - take_over_ms
                passed_ms = max(read_ms + moved_ms - self.begin_ms, 0) + wall_ms - read_ms
        return self.batch.evaluated_at_ms + passed_ms
