"""The share of a core that each process uses."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM = 1, 11, 12  # fields of /proc/PID/stat after the name


class CpuMeter:
    """Cores used by named processes, since the last question.

    Args:
        processes: name -> process id. Processes that have ended count nothing.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._last = {name: cpu_seconds(pid) for name, pid in processes.items()}
        self._last_at = time.monotonic()

    def cores(self) -> dict[str, float]:
        """Name -> mean number of cores since the last call (or since the start)."""
        now = time.monotonic()
        used = {name: cpu_seconds(pid) for name, pid in self._processes.items()}
        passed = max(now - self._last_at, 1e-9)
        cores = {name: max(used[name] - self._last[name], 0.0) / passed for name in used}
        self._last, self._last_at = used, now
        return cores


def java_below(pid: int) -> int | None:
    """The Java process that a process, or one below it, has started; None if there is none."""
    for child, name in _children(pid):
        found = child if name == "java" else java_below(child)
        if found is not None:
            return found
    return None


def _children(pid: int) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(folder.name))
        if stat is not None and int(stat[1][_PARENT]) == pid:
            yield int(folder.name), stat[0]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, in steps of the kernel's clock (mostly 10 ms); 0 if it has ended."""
    stat = _stat(pid)
    return 0.0 if stat is None else (int(stat[1][_USER]) + int(stat[1][_SYSTEM])) / _TICKS_PER_SECOND


def _stat(pid: int) -> tuple[str, list[str]] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, fields = text.partition("(")[2].rpartition(")")
    return name, fields.split()
