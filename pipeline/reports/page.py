"""One HTML page with tables and charts. It loads nothing from elsewhere, has no script, and follows light and dark.

Every name and every value is escaped here: client-ids are the clients' choice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from pipeline.errors import printable
from pipeline.reports.periods import MINUTE_MS

_ROWS: Final = 500
# The four colours differ also for people who do not see red and green.
_STYLE: Final = """
:root{color-scheme:light dark;--text:#1c1c1c;--page:#fff;--rule:#ddd;--gap:#ececec;
--c0:#5f6b76;--c1:#c2410c;--c2:#0072b2;--c3:#8a6d00;--new:#c2410c;--gone:#15803d}
@media(prefers-color-scheme:dark){:root{--text:#e8e8e8;--page:#161616;--rule:#3a3a3a;--gap:#262626;
--c0:#9aa7b4;--c1:#f97316;--c2:#56b4e9;--c3:#e6c229;--new:#fb923c;--gone:#4ade80}}
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:960px;padding:0 1rem;color:var(--text);
background:var(--page)}
table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{text-align:left;padding:.25rem .5rem;border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums;
max-width:24rem;overflow-wrap:break-word}
td.n,th.n{text-align:right}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.wide{overflow-x:auto}
svg{width:100%;height:auto;overflow:visible}svg text{font-size:11px;fill:var(--text)}.line{fill:none;stroke-width:1.5}
rect.c0{fill:var(--c0)}rect.c1{fill:var(--c1)}rect.c2{fill:var(--c2)}rect.c3{fill:var(--c3)}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.gap{fill:var(--gap)}.new{color:var(--new)}.gone{color:var(--gone)}
"""


def page(title: str, heading: str, about: Mapping[str, Any], sections: Mapping[str, str]) -> str:
    """The page; `about` are facts by name, `sections` HTML of this module by heading."""
    facts = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in about.items())
    body = "".join(f"<h2>{_text(name)}</h2>{html}" for name, html in sections.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style>"
        f"<h1>{_text(heading)}</h1><table>{facts}</table>{body}</html>\n"
    )


def paragraph(text: str) -> str:
    """A paragraph of text."""
    return f"<p>{_text(text)}</p>"


def figures(values: Mapping[str, Any]) -> str:
    """A table of names and numbers."""
    rows = (f'<tr><th>{_text(name.replace("_", " "))}</th><td class="n">{values[name]:,}</td></tr>' for name in values)
    return f"<table>{''.join(rows)}</table>"


def table(rows: Sequence[Mapping[str, Any]], marks: Mapping[str, str] | None = None) -> str:
    """A table with a row for each mapping; numbers are on the right, None is empty. Long ones are cut, with a note.

    Args:
        marks: Text of a cell -> its CSS class: `new` or `gone`.
    """
    if not rows:
        return paragraph("No rows.")
    header = "".join(
        f'<th class="{"n" if _is_number(value) else ""}">{_text(name.replace("_", " "))}</th>'
        for name, value in rows[0].items()
    )
    body = "".join(f"<tr>{''.join(_cell(value, marks or {}) for value in row.values())}</tr>" for row in rows[:_ROWS])
    more = paragraph(f"and {len(rows) - _ROWS} more") if len(rows) > _ROWS else ""
    return f'<div class="wide"><table><tr>{header}</tr>{body}</table></div>{more}'


def _cell(value: Any, marks: Mapping[str, str]) -> str:
    if value is None:
        return "<td></td>"
    if _is_number(value):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        return f'<td class="n">{shown}</td>'
    mark = marks.get(value)
    return f'<td class="{mark}">{_text(value)}</td>' if mark else f"<td>{_text(value)}</td>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    return escape(printable(str(value)))


def span_facts(span_ms: tuple[int, int]) -> dict[str, Any]:
    """A range, as facts of a page."""
    return {name: f"{_minute_text(end_ms)} UTC" for name, end_ms in zip(("from", "to"), span_ms, strict=True)}


def _minute_text(instant_ms: int) -> str:
    """An instant to the minute, in UTC without the zone: `2026-11-22 17:10`."""
    return f"{datetime.fromtimestamp(instant_ms / 1000, UTC):%Y-%m-%d %H:%M}"


# Charts as SVG: lines over time with gaps where there is no data, and bars.

BARS: Final = 20
"""How many names a chart of bars has, at most."""

_PARTS: Final = 120
_WIDTH: Final = 900
_HEIGHT: Final = 220
_LEFT: Final = 60
_BAR_HEIGHT: Final = 16
_NAMES_WIDTH: Final = 260
_TEXTS_WIDTH: Final = 90
_LONGEST_NAME: Final = 40

Text = Callable[[float], str]


Line = tuple[str, Sequence[float]]
"""A line of a chart over time: its name, and one value for each part of the range."""
Bars = tuple[str, Sequence[float | None]]
"""The bars of one name: one for each of the series, None for no bar."""


def time_chart(title: str, lines: Sequence[Line], known: Sequence[bool], span_ms: tuple[int, int], text: Text) -> str:
    """Lines over time, at most 4. Where nothing is known there is a gap, and not zero.

    Args:
        title: What the chart shows, for those who cannot see it.
        known: Whether each part of the range has data: as many as each line has values. A gap of less than a minute is
            none.
    """
    most = max((max(values) for _, values in lines if values), default=0) or 1e-9
    stretches = list(_stretches(known, (span_ms[1] - span_ms[0]) / max(len(known), 1)))
    paths = "".join(
        f'<polyline class="line c{place}" points="{_points(values, most, *ends)}"/>'
        for place, (_, values) in enumerate(lines)
        for ends in stretches
    )
    gaps = "".join(_gap(begin, end, len(known)) for begin, end in _between(stretches, len(known)))
    labels = (
        f'<text x="0" y="12">{_text(text(most))}</text><text x="0" y="{_HEIGHT}">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT + 16}">{_minute_text(span_ms[0])}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{_minute_text(span_ms[1])} UTC</text>'
    )
    names = [name for name, _ in lines] + (["no data"] if gaps else [])
    return _svg(title, _HEIGHT + 44, gaps + paths + labels + _legend(names, _HEIGHT + 36))


def bar_chart(title: str, series: Sequence[str], bars: Sequence[Bars], text: Text) -> str:
    """Horizontal bars: under each name one for each of the series, at most 4; `title` as in `time_chart`."""
    most = max((value for _, values in bars for value in values if value is not None), default=0) or 1
    room = _WIDTH - _NAMES_WIDTH - _TEXTS_WIDTH
    step = len(series) * _BAR_HEIGHT + 8
    drawn = []
    for place, (name, values) in enumerate(bars):
        top = place * step
        drawn.append(f'<text x="0" y="{top + 12}">{_text(_short(name))}</text>')
        for row, value in enumerate(values):
            if value is None:
                continue
            y, width = top + row * _BAR_HEIGHT, value / most * room
            drawn.append(
                f'<rect class="c{row}" x="{_NAMES_WIDTH}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT - 2}"/>'
                f'<text x="{_NAMES_WIDTH + 5 + width:.1f}" y="{y + 12}">{_text(text(value))}</text>'
            )
    bottom = len(bars) * step
    return _svg(title, bottom + 20, "".join(drawn) + _legend(series, bottom + 12))


def _svg(title: str, height: int, inner: str) -> str:
    name = _text(title)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}"><title>{name}</title>{inner}</svg>'


def _legend(names: Sequence[str], y: int) -> str:
    drawn, x = [], _LEFT
    for place, name in enumerate(names):
        mark = "gap" if name == "no data" else f"c{place}"
        drawn.append(f'<rect class="{mark}" x="{x}" y="{y - 9}" width="10" height="10"/>')
        drawn.append(f'<text x="{x + 14}" y="{y}">{_text(_short(name))}</text>')
        x += 34 + 7 * min(len(name), _LONGEST_NAME)
    return "".join(drawn)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _stretches(known: Sequence[bool], part_ms: float) -> Iterator[tuple[int, int]]:
    """The stretches of the range that have data: first part, and end (exclusive). Between them is a gap."""
    begin, end = None, 0
    for place in (place for place, has_data in enumerate(known) if has_data):
        if begin is None:
            begin = place
        elif (place - end) * part_ms >= MINUTE_MS:
            yield begin, end
            begin = place
        end = place + 1
    if begin is not None:
        yield begin, end


def _between(stretches: Sequence[tuple[int, int]], parts: int) -> Iterator[tuple[int, int]]:
    ends = [0, *(place for stretch in stretches for place in stretch), parts]
    yield from ((begin, end) for begin, end in zip(ends[::2], ends[1::2], strict=True) if begin < end)


def _gap(begin: int, end: int, parts: int) -> str:
    step = (_WIDTH - _LEFT) / parts
    x, width = _LEFT + begin * step, (end - begin) * step
    return f'<rect class="gap" x="{x:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT}"/>'


def _points(values: Sequence[float], most: float, begin: int, end: int) -> str:
    """The parts begin (inclusive) to end (exclusive) as points in their middles; a single one as a short line."""
    step = (_WIDTH - _LEFT) / len(values)
    points = [(_LEFT + (i + 0.5) * step, _HEIGHT - values[i] / most * _HEIGHT) for i in range(begin, end)]
    if len(points) == 1:
        ((x, y),) = points
        points = [(x - step / 2, y), (x + step / 2, y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def parts_of(span_ms: tuple[int, int]) -> list[int]:
    """The lengths in ms of at most 120 equal parts of a range, in whole minutes; the last one may be shorter."""
    begin_ms, end_ms = span_ms
    minutes = -(-(end_ms - begin_ms) // MINUTE_MS)
    part_ms = -(-minutes // _PARTS) * MINUTE_MS
    return [min(part_ms, end_ms - at_ms) for at_ms in range(begin_ms, end_ms, part_ms)]
