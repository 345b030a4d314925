"""The minutes that each client was throttled, against a target."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.errors import UsageError
from pipeline.reports.page import BARS, Bars, Line, Parts, bar_chart, page, paragraph, span_facts, table, time_chart
from pipeline.reports.periods import MINUTE_MS, OwnerOf, Period, length_ms, whole_minutes
from pipeline.tables.minute_sums import Minutes

_UNITS_MINUTES: Final = {"m": 1, "h": 60, "d": 1440}


@dataclass(frozen=True, slots=True)
class Target:
    """The most minutes of a period in which a client may be throttled.

    Attributes:
        minutes: A number of minutes; None if it is a share.
        percent: The share of the period's minutes, in percent, in which the client is not throttled.
    """

    text: str
    minutes: float | None
    percent: float = 100.0

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Read `30m`, `2h`, `1d` or `99.9%`; another text is a `UsageError`."""
        if time := re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text):
            return cls(text, float(time[1]) * _UNITS_MINUTES[time[2]])
        if (share := re.fullmatch(r"(\d+(?:\.\d+)?)\s?%", text)) and float(share[1]) <= 100:
            return cls(text, None, float(share[1]))
        msg = f"cannot read --target {text}; give a longest time throttled (30m) or a share not throttled (99.9%)"
        raise UsageError(msg, "for example --target 30m")

    def minutes_in(self, period_ms: int) -> float:
        """The minutes of a period that it allows."""
        if self.minutes is not None:
            return self.minutes
        # Rounded, because 100 - 99.9 is not 0.1.
        return round(period_ms / MINUTE_MS * (100 - self.percent) / 100, 6)


@dataclass(frozen=True, slots=True)
class Held:
    """How a client was held in one period.

    Attributes:
        owner: Who was responsible when it was held last; or who is now. None if no quota row names an owner.
        minutes: Minutes in which it was held for any time, at any broker.
        allowed_minutes: How many minutes the target allows in the whole period.
        held_ms: Time held; summed over brokers, if quotas hold for each broker.
        renewal_count: Records that gave a running throttle another end.
    """

    period: str
    user: str
    client_id: str
    owner: str | None
    minutes: int
    allowed_minutes: float
    held_ms: int
    throttle_count: int
    renewal_count: int

    @property
    def is_met(self) -> bool:
        """Whether the target is met."""
        return self.minutes <= self.allowed_minutes

    def to_row(self) -> dict[str, Any]:
        """One flat row for printing."""
        return {
            **{name: getattr(self, name) for name in ("period", "user", "client_id", "owner", "minutes")},
            "target_minutes": self.allowed_minutes,
            "target": "met" if self.is_met else "missed",
            "held_seconds": self.held_ms / 1000,
            "throttles": self.throttle_count,
            "renewals": self.renewal_count,
        }


def held_by_period(
    minutes: Minutes, by: str, periods: Iterable[Period], target: Target, owner_now: OwnerOf
) -> list[Held]:
    """The clients that were throttled, by `throttle_by_minute`: in order of the periods, then of the time throttled.

    Args:
        by: What the periods are: `day`, `week` or `month`. One that is cut has the target of the whole one.
    """
    found = []
    for period in periods:
        allowed = target.minutes_in(length_ms(by, period.start_ms))
        rows = minutes.held_by_client(*whole_minutes(period.start_ms, period.end_ms)).to_pylist()
        for row in rows:
            row["owner"] = row["owner"] or owner_now(row["user"], row["client_id"])
        held = [Held(period=period.name, allowed_minutes=allowed, **row) for row in rows]
        found += sorted(held, key=lambda one: (-one.minutes, -one.held_ms, one.user, one.client_id))
    return found


# The page.

_MARKS: Final = {"missed": "new", "met": "gone"}


def service_level_page(
    held: Sequence[Held], target: Target, by: str, usage: Minutes, throttles: Minutes, span_ms: tuple[int, int]
) -> str:
    """The page, by `usage_by_minute`, which has the times with data, and `throttle_by_minute`."""
    missed = sum(not one.is_met for one in held)
    about = {**span_facts(span_ms), "target": f"{target.text} a {by}", "targets missed": missed}
    sections = {
        "Clients held at once, on average": _time_chart(usage, throttles, span_ms),
        "Minutes throttled": _bars(held),
        "Clients": table([one.to_row() for one in held], _MARKS),
    }
    return page("Service level · kquota", "How long were clients throttled?", about, sections)


def _time_chart(usage: Minutes, throttles: Minutes, span_ms: tuple[int, int]) -> str:
    parts = Parts.of(span_ms)
    given = parts.start_ms, parts.part_ms, parts.end_ms
    sums, used = throttles.over_time(("held_ms",), *given), usage.over_time(("request_count",), *given)
    values = [sums.get(part, (0,))[0] / length for part, length in enumerate(parts.lengths_ms)]
    known = [part in used or part in sums for part in range(len(values))]
    return time_chart(
        "Clients held at once", [Line("clients held", values)], known, span_ms, lambda value: f"{value:,.3g}"
    )


def _bars(held: Sequence[Held]) -> str:
    if not held:
        return paragraph("No client was throttled.")
    minutes: Counter[str] = Counter()
    for one in held:
        minutes[f"{one.user}/{one.client_id}"] += one.minutes
    bars = [Bars(name, (count,)) for name, count in minutes.most_common(BARS)]
    return bar_chart("Minutes throttled", ("minutes throttled",), bars, lambda value: f"{value:,.0f} min")
