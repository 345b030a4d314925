"""What became of six clients of one broker while a quota was raised and cut: a table for a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from bench.page_part import write_part

_SHOWN_SECONDS: Final = 10
_BEGIN: Final = "<!-- six: written by `python -m bench six_clients` -->"
_END: Final = "<!-- six end -->"


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which nothing was edited.

    Attributes:
        name: what it is.
        factor: the offenders' quota, in T; 0 = they do not run yet, infinity = others like them run without a quota.
        judged_from: second after which rates and answers are judged, to the end.
        seconds: how long it is.
    """

    name: str
    factor: float
    judged_from: int
    seconds: int

    @property
    def is_bounded(self) -> bool:
        """Whether the offenders run under a quota."""
        return 0 < self.factor < math.inf


PHASES: Final = (
    Phase("without offenders", 0, 0, 30),
    Phase("offenders without a quota", math.inf, 5, 35),
    Phase("under T", 1, 45, 75),
    Phase("raised to 2 · T", 2, 15, 60),
    Phase("cut to T", 1, 30, 90),
)


@dataclass(slots=True)
class Offender:
    """What the broker took of one offender.

    Attributes:
        at: instants, in seconds.
        taken_bytes: the end of its log at each of them, times the size of a record.
        throttle_max_ms: the longest time that an answer told it to wait.
    """

    at: list[float] = field(default_factory=list)
    taken_bytes: list[float] = field(default_factory=list)
    throttle_max_ms: float = 0.0

    def rate(self, begin: float, end: float) -> float:
        """Bytes per second between two instants."""
        before, after = np.interp([begin, end], self.at, self.taken_bytes)
        return float(after - before) / (end - begin)


@dataclass(frozen=True, slots=True)
class SixRun:
    """One run.

    Attributes:
        bound: T, in bytes per second.
        begins: when each of `PHASES` began: when the quota was in the broker, or the offenders had sent something.
        offenders: by what they are.
        quiet_answer_ms: of each phase, how long each request of the quiet clients took, in the seconds that are judged.
        quiet_throttle_max_ms: the longest time that an answer told one of them to wait.
        edit_seconds: from the commit of an edit until the broker had it, of each edit.
    """

    bound: float
    begins: Sequence[float]
    offenders: Mapping[str, Offender]
    quiet_answer_ms: Sequence[Sequence[float]]
    quiet_throttle_max_ms: float
    edit_seconds: Sequence[float]

    def judged(self, offender: str, phase: int) -> float:
        """Its rate divided by its quota, from the second on from which it is judged."""
        return self._ratio(offender, phase, PHASES[phase].judged_from, PHASES[phase].seconds)

    def tens(self, offender: str, phase: int) -> list[float]:
        """The same for each ten seconds, from the beginning."""
        starts = range(0, PHASES[phase].seconds - _SHOWN_SECONDS + 1, _SHOWN_SECONDS)
        return [self._ratio(offender, phase, start, start + _SHOWN_SECONDS) for start in starts]

    def _ratio(self, offender: str, phase: int, first: int, end: int) -> float:
        begin, quota = self.begins[phase], PHASES[phase].factor * self.bound
        return self.offenders[offender].rate(begin + first, begin + end) / quota


def markdown(run: SixRun) -> str:
    """A row for each phase and offender, and one for the quiet clients; then the edits."""
    lines = ["| | offender | rate / its quota, each 10 s | mean |", "| --- | --- | --- | --- |"]
    for number, phase in enumerate(PHASES):
        for name in run.offenders if phase.is_bounded else ():
            tens = " ".join(f"{ratio:.2f}" for ratio in run.tens(name, number))
            judged = f"{run.judged(name, number):.2f} from {phase.judged_from} s on"
            lines.append(f"| {phase.name} | {name} | {tens} | {judged} |")
    quiet = [
        "| | quiet clients: p50 and p99 of a request, same seconds | p99 / without offenders | p99 / without a quota |",
        "| --- | --- | --- | --- |",
    ]
    alone, unbounded = (float(np.percentile(answers, 99)) for answers in run.quiet_answer_ms[:2])
    for phase, answers in zip(PHASES, run.quiet_answer_ms, strict=True):
        p50, p99 = np.percentile(answers, [50, 99])
        times = f"{p50:.1f} and {p99:.1f} ms of {len(answers)}"
        quiet.append(f"| {phase.name} | {times} | {p99 / alone:.2f} | {p99 / unbounded:.2f} |")
    told = ", ".join(f"{name} {one.throttle_max_ms:.0f} ms" for name, one in run.offenders.items())
    edits = np.array(run.edit_seconds)
    return "\n".join([
        *lines,
        "",
        *quiet,
        "",
        f"T is {run.bound / 1000:g} kB/s. The longest throttle time in an answer: {told}, the quiet clients "
        f"{run.quiet_throttle_max_ms:.0f} ms. From the commit of an edit until the broker had it, {len(edits)} edits: "
        f"median {np.median(edits):.1f} s, longest {edits.max():.1f} s.",
    ])  # fmt: skip


def write_page(page: Path, text: str) -> None:
    """Put the text into a page, between its marks."""
    write_part(page, _BEGIN, _END, text)
