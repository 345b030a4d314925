"""Memory: the garbage collector is as it was before a pause; code that was returned still runs."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pipeline import process as garbage_collector


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_it_is_paused_inside_and_goes_on_after_a_failure() -> None:
    gc.enable()
    seen = []
    with pytest.raises(ZeroDivisionError), garbage_collector.paused():
        seen.append(gc.isenabled() or 1 / 0)
    assert seen == []
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with garbage_collector.paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_a_pause_inside_of_another_one_does_not_end_it() -> None:
    gc.enable()
    with garbage_collector.paused():
        with garbage_collector.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


RETURNED = """
import re
from pathlib import Path
import pyarrow as pa
import pyarrow.compute as pc
from pipeline.process import return_unused_code

def code_kb():
    return int(re.search(r"RssFile:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

numbers = pa.array(range(1000))
wanted, before = pc.sum(numbers), code_kb()
return_unused_code()
after = code_kb()
assert after < before / 2, (before, after)
assert pc.sum(numbers) == wanted
"""


@pytest.mark.skipif(sys.platform != "linux", reason="returns code on Linux alone")
def test_code_that_was_returned_takes_no_memory_and_still_runs() -> None:
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, text=True, check=False, timeout=240)
    assert done.stderr == ""
    assert done.returncode == 0
