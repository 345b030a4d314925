"""The page of `kquota report chargeback`."""

from collections.abc import Sequence
from typing import Any, Final

from pipeline.reports.chargeback import Charge, Use
from pipeline.reports.instants import minute_text
from pipeline.reports.over_time import Parts
from pipeline.reports.page import page, table
from pipeline.reports.plots import Bars, Line, bar_chart, time_chart
from pipeline.tables.reading.minute_sums import Minutes
from quota.units import rate_text

_BARS: Final = 20
_SERIES: Final = ("produced", "fetched")
_NOBODY: Final = "no owner"


def chargeback_page(charges: Sequence[Charge], minutes: Minutes, span_ms: tuple[int, int]) -> str:
    """The page.

    Args:
        charges: What each owner used in each period.
        minutes: `usage_by_minute`.
        span_ms: Begin and end of the range.
    """
    about = {"from": f"{minute_text(span_ms[0])} UTC", "to": f"{minute_text(span_ms[1])} UTC"}
    clients = [row for one in charges for row in one.client_rows()]
    return page(
        "Chargeback · kquota",
        "Who used how much?",
        about,
        {
            "Bytes per second, all clients": _time_chart(minutes, span_ms),
            "Bytes by owner": _bars(charges),
            "Owners": table([_readable(one.to_row()) for one in charges]),
            "Clients": table([_readable(row) for row in clients]),
        },
    )


def _time_chart(minutes: Minutes, span_ms: tuple[int, int]) -> str:
    parts = Parts.of(span_ms)
    lengths_ms = parts.lengths_ms
    sums = minutes.over_time(("produced_bytes", "fetched_bytes"), parts.start_ms, parts.part_ms, parts.end_ms)
    lines = [
        Line(name, [sums.get(part, (0, 0))[place] * 1000 / length for part, length in enumerate(lengths_ms)])
        for place, name in enumerate(_SERIES)
    ]
    known = [part in sums for part in range(len(lengths_ms))]
    return time_chart("Bytes per second, all clients", lines, known, span_ms, _rate)


def _bars(charges: Sequence[Charge]) -> str:
    by_owner: dict[str | None, Use] = {}
    for one in charges:
        by_owner.setdefault(one.owner, Use()).add(one.use)
    largest = sorted(by_owner.items(), key=lambda item: -item[1].total_bytes)[:_BARS]
    bars = [Bars(owner or _NOBODY, (use.produced_bytes, use.fetched_bytes)) for owner, use in largest]
    return bar_chart("Bytes by owner", _SERIES, bars, lambda value: _rate(value).removesuffix("/s"))


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if not name.endswith("_ns")}
    times = {name.replace("_ns", "_s"): value / 1e9 for name, value in row.items() if name.endswith("_ns")}
    return shown | {"owner": row["owner"] or _NOBODY} | times


def _rate(value: float) -> str:
    return rate_text("producer_byte_rate", value)
