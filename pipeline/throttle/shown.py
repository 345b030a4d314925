"""How instants, durations and ids of throttles are shown to people, everywhere alike."""

from datetime import UTC, datetime
from typing import Final

SHOWN_DIGITS: Final = 8
"""The number of digits of a decision_id that are shown; `kquota throttles explain` takes as many."""


def seconds(duration_ms: int) -> str:
    """Milliseconds as seconds with one decimal: 10400 -> "10.4 s"."""
    return f"{duration_ms / 1000:.1f} s"


def clock_time(epoch_ms: int) -> str:
    """Time of day in UTC with tenths of a second: "12:00:17.8"."""
    instant = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return f"{instant:%H:%M:%S}.{instant.microsecond // 100_000}"
