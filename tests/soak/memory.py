"""Resident memory of a job, the driver and its JVM, over a soak."""

from pathlib import Path
from statistics import median


class MemoryTrace:
    """Samples of one soak, of processes that have settled."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []

    def take(self, seconds: float, pid: int) -> None:
        """Read a process and all below it, so long after the soak began."""
        megabytes = resident_mb(pid)
        if megabytes:
            self._samples.append((seconds, megabytes))

    def around(self, seconds: float, within_seconds: float) -> float:
        """Median in MB of the samples at most so long before and after; NaN without any."""
        near = [megabytes for at, megabytes in self._samples if abs(at - seconds) <= within_seconds]
        return median(near) if near else float("nan")


def resident_mb(pid: int) -> float:
    """Of a process and all below it, in MB; 0 when it is gone."""
    return sum(_own_kb(one) for one in (pid, *_below(pid))) / 1024


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
