"""The freed memory that pyarrow's allocator keeps."""

import os
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_SECONDS

KEPT = """
import sys
from pipeline.process import return_memory_at_once
import pipeline.cli.main, pipeline.cli.services, pipeline.cli.demo
assert "pyarrow" not in sys.modules, "too late"
return_memory_at_once()
import pyarrow as pa

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

before = resident_mb()
buffers = [pa.allocate_buffer(1_000_000) for _ in range(100)]
for buffer in buffers:
    memoryview(buffer).cast("B")[::4096] = bytes(len(range(0, 1_000_000, 4096)))
taken = resident_mb() - before
del buffer, buffers
print(taken, resident_mb() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("set_by_the_user", "is_kept"), [(None, False), ("100000", True)])
def test_a_job_returns_memory_that_pyarrow_has_freed(set_by_the_user: str | None, is_kept: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MIMALLOC", "ARROW"))}
    if set_by_the_user is not None:
        environment["MIMALLOC_PURGE_DELAY"] = set_by_the_user
    done = subprocess.run(
        [sys.executable, "-c", KEPT],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    taken_mb, kept_mb = map(float, done.stdout.split())
    assert taken_mb > 80
    assert (kept_mb > taken_mb / 2) is is_kept
