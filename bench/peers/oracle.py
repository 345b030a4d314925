"""The right answer, in plain Python: exact sums by second, user and client-id; and what differs from it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MEASURES: Final = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "request_count")
WINDOW_MS: Final = 1_000

Key = tuple[int, str, str]
"""Start of the second in ms since the epoch, user, client-id."""
Sums = tuple[int, ...]
"""A sum for each of `MEASURES`."""


def sums_of(values: Iterable[bytes]) -> dict[Key, Sums]:
    """Sum the events of messages.

    Args:
        values: JSON texts, each an event or an array of events. All measures are there.
    """
    sums: dict[Key, list[int]] = {}
    for value in values:
        told = json.loads(value)
        for event in told if isinstance(told, list) else (told,):
            time_ms = event["event_time_ms"]
            key = (time_ms - time_ms % WINDOW_MS, event["user"], event["client_id"])
            measured = [event[name] for name in MEASURES]
            before = sums.get(key)
            sums[key] = measured if before is None else [a + b for a, b in zip(before, measured, strict=True)]
    return {key: tuple(total) for key, total in sums.items()}


def shifted(sums: Mapping[Key, Sums], by_ms: int) -> dict[Key, Sums]:
    """The sums of the same events so much later.

    Args:
        sums: of the events.
        by_ms: whole seconds.
    """
    if by_ms % WINDOW_MS:
        message = f"'by_ms' must be whole seconds; got {by_ms}"
        raise ValueError(message)
    return {(second_ms + by_ms, user, client_id): total for (second_ms, user, client_id), total in sums.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """How results differ from the right answer.

    Attributes:
        missing: keys without a result.
        unexpected: results that should not be.
        wrong: keys with another sum.
        example: the first of them, in words; "" if all is right.
    """

    missing: int = 0
    unexpected: int = 0
    wrong: int = 0
    example: str = ""

    @property
    def is_right(self) -> bool:
        """Whether every sum is exact, and nothing else is there."""
        return not (self.missing or self.unexpected or self.wrong)

    def __str__(self) -> str:
        """One line."""
        if self.is_right:
            return "right"
        return f"{self.missing} missing, {self.unexpected} unexpected, {self.wrong} wrong; {self.example}"


def compare(expected: Mapping[Key, Sums], got: Mapping[Key, Sums]) -> Difference:
    """Compare every sum.

    Args:
        expected: the right answer.
        got: the results; the last one of each key.
    """
    missing = [key for key in expected if key not in got]
    unexpected = [key for key in got if key not in expected]
    wrong = [key for key, sums in expected.items() if key in got and got[key] != sums]
    examples = [
        *(f"{key} must be {expected[key]}; got {got[key]}" for key in wrong[:1]),
        *(f"{key} must be {expected[key]}; got nothing" for key in missing[:1]),
        *(f"{key} must not be there; got {got[key]}" for key in unexpected[:1]),
    ]
    return Difference(len(missing), len(unexpected), len(wrong), next(iter(examples), ""))
