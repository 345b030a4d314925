"""A thread that takes steps until it is stopped."""

import subprocess
import sys
from threading import Event

import pytest

from pipeline.process import Background
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


def test_closing_does_not_wait_for_the_rest_between_steps() -> None:
    began = Event()

    def step() -> float:
        began.set()
        return 3_600.0

    thread = Background("test", step, failed=lambda _: None)
    thread.start()
    assert began.wait(PATIENCE_SECONDS)
    thread.close(timeout_seconds=PATIENCE_SECONDS)
    thread.close()


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
