"""The resident memory of a job (driver and JVM) during a soak."""

from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import median

from bench.machine import tree


@dataclass(frozen=True, slots=True)
class Memory:
    """The resident memory in MB of a job's own process, and of its child processes: the JVM."""

    driver_mb: float
    jvm_mb: float

    @property
    def total_mb(self) -> float:
        """The sum of both."""
        return self.driver_mb + self.jvm_mb

    def __str__(self) -> str:
        return f"{self.total_mb:.0f} MB (driver {self.driver_mb:.0f}, JVM {self.jvm_mb:.0f})"


class MemoryTrace:
    """The samples of one soak, of processes that have run for a while."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Memory]] = []

    def take(self, seconds: float, pid: int) -> None:
        """Take a sample of a process and its children, this long after the soak began."""
        memory = resident(pid)
        if memory.driver_mb:
            self._samples.append((seconds, memory))

    def around(self, seconds: float, within_seconds: float) -> Memory:
        """The medians of the samples at most this long before and after an instant; NaN if there are none."""
        near = [memory for at, memory in self._samples if abs(at - seconds) <= within_seconds]
        if not near:
            return Memory(nan, nan)
        return Memory(median(memory.driver_mb for memory in near), median(memory.jvm_mb for memory in near))


def resident(pid: int) -> Memory:
    """The memory of a process and of its children; 0 when it is gone."""
    own, *below = map(_own_kb, tree(pid))
    return Memory(own / 1024, sum(below) / 1024)


def _own_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
