"""The page of `kquota report rightsizing`."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from pipeline.reports.instants import minute_text
from pipeline.reports.page import page, paragraph, table
from pipeline.reports.plots import Bars, bar_chart
from pipeline.reports.rightsizing import Sized
from quota.entity import QUOTA_TYPES
from quota.units import rate_text

_BARS: Final = 20
_SERIES: Final = ("p99 of the rate per minute", "bound", "suggested")
_MARKS: Final = {"raise": "new", "lower": "gone"}


def rightsizing_page(found: Sequence[Sized], headroom: float, version: int, span_ms: tuple[int, int]) -> str:
    """The page.

    Args:
        found: Every bound and its use.
        headroom: How far above p99 a bound should be, in percent.
        version: Version of the quota table.
        span_ms: Begin and end of the range.
    """
    about = {
        "from": f"{minute_text(span_ms[0])} UTC",
        "to": f"{minute_text(span_ms[1])} UTC",
        "quotas": f"v{version}",
        "headroom": f"{headroom:g} %",
    }
    charts = {f"The most used of each bound: {quota_type}": _bars(found, quota_type) for quota_type in QUOTA_TYPES}
    return page(
        "Rightsizing · kquota",
        "Which bounds fit?",
        about,
        {**charts, "Bounds": table([_readable(one) for one in found], _MARKS)},
    )


def _bars(found: Sequence[Sized], quota_type: str) -> str:
    used = [one for one in found if one.quota_type == quota_type and one.p99 is not None][:_BARS]
    if not used:
        return paragraph("No bound of this type was used.")
    bars = [Bars(_name(one), (one.p99, one.bound, one.suggested)) for one in used]
    return bar_chart(f"Bounds and use: {quota_type}", _SERIES, bars, partial(rate_text, quota_type))


def _readable(one: Sized) -> dict[str, Any]:
    row = one.to_row()
    rates = {
        name: None if row[name] is None else rate_text(one.quota_type, row[name])
        for name in ("bound", "p95", "p99", "suggested")
    }
    return row | rates | {"throttled": "yes" if one.was_throttled else "no"}


def _name(one: Sized) -> str:
    return "/".join(part for part in (one.user, one.client_id) if part)
