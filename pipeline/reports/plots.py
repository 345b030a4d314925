"""Charts as SVG, all of one make: lines over time with gaps where there is no data, and bars.

A chart has no script and loads nothing. Its colours are those of the page (`pipeline.reports.page`), light and dark.
Every text is escaped here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from pipeline.errors import printable
from pipeline.reports.instants import minute_text

PARTS: Final = 120
"""Into how many parts a range is divided for a chart over time."""

_WIDTH: Final = 900
_HEIGHT: Final = 220
_LEFT: Final = 60
_BAR_HEIGHT: Final = 16
_NAMES_WIDTH: Final = 260
_TEXTS_WIDTH: Final = 90
_LONGEST_NAME: Final = 40
_GAP_MS: Final = 60_000

Text = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart over time: its name, and one value for each part of the range."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Bars:
    """The bars of one name: one for each of the series, None for no bar."""

    name: str
    values: Sequence[float | None]


def time_chart(title: str, lines: Sequence[Line], known: Sequence[bool], span_ms: tuple[int, int], text: Text) -> str:
    """Lines over time. Where nothing is known there is a gap, and not zero.

    Args:
        title: What the chart shows, for those who can not see it.
        lines: At most 4, each with as many values as `known`.
        known: Whether each part of the range has data. A gap of less than a minute is none.
        span_ms: Begin and end of the range.
        text: Writes a value with its unit.
    """
    most = max((max(line.values) for line in lines if line.values), default=0) or 1e-9
    stretches = list(_stretches(known, (span_ms[1] - span_ms[0]) / max(len(known), 1)))
    paths = "".join(
        f'<polyline class="line c{place}" points="{_points(line.values, most, *ends)}"/>'
        for place, line in enumerate(lines)
        for ends in stretches
    )
    gaps = "".join(_gap(begin, end, len(known)) for begin, end in _between(stretches, len(known)))
    labels = (
        f'<text x="0" y="12">{_escaped(text(most))}</text><text x="0" y="{_HEIGHT}">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT + 16}">{minute_text(span_ms[0])}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{minute_text(span_ms[1])} UTC</text>'
    )
    names = [line.name for line in lines] + (["no data"] if gaps else [])
    return _svg(title, _HEIGHT + 44, gaps + paths + labels + _legend(names, _HEIGHT + 36))


def bar_chart(title: str, series: Sequence[str], bars: Sequence[Bars], text: Text) -> str:
    """Horizontal bars: under each name one for each of the series.

    Args:
        title: What the chart shows, for those who can not see it.
        series: Names of the series, at most 4.
        bars: From top to bottom.
        text: Writes a value with its unit.
    """
    most = max((value for one in bars for value in one.values if value is not None), default=0) or 1
    room = _WIDTH - _NAMES_WIDTH - _TEXTS_WIDTH
    step = len(series) * _BAR_HEIGHT + 8
    drawn = []
    for place, one in enumerate(bars):
        top = place * step
        drawn.append(f'<text x="0" y="{top + 12}">{_escaped(_short(one.name))}</text>')
        for row, value in enumerate(one.values):
            if value is None:
                continue
            y, width = top + row * _BAR_HEIGHT, value / most * room
            drawn.append(
                f'<rect class="c{row}" x="{_NAMES_WIDTH}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT - 2}"/>'
                f'<text x="{_NAMES_WIDTH + 5 + width:.1f}" y="{y + 12}">{_escaped(text(value))}</text>'
            )
    bottom = len(bars) * step
    return _svg(title, bottom + 20, "".join(drawn) + _legend(series, bottom + 12))


def _svg(title: str, height: int, inner: str) -> str:
    name = _escaped(title)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}"><title>{name}</title>{inner}</svg>'


def _legend(names: Sequence[str], y: int) -> str:
    drawn, x = [], _LEFT
    for place, name in enumerate(names):
        mark = "gap" if name == "no data" else f"c{place}"
        drawn.append(f'<rect class="{mark}" x="{x}" y="{y - 9}" width="10" height="10"/>')
        drawn.append(f'<text x="{x + 14}" y="{y}">{_escaped(_short(name))}</text>')
        x += 34 + 7 * min(len(name), _LONGEST_NAME)
    return "".join(drawn)


def _escaped(text: str) -> str:
    return escape(printable(text))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


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


def _between(stretches: Sequence[tuple[int, int]], parts: int) -> Iterator[tuple[int, int]]:
    """The gaps: what is before, between and after the stretches."""
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
