"""The job's restarts in its process: what an ended run leaves behind."""

import logging
import weakref
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.job.job import Job, Listeners
from pipeline.settings.model import Settings, StreamSettings
from pipeline.stream.spark_starter import SparkStarter

CAUSE = "calling o1.go. : java.io.IOException: gone"


class Run:
    """Stands for an engine with its tables and clients: in a cycle, as those are."""

    def __init__(self) -> None:
        self.itself = self


class FailingOnce(Job):
    """A job whose first run fails; the second looks whether anything of the first is left."""

    def __init__(self, folder: Path, failure: Exception, restart_limit: int = 5) -> None:
        stream = StreamSettings(restart_limit=restart_limit)
        super().__init__(Settings(run_dir=folder, stream=stream), Listeners(lambda *_: None, lambda _: None))
        self.failures = [failure]
        self.ended_run: weakref.ref[Run] | None = None
        self.was_kept: bool | None = None

    def _run_once(self, place: Any, starter: SparkStarter) -> BaseException | None:
        del place, starter
        if self.ended_run is not None:
            self.was_kept = self.ended_run() is not None
            return None
        run = Run()
        self.ended_run = weakref.ref(run)
        try:
            raise self.failures.pop()
        except (ArithmeticError, PipelineError) as exc:
            return exc  # its traceback has this frame, with the run

    def give_up(self) -> PipelineError:
        with pytest.raises(PipelineError) as given_up:
            self.restart()
        return given_up.value

    def restart(self) -> None:
        self._run_with_restarts(None, SparkStarter(self._settings.spark, "checkpoint"))  # type: ignore[arg-type]


def test_a_restart_keeps_nothing_of_the_run_before(tmp_path: Path) -> None:
    job = FailingOnce(tmp_path, ArithmeticError())
    job.restart()
    assert job.was_kept is False


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ArithmeticError("one line."), "one line"),
        (ArithmeticError(), "ArithmeticError"),
        (ArithmeticError("calling o1.go.\n: java.io.IOException: gone\n\tat a.B\n\tat c.D"), CAUSE),
        (ArithmeticError("\ncalling o1.go.\n: java.io.IOException: gone\n\tat a.B\nCaused by: x"), CAUSE),
    ],
)
def test_a_failure_is_told_in_a_line(
    failure: Exception, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "pipeline.job.job"):
        FailingOnce(tmp_path, failure).restart()
    assert caplog.messages == [f"{told}. Starting again in 0.5 s (1 in a row)"]


def test_a_job_that_gives_up_says_what_failed_and_where_to_look(tmp_path: Path) -> None:
    job = FailingOnce(
        tmp_path, ArithmeticError("calling o1.go.\n: java.io.IOException: gone\n\tat a.B"), restart_limit=0
    )
    error = job.give_up()
    assert error.message == f"the streaming query must run until it is stopped; got: {CAUSE}, at attempt 1"
    assert (error.remedy, error.exit_code) == ("see the log above for the cause; a restart continues where it ended", 1)


def test_a_job_that_gives_up_ends_with_the_error_that_says_what_to_do(tmp_path: Path) -> None:
    failure = PipelineError("'epoch' must be 1; got 2", "stop the other driver", exit_code=4)
    assert FailingOnce(tmp_path, failure).give_up() is failure
