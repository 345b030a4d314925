"""Reads instants from the command line: `2h` or `-2h` for two hours ago, ISO 8601, or epoch milliseconds."""

import re
from datetime import UTC, datetime
from typing import Final

from pipeline.errors import PipelineError

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_END_OF_YEAR_9999_MS: Final = 253_402_300_799_999  # the last instant that Python can show


class UnknownInstant(PipelineError):
    """A text that can not be read as an instant.

    Attributes:
        given: The text.
    """

    exit_code = 2

    def __init__(self, option: str, given: str) -> None:
        self.given = given
        super().__init__(
            f"'{option}' must be an age (90s, 30m, 2h, 7d), an ISO 8601 time or epoch milliseconds; got {given}",
            f"write for example {option} 2h, or {option} 2026-11-21T10:00:00",
        )


def parse_instant(option: str, given: str, now_ms: int) -> int:
    """Epoch milliseconds of an instant; a time without an offset is UTC.

    An age that reaches further back than 1970 is 0.

    Raises:
        UnknownInstant: It is none of the three.
    """
    age = re.fullmatch(r"-?(\d+)([smhdw])", given)
    if age:
        return max(now_ms - int(age[1]) * _UNITS_MS[age[2]], 0)
    if re.fullmatch(r"\d{12,15}", given) and int(given) <= _END_OF_YEAR_9999_MS:
        return int(given)
    try:
        instant = datetime.fromisoformat(given)
    except ValueError as exc:
        raise UnknownInstant(option, given) from exc
    instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return round(instant.timestamp() * 1000)


def as_iso(instant_ms: int) -> str:
    """An instant as ISO 8601 in UTC, to the second, without the zone."""
    return f"{datetime.fromtimestamp(instant_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}"
