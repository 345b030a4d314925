"""The page of `kquota report slo`."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from pipeline.reports.instants import minute_text
from pipeline.reports.over_time import Parts
from pipeline.reports.page import page, paragraph, table
from pipeline.reports.plots import Bars, Line, bar_chart, time_chart
from pipeline.reports.service_level import Held, Target
from pipeline.tables.reading.minute_sums import Minutes

_BARS: Final = 20
_MARKS: Final = {"missed": "new", "met": "gone"}


def service_level_page(
    held: Sequence[Held], target: Target, by: str, usage: Minutes, throttles: Minutes, span_ms: tuple[int, int]
) -> str:
    """The page.

    Args:
        held: How each client was held in each period.
        target: The target of each period.
        by: What the periods are.
        usage: `usage_by_minute`: it says for which time there is data.
        throttles: `throttle_by_minute`.
        span_ms: Begin and end of the range.
    """
    about = {
        "from": f"{minute_text(span_ms[0])} UTC",
        "to": f"{minute_text(span_ms[1])} UTC",
        "target": f"{target.text} a {by}",
        "targets missed": sum(not one.is_met for one in held),
    }
    return page(
        "Service level · kquota",
        "How long were clients throttled?",
        about,
        {
            "Clients held at once, on average": _time_chart(usage, throttles, span_ms),
            "Minutes throttled": _bars(held),
            "Clients": table([one.to_row() for one in held], _MARKS),
        },
    )


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
    bars = [Bars(name, (count,)) for name, count in minutes.most_common(_BARS)]
    return bar_chart("Minutes throttled", ("minutes throttled",), bars, lambda value: f"{value:,.0f} min")
