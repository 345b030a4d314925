"""Lines over time, panel beside panel, in one SVG file; both axes are linear and begin at 0."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from bench.purgatory.plot import COLOURS, GAP, HEIGHT, LEFT, TOP, WIDTH, Points, write_picture

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
    """Write a picture.

    Args:
        path: of the file.
        title: above all panels.
        axes: the titles of the horizontal and the vertical axis, the same for all panels.
        panels: the lines of each panel by name, by the heading of the panel. A name has one colour in all panels.
        level: a value of the vertical axis to draw a line at.
        instants: values of the horizontal axis to draw lines at.
    """
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
