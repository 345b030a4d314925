"""The machine on which a benchmark ran, in one line, and what processes take of it: cores and memory.

A figure means nothing without the machine.
"""

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pipeline.jvm.java import JavaNotFound, find_java


def machine_line() -> str:
    """Cores this process may use, CPU model, memory, Python, Java and the day (UTC), in one line."""
    return (
        f"{len(os.sched_getaffinity(0))} cores, {_cpu_model()}, {_memory_gib()} GiB, "
        f"Python {platform.python_version()}, {_java()}, {datetime.now(UTC):%Y-%m-%d}"
    )


def arguments(about: str | None, **defaults: Any) -> argparse.Namespace:
    """The options of a benchmark; then print the machine.

    An option has the type of its default: False is a switch, a list takes several values.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(flag, nargs="*", type=type(default[0]), default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    given = parser.parse_args()
    print(machine_line(), flush=True)
    return given


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
        java = find_java().executable
    except JavaNotFound:
        return "no Java"
    answer = subprocess.run([str(java), "-version"], check=False, capture_output=True, text=True, timeout=30)
    version = answer.stderr.split('"')
    return f"Java {version[1]}" if len(version) > 1 else "Java"


_CPUCLOCK_SCHED: Final = 2  # of Linux: user and system time by the scheduler, of all threads


class CpuMeter:
    """Cores used by processes, by name, since the last question. Those that have ended count nothing."""

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
    return next((one for one in tree(pid)[1:] if process_name(one) == "java"), None)


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:  # it grows meanwhile
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):  # it has ended
                found += map(int, children.read_text(encoding="ascii").split())
    return found


def cpu_spent(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, to the microsecond; 0 if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)  # as clock_getcpuclockid(3) makes it
    except OSError:
        return 0.0


def process_name(pid: int) -> str:
    """As the kernel has it; "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""


def memory_of(pid: int) -> dict[str, float]:
    """MB by the kernel's names: `VmRSS` is what a process holds, `VmHWM` the most it has held."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:  # it has ended
        return {}
    told = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) * 1_024 / 1e6 for name, _, rest in told if "kB" in rest}
