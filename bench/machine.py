"""The machine on which a benchmark ran, in one line. A figure means nothing without it."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

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
