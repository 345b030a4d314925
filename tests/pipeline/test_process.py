"""A process: threads that take steps, pauses of the garbage collector, locks, and an end with its own exit code."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline import process as garbage_collector
from pipeline.errors import Conflict
from pipeline.process import Background, ProcessLock, holder_of
from tests.waiting import PATIENCE_SECONDS


def test_steps_are_taken_until_it_is_closed() -> None:
    taken: list[int] = []
    enough = Event()

    def step() -> float:
        taken.append(len(taken))
        if len(taken) == 3:
            enough.set()
        return 0.0

    thread = Background("test", step, failed=lambda _: None)
    thread.start()
    assert enough.wait(PATIENCE_SECONDS)
    thread.close()
    after = len(taken)
    assert taken == list(range(after))
    assert Event().wait(0.02) is False
    assert len(taken) == after


def test_a_step_that_raises_ends_the_thread_and_is_reported_once() -> None:
    failures: list[BaseException] = []
    told = Event()

    def step() -> float:
        message = "no more"
        raise RuntimeError(message)

    def failed(failure: BaseException) -> None:
        failures.append(failure)
        told.set()

    thread = Background("test", step, failed)
    thread.start()
    assert told.wait(PATIENCE_SECONDS)
    thread.close()
    assert [str(failure) for failure in failures] == ["no more"]


LEAVING = """
import subprocess
import sys
import atexit, sys, threading
from pipeline.process import Background
from pipeline.cli import main
blocked = threading.Event()
background = Background("busy", lambda: {step}, print)
def app():
    atexit.register(print, "the interpreter ended")
    background.start()
    background.close({patience_seconds})
    print("closed")
    sys.exit(3)
main.app = app
main.main()
"""


@pytest.mark.parametrize(
    ("step", "patience_seconds", "told"),
    [("1.0", PATIENCE_SECONDS, ["closed", "the interpreter ended"]), ("blocked.wait() or 1.0", 0.2, ["closed"])],
)
def test_a_command_whose_step_does_not_end_leaves_without_ending_the_interpreter(
    step: str, patience_seconds: float, told: list[str]
) -> None:
    script = LEAVING.replace("{step}", step).replace("{patience_seconds}", str(patience_seconds))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout.split("\n")[:-1], done.stderr) == (3, told, "")


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


def test_a_pause_inside_of_another_one_does_not_end_it() -> None:
    gc.enable()
    with garbage_collector.paused():
        with garbage_collector.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


HOLD = """
import sys, time
from pathlib import Path
from pipeline.process import ProcessLock
with ProcessLock(Path(sys.argv[1]), "another one runs", "stop it"):
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
        with pytest.raises(Conflict) as refused, ProcessLock(path, "another one runs", "stop it"):
            pass
        assert str(refused.value) == f"another one runs ({path} is held by process {first.pid}). Fix: stop it"
        assert holder_of(path) == str(first.pid)


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with holder(path) as first:
        first.kill()
        first.wait()
        assert holder_of(path) is None
        with ProcessLock(path, "", ""):
            pass


# A store that is read through Python, whose memory takes a while to be freed: so Arrow's threads are at it at the end.
SLOW_STORE = """
import sys, time
import pyarrow as pa
from pyarrow.fs import PyFileSystem
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pipeline.process import run_to_exit

class Slow(bytes):
    def __del__(self):
        time.sleep(0.2)

class File:
    def __init__(self, file):
        self._file = file
    def read(self, size=-1):
        return Slow(self._file.read(size))
    def __getattr__(self, name):
        return getattr(self._file, name)

class Store(DeltaStorageHandler):
    def open_input_file(self, path):
        return pa.PythonFile(File(self._handler.open_input_file(path)), "r")

def program():
    table = DeltaTable(sys.argv[1])
    store = Store.from_table(table._table, None, table._table.get_add_file_sizes())
    print(table.to_pyarrow_dataset(filesystem=PyFileSystem(store)).to_table().num_rows)
    return 3

"""
ENDINGS = {
    "returns": ("return 3", 3),
    "raises SystemExit": ("sys.exit(4)", 4),
    "raises SystemExit without a code": ("sys.exit()", 0),
    "raises an error": ("raise ValueError('so')", 1),
}


def run_script(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)


def test_the_exit_code_is_the_programs_while_memory_is_still_freed(tmp_path: Path) -> None:
    for first in range(4):
        write_deltalake(tmp_path / "t", pa.table({"at_ms": [first], "name": ["n"]}), mode="append")
    for _ in range(2):
        ended = run_script(SLOW_STORE + "run_to_exit(program)", str(tmp_path / "t"))
        assert (ended.returncode, ended.stdout, ended.stderr) == (3, "4\n", "")


@pytest.mark.parametrize(("ending", "code"), ENDINGS.values(), ids=ENDINGS)
def test_exit_functions_run_and_output_is_flushed_however_the_program_ends(ending: str, code: int) -> None:
    script = "\n".join(
        [
            "import atexit, sys",
            "from pipeline.process import run_to_exit",
            "def program():",
            "    atexit.register(lambda: print('exit function'))",
            "    sys.stdout.write('result, ')",
            f"    {ending}",
            "run_to_exit(program)",
        ]
    )
    ended = run_script(script)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == "result, exit function\n"
    assert ("ValueError: so" in ended.stderr) == (code == 1)


def test_looking_at_a_lock_makes_none_and_one_without_an_id_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    assert holder_of(path) is None
    assert list(tmp_path.iterdir()) == []
    with ProcessLock(path, "", ""):
        path.with_suffix(".pid").unlink()
        assert holder_of(path) == "unknown"
    path.with_suffix(".pid").mkdir()
    with pytest.raises(IsADirectoryError), ProcessLock(path, "", ""):
        pass
    path.with_suffix(".pid").rmdir()
    assert holder_of(path) is None
