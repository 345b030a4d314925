"""Memory of this process, in MB."""

import gc
import resource
from pathlib import Path

import pyarrow as pa


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
