"""All processes of a peer: those below the one that was started, whatever process group they are in."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def tree(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    return list(_below(pid, children))


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, ()):
        yield from _below(child, children)


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and all below it."""
    for one in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


def peak_memory_mb(pid: int) -> float:
    """The most that each process has held, added up. Pages that processes share count in each of them."""
    return sum(_peak_kib(one) for one in tree(pid)) * 1024 / 1e6


def _peak_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
