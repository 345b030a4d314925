"""Resident memory of a job: the driver and its JVM."""

from pathlib import Path


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
