"""What the decision is made of: the findings at one instant."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

NEAR_BOUND: Final = "KquotaNearBound"
AT_BOUND: Final = "KquotaAtBound"
THROTTLED: Final = "KquotaThrottled"
STALLED: Final = "KquotaStalled"
DEAD_LETTERS: Final = "KquotaDeadLetters"
TIME_AHEAD: Final = "KquotaTimeAhead"
ALERTS: Final = (NEAR_BOUND, AT_BOUND, THROTTLED, STALLED, DEAD_LETTERS, TIME_AHEAD)
"""The names of all alerts."""

Key = tuple[str, ...]
"""The name of an alert, and what it is about: unlike labels, in full."""


@dataclass(frozen=True, slots=True)
class Words:
    """What people and programs read of an alert.

    Attributes:
        labels: What it is about.
        annotations: What is so, and what to do.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one alert says about one thing, now.

    Attributes:
        key: See `Key`.
        is_so: Whether it is so now. False: it is no longer so by little. That neither begins an alert nor ends one.
        words: Makes its words. Called when it is told, and not for the 10^5 findings that go on.
        pending_ms: It must have been so for this long before the alert begins; 0 = at once.
    """

    key: Key
    is_so: bool
    words: Callable[[], Words] = Words
    pending_ms: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known at an instant.

    Attributes:
        findings: One for each key at most. What is in none of them is not so.
        unknown: Names of alerts about which nothing is known now: they stay as they are.
    """

    findings: Sequence[Finding] = ()
    unknown: frozenset[str] = frozenset()
