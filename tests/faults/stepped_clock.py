"""A wall clock that is stepped from outside, and what a verdict must know of it.

The processes have `stepped_clock.c` before their C library. It shows tens of milliseconds and, as the last digit, the
number of its last step: so each reading in a table tells since which step it was taken.
"""

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Final

from tests.faults.case import written_ms
from tests.faults.evidence import Evidence

COMPILER: Final = shutil.which("cc")
_AHEAD: Final = struct.Struct("=q")
_DIGITS: Final = 10
_SLACK_MS: Final = 100


@dataclass(frozen=True, slots=True)
class ClockHistory:
    """How a wall clock was set.

    Attributes:
        steps: When it was set, true epoch milliseconds, and how far it was ahead from then on, milliseconds. The
            first one is from when it began.
        lives: When the processes of the job were started, true epoch milliseconds. No step comes between a start and
            the first reading.
    """

    steps: Sequence[tuple[int, int]]
    lives: Sequence[int] = ()

    def moved_ms(self, reading_ms: int) -> int:
        """How far the clock was ahead when it showed this.

        Raises:
            ValueError: It never showed this.
        """
        for (from_ms, ahead_ms), (until_ms, _) in pairwise([*self.steps, (inf, 0)]):
            is_of_step = (reading_ms - ahead_ms) % _DIGITS == 0
            if is_of_step and from_ms - _SLACK_MS <= reading_ms - ahead_ms <= until_ms + _SLACK_MS:
                return ahead_ms
        msg = f"the stepped clock never showed {reading_ms}; its steps: {self.steps}"
        raise ValueError(msg)

    def ahead_at(self, true_ms: int) -> int:
        return next(ahead_ms for at_ms, ahead_ms in reversed(self.steps) if at_ms <= true_ms)

    def tell(self, evidence: Evidence) -> Evidence:
        """The evidence of a job on this clock with what is known of its steps. `starts` are readings of the clock."""
        batches = [{**row, "moved_ms": self.moved_ms(row["processed_at_ms"])} for row in evidence.tables["batches"]]
        events = [self._event(row) for row in evidence.tables["throttle_events"]]
        aheads_ms = [self.moved_ms(start_ms) for start_ms in evidence.starts or ()]
        starts = [start_ms - ahead_ms for start_ms, ahead_ms in zip(evidence.starts or (), aheads_ms, strict=True)]
        return replace(
            evidence,
            tables={**evidence.tables, "batches": batches, "throttle_events": events},
            starts=None if evidence.starts is None else starts,
            moved=list(zip(aheads_ms, (_first_seq(events, start_ms) for start_ms in starts), strict=True)),
        )

    def _event(self, row: dict[str, Any]) -> dict[str, Any]:
        """With how far the wall clock was ahead, and due by the first clock: a process has a steady one of its own."""
        moved_ms = self.moved_ms(written_ms(row))
        started_ms = max(life_ms for life_ms in self.lives if life_ms < written_ms(row) - moved_ms)
        due_ms = None if row["due_ms"] is None else row["due_ms"] - self.ahead_at(started_ms)
        return {**row, "moved_ms": moved_ms, "due_ms": due_ms}


@dataclass
class SteppedClock:
    """The wall clock of all processes that are started within `stepped_clock`.

    Attributes:
        file: Tells the library how far it is ahead.
        steps: As `ClockHistory` has them.
    """

    file: Path
    steps: list[tuple[int, int]] = field(default_factory=list)

    def step(self, seconds: int) -> None:
        self.set_ahead(self.ahead_seconds + seconds)

    def set_ahead(self, seconds: int) -> None:
        ahead_ms = seconds * 1_000 + len(self.steps) % _DIGITS
        self.steps.append((_true_ms(), ahead_ms))
        with self.file.open("r+b" if self.file.exists() else "wb", buffering=0) as mapped:
            mapped.write(_AHEAD.pack(ahead_ms))

    @property
    def ahead_seconds(self) -> int:
        return self.steps[-1][1] // 1_000


@contextmanager
def stepped_clock(folder: Path) -> Iterator[SteppedClock]:
    """A clock for all processes that are started, by whomever, until the block ends; not for this one.

    Args:
        folder: For its library and its file.
    """
    library, clock = folder / "stepped_clock.so", SteppedClock(folder / "ahead")
    source = Path(__file__).with_name("stepped_clock.c")
    subprocess.run([str(COMPILER), "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    clock.set_ahead(0)
    given = {"LD_PRELOAD": str(library), "STEPPED_CLOCK_FILE": str(clock.file)}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield clock
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _first_seq(events: Sequence[dict[str, Any]], start_ms: int) -> int:
    """The first record that was written after a start."""
    later = (row["publish_seq"] for row in events if written_ms(row) >= start_ms - _SLACK_MS)
    return min(later, default=len(events))


def _true_ms() -> int:
    return time.time_ns() // 1_000_000
