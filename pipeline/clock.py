"""The clock of the job, and how instants and durations are shown.

What decides, holds and publishes receives a `Moment` and reads no clock itself.
"""

import time
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol


class Moment(NamedTuple):
    """One instant on both clocks; they differ after the machine's clock has been set.

    Attributes:
        wall_ms: Wall clock, epoch milliseconds. Written to records that other machines compare with their own.
        steady_ms: The wall clock of the process start plus monotonic time since: it never steps, so the timing wheel
            runs on it.
    """

    wall_ms: int
    steady_ms: int


class Clock(Protocol):
    """`now()` never goes back in `steady_ms`; `wall_ms` may step."""

    def now(self) -> Moment:
        """The present moment."""


def wall_ms() -> int:
    """The machine's wall clock, in epoch milliseconds: for commands that look at tables once."""
    return time.time_ns() // 1_000_000


class SystemClock:
    """The machine's clocks. The steady one starts at the wall clock's time when the object is made."""

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> Moment:
        """Both clocks, read one after the other (well under a millisecond apart)."""
        return Moment(wall_ms=wall_ms(), steady_ms=(time.monotonic_ns() + self._anchor_ns) // 1_000_000)


# How instants, durations and ids of throttles are shown to people, everywhere alike.

SHOWN_DIGITS: Final = 8
"""The number of digits of a decision_id that are shown; `kquota throttles explain` takes as many."""


def seconds(duration_ms: int) -> str:
    """Milliseconds as seconds with one decimal: 10400 -> "10.4 s"."""
    return f"{duration_ms / 1000:z.1f} s"


def clock_time(epoch_ms: int) -> str:
    """Time of day in UTC with tenths of a second: "12:00:17.8"."""
    instant = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return f"{instant:%H:%M:%S}.{instant.microsecond // 100_000}"
