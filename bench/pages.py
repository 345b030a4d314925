"""What benchmarks print and write into pages: tables, the part between two marks, line charts as SVG files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

import numpy as np

Points = Sequence[tuple[float, float]]

WIDTH: Final = 420
HEIGHT: Final = 320
LEFT: Final = 64
TOP: Final = 58
GAP: Final = 40
LEGEND_LINE: Final = 18
COLOURS: Final = ("#0b6e4f", "#c1440e", "#1f5fa8", "#8a5a00", "#7b3fa0", "#444444", "#b03060", "#2fa4a4")


def table(head: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> str:
    """A table in Markdown; without rows its head, to which `row` adds them as they come."""
    return "\n".join(map(row, (head, ["---"] * len(head), *rows)))


def row(cells: Iterable[str | float], digits: int = 0) -> str:
    return f"| {' | '.join(_shown(cells, digits))} |"


def line(widths: Sequence[int], cells: Iterable[str | float], digits: int = 0) -> str:
    """A line of a table in plain text. A cell of negative width is flush left."""
    padded = zip(widths, _shown(cells, digits), strict=True)
    return "".join(cell.rjust(width) if width > 0 else cell.ljust(-width) for width, cell in padded)


def _shown(cells: Iterable[str | float], digits: int) -> Iterable[str]:
    """Numbers with so many digits after the point."""
    return (cell if isinstance(cell, str) else f"{cell:.{digits}f}" for cell in cells)


def percentiles(values: Sequence[float], wanted: Sequence[float] = (50, 99)) -> list[float]:
    """Between two values a percentile is interpolated. All are NaN for fewer than two values."""
    found: list[float] = np.percentile(values if len(values) > 1 else [float("nan")], wanted).tolist()
    return found


MEASURED: Final = ("<!-- measured -->", "<!-- /measured -->")
"""The marks of the part that a command of the tests has written, where a page has one."""


def write_part(page: Path, begin: str, end: str, text: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from 0 on, of so many pixels."""

    title: str
    high: float
    pixels: int

    def place(self, value: float) -> float:
        """Where a value is, in pixels from 0. A value outside is drawn at the edge."""
        return min(max(value / self.high, 0.0), 1.0) * self.pixels

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The places and labels of about five round numbers."""
        steps = (step * 10.0**power for power in range(-3, 9) for step in (1, 2, 5))
        step = next(step for step in steps if self.high / step <= 6)
        values = (step * number for number in range(int(self.high / step) + 1))
        return [(self.place(value), f"{value:g}") for value in values]


def write_time_plot(
    path: Path,
    title: str,
    axes: tuple[str, str],
    panels: Mapping[str, Mapping[str, Points]],
    *,
    level: float,
    instants: Sequence[float] = (),
) -> None:
    """Write a picture with a panel a heading, and dashed lines at a level and at some instants."""
    across, up = zip(*(point for lines in panels.values() for line in lines.values() for point in line), strict=True)
    both = Axis(axes[0], max(across), WIDTH), Axis(axes[1], max(level, *up) * 1.05, HEIGHT)
    dashed = [[(0, level), (both[0].high, level)], *([(at, 0), (at, both[1].high)] for at in instants)]
    colours = dict(zip(dict.fromkeys(name for lines in panels.values() for name in lines), cycle(COLOURS)))
    width, height = len(panels) * (LEFT + WIDTH + GAP), TOP + HEIGHT + 60 + LEGEND_LINE * len(colours)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(LEFT, 20, title, 'font-size="15"'),
    ]
    for number, (heading, lines) in enumerate(panels.items()):
        drawn += [f'<g transform="translate({LEFT + number * (LEFT + WIDTH + GAP)},{TOP + HEIGHT})">']
        drawn += [_text(0, -HEIGHT - 8, heading), *_grid(*both)]
        drawn += [_line(both, line, "#888", ' stroke-dasharray="4 4"') for line in dashed]
        drawn += [*(_line(both, line, colours[name]) for name, line in lines.items()), "</g>"]
    for y, (name, colour) in enumerate(colours.items()):
        top = TOP + HEIGHT + 56 + LEGEND_LINE * y
        drawn.append(f'<rect x="{LEFT}" y="{top - 8}" width="24" height="4" fill="{colour}"/>')
        drawn.append(_text(LEFT + 32, top, name))
    path.write_text("\n".join([*drawn, "</svg>", ""]), encoding="utf-8")


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{escape(text)}</text>'


def _line(axes: tuple[Axis, Axis], points: Points, colour: str, more: str = "") -> str:
    drawn = " ".join(f"{axes[0].place(x):.1f},{-axes[1].place(y):.1f}" for x, y in points)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"{more}/>'


def _grid(across: Axis, up: Axis) -> Iterator[str]:
    middle, end = 'text-anchor="middle"', 'text-anchor="end"'
    for x, label in across.ticks:
        yield f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{-HEIGHT}" stroke="#ddd"/>{_text(x, 16, label, middle)}'
    for y, label in up.ticks:
        yield f'<line x1="0" y1="{-y:.1f}" x2="{WIDTH}" y2="{-y:.1f}" stroke="#ddd"/>{_text(-6, 4 - y, label, end)}'
    yield _text(WIDTH / 2, 34, across.title, middle)
    yield _text(0, 0, up.title, f'transform="translate(-46,{-HEIGHT / 2}) rotate(-90)" {middle}')
