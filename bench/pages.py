"""What benchmarks write into pages: the part between two marks, and line charts as SVG files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape


def write_part(page: Path, begin: str, end: str, text: str) -> None:
    """Put a text between the marks, in place of what is there."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


Points = Sequence[tuple[float, float]]

WIDTH: Final = 420
HEIGHT: Final = 320
LEFT: Final = 64
TOP: Final = 34
GAP: Final = 40
LEGEND_LINE: Final = 18
COLOURS: Final = ("#0b6e4f", "#c1440e", "#1f5fa8", "#8a5a00", "#7b3fa0", "#444444", "#b03060", "#2fa4a4")


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis in whole decades."""

    title: str  # what it shows, with the unit
    low: int  # exponent of the first decade
    high: int  # exponent of the last decade's end

    def place(self, value: float) -> float:
        """The position of a value: 0 at the beginning, 1 at the end. A value outside is drawn at the edge."""
        share = (math.log10(value) - self.low) / (self.high - self.low) if value > 0 else 0.0
        return min(max(share, 0.0), 1.0)

    @property
    def ticks(self) -> list[int]:
        """The exponents that have a label."""
        return list(range(self.low, self.high + 1))


def axis(title: str, values: Sequence[float]) -> Axis:
    """An axis that contains all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return Axis(title, low, max(high, low + 1))


def write_plot(
    path: Path, title: str, axes: tuple[str, str], panels: Mapping[str, Mapping[str, Points]], *, diagonal: bool = False
) -> None:
    """Write a picture."""
    points = [point for lines in panels.values() for line in lines.values() for point in line]
    horizontal = axis(axes[0], [x for x, _ in points])
    vertical = axis(axes[1], [y for _, y in points])
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    parts = []
    for number, (heading, lines) in enumerate(panels.items()):
        left = LEFT + number * (LEFT + WIDTH + GAP)
        parts += _panel(left, heading, (horizontal, vertical), lines, names, diagonal=diagonal)
    write_picture(path, title, parts, len(panels), names)


def write_picture(path: Path, title: str, parts: Sequence[str], panels: int, names: Sequence[str]) -> None:
    """Write what was drawn, with a title above and a legend below it."""
    width = panels * (LEFT + WIDTH + GAP)
    height = TOP + 24 + HEIGHT + 48 + LEGEND_LINE * len(names) + 12
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
        *parts,
    ]
    for number, name in enumerate(names):
        y = TOP + 24 + HEIGHT + 56 + LEGEND_LINE * number
        colour = COLOURS[number % len(COLOURS)]
        drawn.append(f'<rect x="{LEFT}" y="{y - 8}" width="24" height="4" fill="{colour}"/>')
        drawn.append(f'<text x="{LEFT + 32}" y="{y}">{escape(name)}</text>')
    path.write_text("\n".join([*drawn, "</svg>", ""]), encoding="utf-8")


def _panel(
    left: float,
    heading: str,
    axes: tuple[Axis, Axis],
    lines: Mapping[str, Points],
    names: Sequence[str],
    *,
    diagonal: bool,
) -> list[str]:
    top, bottom = TOP + 24, TOP + 24 + HEIGHT

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return left + axes[0].place(point[0]) * WIDTH, bottom - axes[1].place(point[1]) * HEIGHT

    parts = [f'<text x="{left}" y="{top - 8}">{escape(heading)}</text>']
    for exponent in axes[0].ticks:
        x, _ = at((10.0**exponent, 10.0 ** axes[1].low))
        parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_number(exponent)}</text>')
    for exponent in axes[1].ticks:
        _, y = at((10.0 ** axes[0].low, 10.0**exponent))
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(exponent)}</text>')
    parts.append(f'<text x="{left + WIDTH / 2}" y="{bottom + 34}" text-anchor="middle">{escape(axes[0].title)}</text>')
    turned = f'transform="translate({left - 46},{top + HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {turned}>{escape(axes[1].title)}</text>")
    if diagonal:
        ends = [10.0 ** max(axes[0].low, axes[1].low), 10.0 ** min(axes[0].high, axes[1].high)]
        parts.append(_line([at((end, end)) for end in ends], "#999", ' stroke-dasharray="4 4"'))
    for name, line in lines.items():
        colour = COLOURS[names.index(name) % len(COLOURS)]
        places = [at(point) for point in line]
        parts.append(_line(places, colour))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return parts


def _line(places: Points, colour: str, more: str = "") -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"{more}/>'


def _number(exponent: int) -> str:
    names = {3: "1 k", 4: "10 k", 5: "100 k", 6: "1 M", 7: "10 M", 8: "100 M"}
    return names.get(exponent, f"{10.0**exponent:g}")


_TOP: Final = TOP + 24
_BOTTOM: Final = _TOP + HEIGHT


def write_time_plot(
    path: Path,
    title: str,
    axes: tuple[str, str],
    panels: Mapping[str, Mapping[str, Points]],
    *,
    level: float,
    instants: Sequence[float] = (),
) -> None:
    """Write a picture."""
    points = [point for lines in panels.values() for line in lines.values() for point in line]
    highest = max(x for x, _ in points), max(level, *(y for _, y in points)) * 1.05
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    parts = []
    for number, (heading, lines) in enumerate(panels.items()):
        panel = _Panel(LEFT + number * (LEFT + WIDTH + GAP), highest)
        parts += [f'<text x="{panel.left}" y="{_TOP - 8}">{escape(heading)}</text>', *panel.grid(axes)]
        parts += [panel.line(((0, level), (highest[0], level)), "#666", dashed=True)]
        parts += [panel.line(((at, 0), (at, highest[1])), "#999", dashed=True) for at in instants]
        parts += [panel.line(line, COLOURS[names.index(name) % len(COLOURS)]) for name, line in lines.items()]
    write_picture(path, title, parts, len(panels), names)


class _Panel:
    def __init__(self, left: float, highest: tuple[float, float]) -> None:
        self.left = left
        self._highest = highest

    def grid(self, axes: tuple[str, str]) -> list[str]:
        parts = []
        for value in _ticks(self._highest[0]):
            x, _ = self._place((value, 0))
            parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_BOTTOM}" stroke="#ddd"/>')
            parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
        for value in _ticks(self._highest[1]):
            _, y = self._place((0, value))
            parts.append(f'<line x1="{self.left}" y1="{y:.1f}" x2="{self.left + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        middle = f'x="{self.left + WIDTH / 2}" y="{_BOTTOM + 34}" text-anchor="middle"'
        turned = f'transform="translate({self.left - 40},{_TOP + HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
        return [*parts, f"<text {middle}>{escape(axes[0])}</text>", f"<text {turned}>{escape(axes[1])}</text>"]

    def line(self, points: Points, colour: str, *, dashed: bool = False) -> str:
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self._place, points))
        more = ' stroke-dasharray="4 4"' if dashed else ""
        return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"{more}/>'

    def _place(self, point: tuple[float, float]) -> tuple[float, float]:
        across, up = (value / highest for value, highest in zip(point, self._highest, strict=True))
        return self.left + across * WIDTH, _BOTTOM - up * HEIGHT


def _ticks(highest: float) -> list[float]:
    """About five round numbers from 0 on."""
    steps = (step * 10.0**power for power in range(-3, 9) for step in (1, 2, 5))
    step = next(step for step in steps if highest / step <= 6)
    return [step * number for number in range(int(highest / step) + 1)]
