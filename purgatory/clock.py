"""Where the purgatory's threads get the time from. The structures themselves take `now_ms` as an argument."""

import time
from typing import Protocol


class Clock(Protocol):
    """A clock for delays.

    Contract: whole milliseconds, rounded down; never negative; never goes back; unrelated to the wall clock.
    """

    def monotonic_ms(self) -> int:
        """The present instant."""
        ...


class SystemClock:
    """The operating system's monotonic clock."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed instant of this machine's life."""
        return time.monotonic_ns() // 1_000_000
