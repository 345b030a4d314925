"""What became of a client that two brokers share: a table for a page, and a plot beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.page_part import write_part
from bench.time_plot import write_time_plot

SCOPES: Final = {"broker": "mirror", "cluster": "cluster"}
"""The scope of the sync, and the name of its line."""

WINDOW_SECONDS: Final = 30
SETTLED_SECONDS: Final = 45

_SHOWN_SECONDS: Final = 10
_BEGIN: Final = "<!-- split: written by `python -m bench split_client` -->"
_END: Final = "<!-- split end -->"
_PLOT: Final = "split-client.svg"


@dataclass(frozen=True, slots=True)
class SplitRun:
    """One client.

    Attributes:
        scope: of the sync.
        load: k.
        sums: for each second what both brokers took together, divided by T.
        move: the second of the move.
    """

    scope: str
    load: float
    sums: Sequence[float]
    move: int

    def means(self, first: int, end: int, seconds: int = WINDOW_SECONDS) -> list[float]:
        """The means over so many seconds, each second anew, that begin at `first` or later and end at `end`."""
        return [sum(self.sums[last - seconds : last]) / seconds for last in range(first + seconds, end + 1)]

    @property
    def all_means(self) -> list[float]:
        """The means of 30 s from the start to the end."""
        return self.means(0, len(self.sums))

    @property
    def settled_means(self) -> list[float]:
        """Those that begin 45 s after the start or the move, or later, and have no move in them."""
        before = self.means(SETTLED_SECONDS, self.move)
        return [*before, *self.means(self.move + SETTLED_SECONDS, len(self.sums))]


def markdown(runs: Sequence[SplitRun]) -> str:
    """A row for each client: the mean of each ten seconds, and the means of half a minute."""
    settled = f"{WINDOW_SECONDS} s from {SETTLED_SECONDS} s after start or move"
    lines = [
        f"| wants | scope | each {_SHOWN_SECONDS} s; the move is at {runs[0].move} s | highest {WINDOW_SECONDS} s "
        f"| {settled} |",
        "| --- | --- | --- | --- | --- |",
    ]
    for run in sorted(runs, key=lambda run: run.load):
        tens = " ".join(f"{mean:.2f}" for mean in run.means(0, len(run.sums), _SHOWN_SECONDS)[::_SHOWN_SECONDS])
        late = run.settled_means
        span = f"{min(late):.2f}–{max(late):.2f}" if late else ""
        lines.append(f"| {run.load:g} · T | {SCOPES[run.scope]} | {tens} | {max(run.all_means):.2f} | {span} |")
    return "\n".join(lines)


def write_page(page: Path, text: str, runs: Sequence[SplitRun]) -> None:
    """Put the text and the plot into a page, between its marks; the plot is a file beside it."""
    _write_plot(page.with_name(_PLOT), runs)
    write_part(page, _BEGIN, _END, f"![The sum of both brokers over time]({_PLOT})\n\n{text}")


def _write_plot(path: Path, runs: Sequence[SplitRun]) -> None:
    """A panel for each load, a line for each scope: the mean of the last ten seconds."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run in sorted(runs, key=lambda run: run.load):
        means = run.means(0, len(run.sums), _SHOWN_SECONDS)
        line = [(float(end), mean) for end, mean in enumerate(means, _SHOWN_SECONDS)]
        panels.setdefault(f"the client wants {run.load:g} · T", {})[SCOPES[run.scope]] = line
    title = "A stock client on two brokers, 90/10 and then 10/90: their sum / T, mean of the last 10 s"
    write_time_plot(path, title, ("s", "sum over the brokers / T"), panels, level=1.0, instants=[runs[0].move])
