"""A process: threads that take steps, pauses of the garbage collector, locks, and an end with its own exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread, current_thread, main_thread
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.errors import Conflict
from pipeline.process import Background, ProcessLock, call_on_signals, holder_of
from tests.waiting import PATIENCE_SECONDS, never, wait_until


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
    assert never(lambda: len(taken) > after, 0.02)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_does_not_wait_for_a_lock_of_the_main_thread(kind: signal.Signals) -> None:
    former = signal.getsignal(kind)
    callers: SimpleQueue[Thread] = SimpleQueue()
    with call_on_signals(lambda: callers.put(current_thread())):
        os.kill(os.getpid(), kind)
        assert callers.get(timeout=PATIENCE_SECONDS) is not main_thread()
        assert signal.getsignal(kind) is former  # so the second one ends the program
    assert callers.empty()


NEVER_ENDS = """
import os, signal, threading
from pipeline.process import call_on_signals, ending_within
with call_on_signals(ending_within(0.1, lambda: print("asked to end", flush=True))):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""


def test_a_program_that_does_not_end_by_itself_says_where_it_is_and_ends() -> None:
    done = run_script(NEVER_ENDS)
    assert (done.returncode, done.stdout) == (1, "asked to end\n")
    assert 'File "<string>", line 6 in <module>' in done.stderr


def test_a_step_that_raises_ends_the_thread_and_is_reported_once() -> None:
    failures: list[BaseException] = []
    step = Mock(side_effect=RuntimeError("no more"))
    thread = Background("test", step, failures.append)
    thread.start()
    wait_until(lambda: bool(failures), "the failure")
    thread.close()
    assert ([str(failure) for failure in failures], step.call_count) == (["no more"], 1)


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
    done = run_script(script)
    assert (done.returncode, done.stdout.split("\n")[:-1], done.stderr) == (3, told, "")


HOLD = """
import sys, time
from pathlib import Path
from pipeline.process import ProcessLock
with ProcessLock(Path(sys.argv[1]), "another one runs", "stop it"):
    print("held", flush=True)
    time.sleep(3_600)
"""


def test_a_second_process_is_refused_and_told_the_first_until_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"held\n"
            with pytest.raises(Conflict) as refused, ProcessLock(path, "another one runs", "stop it"):
                pass
            assert holder_of(path) == str(first.pid)
        finally:
            first.kill()
    assert str(refused.value) == f"another one runs ({path} is held by process {first.pid}). Fix: stop it"
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


def run_script(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


def test_the_exit_code_is_the_programs_while_memory_is_still_freed(tmp_path: Path) -> None:
    for first in range(4):
        write_deltalake(tmp_path / "t", pa.table({"at_ms": [first], "name": ["n"]}), mode="append")
    for _ in range(2):
        ended = run_script(SLOW_STORE + "run_to_exit(program)", str(tmp_path / "t"))
        assert (ended.returncode, ended.stdout, ended.stderr) == (3, "4\n", "")


ENDING = """
import atexit, sys
from pipeline.process import run_to_exit
def program():
    atexit.register(lambda: print('exit function'))
    sys.stdout.write('result, ')
    %s
run_to_exit(program)
"""


@pytest.mark.parametrize(
    ("ending", "code"), [("return 3", 3), ("sys.exit(4)", 4), ("sys.exit()", 0), ("raise ValueError('so')", 1)]
)
def test_exit_functions_run_and_output_is_flushed_however_the_program_ends(ending: str, code: int) -> None:
    ended = run_script(ENDING % ending)
    assert (ended.returncode, ended.stdout) == (code, "result, exit function\n"), ended.stderr
    assert ("ValueError: so" in ended.stderr) == (code == 1)


def test_looking_at_a_lock_makes_none_and_one_without_an_id_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    assert holder_of(path) is None
    assert list(tmp_path.iterdir()) == []
    path.with_suffix(".pid").mkdir()
    with pytest.raises(IsADirectoryError), ProcessLock(path, "", ""):
        pass
    path.with_suffix(".pid").rmdir()
    assert holder_of(path) is None
    with ProcessLock(path, "", ""):
        path.with_suffix(".pid").unlink()
        assert holder_of(path) == "unknown"
