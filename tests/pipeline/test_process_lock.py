"""A lock that one process holds; others learn which one it is, and looking at it disturbs nobody."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.process import LockHeld, ProcessLock, holder_of

HOLD = """
import sys, time
from pathlib import Path
from pipeline.process import ProcessLock
with ProcessLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(3_600)
"""


@contextmanager
def holder(path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_and_told_the_first(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with holder(path) as first:
        with pytest.raises(LockHeld) as refused, ProcessLock(path):
            pass
        assert (refused.value.path, refused.value.holder) == (path, str(first.pid))
        assert holder_of(path) == str(first.pid)


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with holder(path) as first:
        first.kill()
        first.wait()
        assert holder_of(path) is None
        with ProcessLock(path):
            pass


def test_nobody_holds_a_lock_that_was_never_taken_and_looking_makes_none(tmp_path: Path) -> None:
    assert holder_of(tmp_path / "x.lock") is None
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_has_not_written_its_id_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with ProcessLock(path):
        path.with_suffix(".pid").unlink()
        assert holder_of(path) == "unknown"


def test_a_lock_is_free_again_when_the_id_could_not_be_written(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.with_suffix(".pid").mkdir()
    with pytest.raises(IsADirectoryError), ProcessLock(path):
        pass
    path.with_suffix(".pid").rmdir()
    assert holder_of(path) is None
    with ProcessLock(path):
        pass
