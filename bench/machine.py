"""The machine on which a benchmark ran, in one line, and what processes take of it: cores and memory.

A figure means nothing without the machine.
"""

import gc
import os
import platform
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa

from pipeline.jvm.errors import JavaNotFound
from pipeline.jvm.java import find_java


def machine_line() -> str:
    """Cores this process may use, CPU model, memory, Python, Java and the day (UTC), in one line."""
    return (
        f"{len(os.sched_getaffinity(0))} cores, {_cpu_model()}, {_memory_gib()} GiB, "
        f"Python {platform.python_version()}, {_java()}, {datetime.now(UTC):%Y-%m-%d}"
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _java() -> str:
    try:
        java = find_java().home / "bin" / "java"
    except JavaNotFound:
        return "no Java"
    answer = subprocess.run([str(java), "-version"], check=False, capture_output=True, text=True, timeout=30)
    version = answer.stderr.split('"')
    return f"Java {version[1]}" if len(version) > 1 else "Java"


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


def memory_mb() -> float:
    """What the process holds now."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_mb() -> float:
    """The most it has held since `forget_peak`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kibibytes) * 1024 / 1e6


def forget_peak() -> None:
    """Begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
