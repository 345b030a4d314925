"""The report as one HTML page with tables and charts. The page loads nothing from elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from pipeline.replay.outcome import ReplayResult
from pipeline.replay.report import ClientComparison, Totals, throttled_clients

_WIDTH: Final = 900
_HEIGHT: Final = 220
_LEFT: Final = 60
_BAR_HEIGHT: Final = 16
_BARS: Final = 20
_ROWS: Final = 500
_GAP_MS: Final = 60_000
_LIVE: Final = "#7a7a7a"
_CANDIDATE: Final = "#c2410c"
_STYLE: Final = """
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:960px;padding:0 1rem;color:#1c1c1c;background:#fff}
table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{text-align:left;padding:.25rem .5rem;border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}
td.n,th.n{text-align:right}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
svg{width:100%;height:auto}svg text{font-size:11px;fill:currentColor}.new{color:#c2410c}.gone{color:#15803d}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e8e8e8}th,td{border-color:#3a3a3a}}
"""


def html_report(
    about: Mapping[str, Any],
    totals: Totals,
    comparisons: Sequence[ClientComparison],
    live: ReplayResult,
    candidate: ReplayResult,
    span_ms: tuple[int, int],
) -> str:
    """The page.

    Args:
        about: What was replayed: names and values.
        totals: Totals of all clients.
        comparisons: One comparison for every client.
        live: Replay with the live quotas.
        candidate: Replay with the candidate.
        span_ms: Begin and end of the range.
    """
    throttled = throttled_clients(comparisons)
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in about.items())
    figures = "".join(
        f'<tr><th>{escape(name.replace("_", " "))}</th><td class="n">{getattr(totals, name):,}</td></tr>'
        for name in Totals.__dataclass_fields__
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>kquota what-if</title><style>{_STYLE}</style>'
        f"<h1>What if these quotas had been in force?</h1><table>{facts}</table>"
        f"<h2>Totals</h2><table>{figures}</table>"
        f"<h2>Time clients would be held</h2>{_time_chart(live, candidate, span_ms)}"
        f"<h2>Clients with the largest change</h2>{_bars(throttled[:_BARS])}"
        f"<h2>Clients</h2>{_table(throttled)}</html>\n"
    )


def _time_chart(live: ReplayResult, candidate: ReplayResult, span_ms: tuple[int, int]) -> str:
    seconds = [result.throttle_ms_by_bin / 1000 for result in (live, candidate)]
    most = max(float(max(values.max() for values in seconds)), 1e-9)
    known = live.has_batch | candidate.has_batch | (seconds[0] > 0) | (seconds[1] > 0)
    stretches = list(_stretches(known.tolist(), (span_ms[1] - span_ms[0]) / len(known)))
    paths = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{_points(values.tolist(), most, *ends)}"/>'
        for values, colour in zip(seconds, (_LIVE, _CANDIDATE), strict=True)
        for ends in stretches
    )
    ends = [f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}" for at_ms in span_ms]
    labels = (
        f'<text x="0" y="12">{most:,.0f} s</text><text x="0" y="{_HEIGHT}">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT + 16}">{ends[0]}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{ends[1]} UTC</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT + 34}" style="fill:{_LIVE}">live quotas</text>'
        f'<text x="{_LEFT + 90}" y="{_HEIGHT + 34}" style="fill:{_CANDIDATE}">candidate</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 40}" role="img">{paths}{labels}</svg>'


def _stretches(known: Sequence[bool], part_ms: float) -> Iterator[tuple[int, int]]:
    """The stretches of the range that have data: first part, and end (exclusive). Between them is a gap.

    Args:
        known: Whether each part of the range has data.
        part_ms: Length of a part. Parts without data that last less than a minute together are no gap.
    """
    begin, end = None, 0
    for place in (place for place, has_data in enumerate(known) if has_data):
        if begin is None:
            begin = place
        elif (place - end) * part_ms >= _GAP_MS:
            yield begin, end
            begin = place
        end = place + 1
    if begin is not None:
        yield begin, end


def _points(values: Sequence[float], most: float, begin: int, end: int) -> str:
    """The parts begin (inclusive) to end (exclusive) as points; a single one as a short line."""
    step = (_WIDTH - _LEFT) / max(len(values) - 1, 1)
    points = [(_LEFT + i * step, _HEIGHT - values[i] / most * _HEIGHT) for i in range(begin, end)]
    if len(points) == 1:
        points.append((points[0][0] + step / 2, points[0][1]))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _bars(comparisons: Sequence[ClientComparison]) -> str:
    if not comparisons:
        return "<p>No client is throttled, neither by the live quotas nor by the candidate.</p>"
    most = max(max(line.live.throttle_ms, line.candidate.throttle_ms) for line in comparisons) or 1
    room = _WIDTH - 260 - 80
    drawn = []
    for place, line in enumerate(comparisons):
        top = place * (2 * _BAR_HEIGHT + 8)
        drawn.append(f'<text x="0" y="{top + _BAR_HEIGHT}">{escape(_name(line)[:40])}</text>')
        for row, (outcome, colour) in enumerate(((line.live, _LIVE), (line.candidate, _CANDIDATE))):
            width = outcome.throttle_ms / most * room
            y = top + row * _BAR_HEIGHT
            drawn.append(f'<rect x="260" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT - 2}" fill="{colour}"/>')
            drawn.append(f'<text x="{265 + width:.1f}" y="{y + 12}">{outcome.throttle_ms / 1000:,.1f} s</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {len(comparisons) * (2 * _BAR_HEIGHT + 8)}" role="img">{"".join(drawn)}</svg>'


def _table(comparisons: Sequence[ClientComparison]) -> str:
    heads = ("client", "change", "windows", "was", "held s", "was", "deferred MB", "was", "held s, happened")
    rows = []
    for line in comparisons[:_ROWS]:
        mark = {"newly throttled": "new", "no longer throttled": "gone"}.get(line.change, "")
        figures = (
            line.candidate.windows,
            line.live.windows,
            f"{line.candidate.throttle_ms / 1000:,.1f}",
            f"{line.live.throttle_ms / 1000:,.1f}",
            f"{line.candidate.deferred_bytes / 1e6:,.1f}",
            f"{line.live.deferred_bytes / 1e6:,.1f}",
            f"{line.happened.throttle_ms / 1000:,.1f}",
        )
        cells = "".join(f'<td class="n">{figure}</td>' for figure in figures)
        rows.append(f'<tr><td>{escape(_name(line))}</td><td class="{mark}">{line.change}</td>{cells}</tr>')
    more = f"<p>and {len(comparisons) - _ROWS} more</p>" if len(comparisons) > _ROWS else ""
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(rows)}</table>{more}"


def _name(line: ClientComparison) -> str:
    broker_id, user, client_id = line.client
    return f"{user}/{client_id}" + (f"@{broker_id}" if broker_id else "")
