"""The clock of the purgatory's timers and threads. The structures themselves take `now_ms` as an argument."""

import time
from typing import Protocol


class MonotonicClock(Protocol):
    """A clock that measures delays. It says nothing about the time of day.

    Contract: whole milliseconds, rounded down; never negative; never goes back; independent of the wall clock.
    """

    def monotonic_ms(self) -> int:
        """Milliseconds from a fixed but unspecified instant until now."""
        ...


class SystemMonotonicClock:
    """The operating system's monotonic clock."""

    def monotonic_ms(self) -> int:
        """Milliseconds from a fixed but unspecified instant of this machine until now."""
        return time.monotonic_ns() // 1_000_000
