"""The minutes that each client was throttled, against a target."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipeline.errors import UsageError
from pipeline.reports.page import BARS, bar_chart, page, paragraph, parts_of, span_facts, table, time_chart
from pipeline.reports.periods import MINUTE_MS, OwnerOf, Period, length_ms, whole_minutes
from pipeline.tables.minute_sums import Minutes

Standing = Literal["met", "missed", "too little data"]
_TENTH: Final = 10
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
        observed_minutes: How many minutes of the period the report has seen; at least 1.
        period_minutes: How many the whole period has.
        allowed_minutes: How many minutes the target allows in the whole period.
        held_ms: Time held; summed over brokers, if quotas hold for each broker.
        renewal_count: Records that gave a running throttle another end.
    """

    period: str
    user: str
    client_id: str
    owner: str | None
    minutes: int
    observed_minutes: int
    period_minutes: int
    allowed_minutes: float
    held_ms: int
    throttle_count: int
    renewal_count: int

    @property
    def projected_minutes(self) -> float:
        """How many minutes of the whole period it will be held in, if the rest goes on as what was seen."""
        return self.minutes * self.period_minutes / self.observed_minutes

    @property
    def standing(self) -> Standing:
        """Whether it is on course for the target. Less than a tenth of the period can show a miss, but not success."""
        if self.projected_minutes > self.allowed_minutes:
            return "missed"
        return "too little data" if self.observed_minutes * _TENTH < self.period_minutes else "met"

    def to_row(self) -> dict[str, Any]:
        """One flat row for printing."""
        return {
            **{name: getattr(self, name) for name in ("period", "user", "client_id", "owner", "minutes")},
            "observed_minutes": self.observed_minutes,
            "projected_minutes": round(self.projected_minutes, 1),
            "target_minutes": self.allowed_minutes,
            "target": self.standing,
            "held_seconds": self.held_ms / 1000,
            "throttles": self.throttle_count,
            "renewals": self.renewal_count,
        }


def held_by_period(
    minutes: Minutes, by: str, periods: Iterable[Period], target: Target, owner_now: OwnerOf
) -> list[Held]:
    """The clients that were throttled, by `throttle_by_minute`: in order of the periods, then of the time throttled.

    Args:
        by: What the periods are: `day`, `week` or `month`. What is cut is projected to the whole one, with its target.
    """
    found = []
    for period in periods:
        whole_ms, (begin_ms, end_ms) = length_ms(by, period.start_ms), whole_minutes(period.start_ms, period.end_ms)
        observed = max((end_ms - begin_ms) // MINUTE_MS, 1)
        facts: dict[str, Any] = {
            "observed_minutes": observed,
            "period_minutes": whole_ms // MINUTE_MS,
            "allowed_minutes": target.minutes_in(whole_ms),
        }
        rows = minutes.held_by_client(begin_ms, end_ms).to_pylist()
        for row in rows:
            row["owner"] = row["owner"] or owner_now(row["user"], row["client_id"])
        held = [Held(period=period.name, **facts, **row) for row in rows]
        found += sorted(held, key=lambda one: (-one.minutes, -one.held_ms, one.user, one.client_id))
    return found


def knows_enough(held: Iterable[Held], by: str, periods: Iterable[Period]) -> bool:
    """Whether it can be said that no client missed its target: a tenth of a period was seen, and of each held one."""
    seen = any((one.end_ms - one.start_ms) * _TENTH >= length_ms(by, one.start_ms) for one in periods)
    return seen and all(one.standing != "too little data" for one in held)


# The page.

_MARKS: Final = {"missed": "new", "met": "gone"}


def service_level_page(
    held: Sequence[Held], target: Target, by: str, usage: Minutes, throttles: Minutes, span_ms: tuple[int, int]
) -> str:
    """The page, by `usage_by_minute`, which has the times with data, and `throttle_by_minute`."""
    missed = sum(one.standing == "missed" for one in held)
    about = {**span_facts(span_ms), "target": f"{target.text} a {by}", "targets missed": missed}
    sections = {
        "Clients held at once, on average": _time_chart(usage, throttles, span_ms),
        "Minutes throttled": _bars(held),
        "Clients": table([one.to_row() for one in held], _MARKS),
    }
    return page("Service level · kquota", "How long were clients throttled?", about, sections)


def _time_chart(usage: Minutes, throttles: Minutes, span_ms: tuple[int, int]) -> str:
    lengths_ms = parts_of(span_ms)
    given = span_ms[0], lengths_ms[0], span_ms[1]
    sums, used = throttles.over_time(("held_ms",), *given), usage.over_time(("request_count",), *given)
    values = [sums.get(part, (0,))[0] / length for part, length in enumerate(lengths_ms)]
    known = [part in used or part in sums for part in range(len(values))]
    return time_chart("Clients held at once", [("clients held", values)], known, span_ms, lambda value: f"{value:,.3g}")


def _bars(held: Sequence[Held]) -> str:
    if not held:
        return paragraph("No client was throttled.")
    minutes: Counter[str] = Counter()
    for one in held:
        minutes[f"{one.user}/{one.client_id}"] += one.minutes
    bars = [(name, (count,)) for name, count in minutes.most_common(BARS)]
    return bar_chart("Minutes throttled", ("minutes throttled",), bars, lambda value: f"{value:,.0f} min")
