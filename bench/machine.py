"""The machine on which a benchmark ran, in one line, and what processes take of it: cores and memory.

A figure means nothing without the machine.
"""

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pipeline.jvm.jars import read_lock
from pipeline.jvm.java import JavaNotFound, find_java

KAFKA_VERSION: Final = next(jar.version for jar in read_lock() if jar.artifact == "kafka-server")
"""The release of the locked broker."""


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
    """Cores used by processes together since it was made. Those that have ended count nothing."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._began = {pid: cpu_seconds(pid) for pid in pids}
        self._began_at = time.monotonic()

    def cores(self) -> float:
        used = sum(max(cpu_seconds(pid) - began, 0.0) for pid, began in self._began.items())
        return used / (time.monotonic() - self._began_at)


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


def memory_of(pid: int) -> dict[str, float]:
    """MB by the kernel's names: `VmRSS` is what a process holds, `VmHWM` the most it has held."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:  # it has ended
        return {}
    told = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) * 1_024 / 1e6 for name, _, rest in told if "kB" in rest}


def memory_mb(pid: int) -> float:
    """The most that a process and all below it have each held; pages that they share count in each of them."""
    return sum(memory_of(one).get("VmHWM", 0.0) for one in tree(pid))
