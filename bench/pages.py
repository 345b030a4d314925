"""What benchmarks write into pages: tables, the part between two marks, and line charts as SVG files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

WIDTH: Final = 420
HEIGHT: Final = 320
LEFT: Final = 64
TOP: Final = 58
GAP: Final = 40
LEGEND_LINE: Final = 18
COLOURS: Final = ("#0b6e4f", "#c1440e", "#1f5fa8", "#8a5a00", "#7b3fa0", "#444444", "#b03060", "#2fa4a4")
_BOTTOM: Final = TOP + HEIGHT


def table(head: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> str:
    """A table in Markdown; without rows its head, to which `row` adds them as they come."""
    return "\n".join(map(row, (head, ["---"] * len(head), *rows)))


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


MEASURED: Final = ("<!-- measured -->", "<!-- /measured -->")
"""The marks of the part that a command of the tests has written, where a page has one."""


def write_part(page: Path, begin: str, end: str, text: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from 0 on."""

    title: str
    high: float

    def place(self, value: float) -> float:
        """The position of a value: 0 at the beginning, 1 at the end. A value outside is drawn at the edge."""
        return min(max(value / self.high, 0.0), 1.0)

    @property
    def ticks(self) -> dict[float, str]:
        """The labels of about five round numbers."""
        steps = (step * 10.0**power for power in range(-3, 9) for step in (1, 2, 5))
        step = next(step for step in steps if self.high / step <= 6)
        return {step * number: f"{step * number:g}" for number in range(int(self.high / step) + 1)}


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
    both = Axis(axes[0], max(across)), Axis(axes[1], max(level, *up) * 1.05)
    dashed = [[(0, level), (both[0].high, level)], *([(at, 0), (at, both[1].high)] for at in instants)]
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    width, height = len(panels) * (LEFT + WIDTH + GAP), _BOTTOM + 60 + LEGEND_LINE * len(names)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for number, (heading, lines) in enumerate(panels.items()):
        left = LEFT + number * (LEFT + WIDTH + GAP)
        drawn += [f'<text x="{left}" y="{TOP - 8}">{escape(heading)}</text>', *_grid(left, both)]
        drawn += [_line(left, both, line, "#888", ' stroke-dasharray="4 4"') for line in dashed]
        for name, line in lines.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            drawn.append(_line(left, both, line, colour))
    for number, name in enumerate(names):
        y, colour = _BOTTOM + 56 + LEGEND_LINE * number, COLOURS[number % len(COLOURS)]
        drawn.append(f'<rect x="{LEFT}" y="{y - 8}" width="24" height="4" fill="{colour}"/>')
        drawn.append(f'<text x="{LEFT + 32}" y="{y}">{escape(name)}</text>')
    path.write_text("\n".join([*drawn, "</svg>", ""]), encoding="utf-8")


def _line(left: float, axes: tuple[Axis, Axis], points: Points, colour: str, more: str = "") -> str:
    places = ((left + axes[0].place(x) * WIDTH, _BOTTOM - axes[1].place(y) * HEIGHT) for x, y in points)
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"{more}/>'


def _grid(left: float, axes: tuple[Axis, Axis]) -> list[str]:
    parts = []
    for value, label in axes[0].ticks.items():
        x = left + axes[0].place(value) * WIDTH
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{_BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{label}</text>')
    for value, label in axes[1].ticks.items():
        y = _BOTTOM - axes[1].place(value) * HEIGHT
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    middle = f'x="{left + WIDTH / 2}" y="{_BOTTOM + 34}" text-anchor="middle"'
    turned = f'transform="translate({left - 46},{TOP + HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
    return [*parts, f"<text {middle}>{escape(axes[0].title)}</text>", f"<text {turned}>{escape(axes[1].title)}</text>"]
