"""Resident memory of a job, the driver and its JVM, over a soak."""

from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in MB of a job's own process and of those below it: its JVM."""

    driver_mb: float
    jvm_mb: float

    @property
    def total_mb(self) -> float:
        """Of both."""
        return self.driver_mb + self.jvm_mb

    def __str__(self) -> str:
        return f"{self.total_mb:.0f} MB (driver {self.driver_mb:.0f}, JVM {self.jvm_mb:.0f})"


class MemoryTrace:
    """Samples of one soak, of processes that have settled."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Memory]] = []

    def take(self, seconds: float, pid: int) -> None:
        """Read a process and all below it, so long after the soak began."""
        memory = resident(pid)
        if memory.driver_mb:
            self._samples.append((seconds, memory))

    def around(self, seconds: float, within_seconds: float) -> Memory:
        """Medians of the samples at most so long before and after; NaN without any."""
        near = [memory for at, memory in self._samples if abs(at - seconds) <= within_seconds]
        if not near:
            return Memory(nan, nan)
        return Memory(median(memory.driver_mb for memory in near), median(memory.jvm_mb for memory in near))


def resident(pid: int) -> Memory:
    """Of a process and all below it; 0 when it is gone."""
    return Memory(_own_kb(pid) / 1024, sum(map(_own_kb, _below(pid))) / 1024)


def _below(pid: int) -> list[int]:
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in tasks.read_text(encoding="ascii").split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_below(child)]
    return found


def _own_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
