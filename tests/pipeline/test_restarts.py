"""The job's restarts in its process: what an ended run leaves behind."""

import weakref
from pathlib import Path
from typing import Any

from pipeline.app import Job, Listeners
from pipeline.settings.model import Settings
from pipeline.stream.start_up import SparkStarter


class Run:
    """Stands for an engine with its tables and clients: in a cycle, as those are."""

    def __init__(self) -> None:
        self.itself = self


class FailingOnce(Job):
    """A job whose first run fails; the second looks whether anything of the first is left."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Settings(run_dir=folder), Listeners(lambda *_: None, lambda _: None))
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
            raise ArithmeticError
        except ArithmeticError as exc:
            return exc  # its traceback has this frame, with the run


def test_a_restart_keeps_nothing_of_the_run_before(tmp_path: Path) -> None:
    job = FailingOnce(tmp_path)
    job._run_with_restarts(None, SparkStarter(job._settings.spark, "checkpoint"))  # type: ignore[arg-type]
    assert job.was_kept is False
