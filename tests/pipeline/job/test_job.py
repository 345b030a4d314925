"""The job's restarts in its process: what an ended run leaves behind."""

import re
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.clock import Moment
from pipeline.errors import ClusterUnreachable, PipelineError
from pipeline.job.job import ClockSetBack, Job, step
from pipeline.job.metrics import Listeners
from pipeline.settings.model import KafkaSettings, Settings, StreamSettings, TablesSettings
from pipeline.stream.session import SparkStarter
from tests.waiting import wait_until


def job_of(kind: type[Job], folder: Path, restart_limit: int = 5) -> Any:
    """A job whose cluster is a port that nobody listens on."""
    settings = Settings(
        run_dir=folder,
        stream=StreamSettings(restart_limit=restart_limit),
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        tables=TablesSettings(root=str(folder / "tables")),
    )
    return kind(settings, Listeners(lambda *_: None, lambda _: None))


class Run:
    """Stands for an engine with its tables and clients, which are in a cycle."""

    itself: "Run"


class Failing(Job):
    """A job of which the first runs fail; each looks whether anything of the run before is left."""

    failures: list[BaseException]
    attempts = 0
    ended_run: "weakref.ref[Run] | None" = None
    was_kept: bool | None = None

    def _run_once(self, cluster: str, starter: SparkStarter) -> BaseException | None:
        del cluster, starter
        self.attempts += 1
        self.was_kept = None if self.ended_run is None else self.ended_run() is not None
        if not self.failures:
            return None
        run = Run()
        run.itself = run
        self.ended_run = weakref.ref(run)
        try:
            raise self.failures.pop()
        except (ArithmeticError, OSError, PipelineError) as exc:
            return exc  # its traceback has this frame, with the run

    def _outage(self, failure: BaseException) -> None:
        """There is no cluster here that could be away."""

    def restart(self) -> None:
        self._run_with_restarts("c", SparkStarter(self._settings))


def failing(folder: Path, *failures: BaseException, restart_limit: int = 5) -> Failing:
    job: Failing = job_of(Failing, folder, restart_limit)
    job.failures = [*failures]
    return job


def test_a_restart_keeps_nothing_of_the_run_before(tmp_path: Path) -> None:
    job = failing(tmp_path, ArithmeticError())
    job.restart()
    assert (job.attempts, job.was_kept) == (2, False)


def test_a_job_gives_up_with_its_failure_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = ArithmeticError("calling o1.go.\n: java.io.IOException: gone\n\tat a.B")
    monkeypatch.setattr("pipeline.job.job._RESTART_SECONDS", (0.0,))
    job = failing(tmp_path, *[failure] * 9, restart_limit=2)
    with pytest.raises(PipelineError) as given_up:
        job.restart()
    assert given_up.value.message == "streaming query failed: java.io.IOException: gone, at attempt 3"
    assert (given_up.value.exit_code, job.attempts) == (1, 3)


def test_a_job_that_gives_up_ends_with_the_error_that_says_what_to_do(tmp_path: Path) -> None:
    failure = PipelineError("'epoch' must be 1; got 2", "stop the other driver", exit_code=4)
    with pytest.raises(PipelineError) as given_up:
        failing(tmp_path, failure).restart()
    assert given_up.value is failure


class Away(Failing):
    """Its cluster is away at each failure, and answers when it is asked for the third time."""

    asked = 0

    def _outage(self, failure: BaseException) -> ClusterUnreachable:  # type: ignore[override]
        del failure
        return ClusterUnreachable("b:9092", "connection refused", "start it")

    def _checked_cluster(self) -> str:
        self.asked += 1
        if self.asked % 3:
            raise self._outage(ArithmeticError())
        return "c"


def test_an_outage_is_waited_for_and_counts_as_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.job.job._RETRY_SECONDS", (0.0,))
    job: Away = job_of(Away, tmp_path, restart_limit=1)
    job.failures = [ArithmeticError("the source failed") for _ in range(3)]
    job.restart()
    assert (job.attempts, job.asked) == (4, 9)


class Shown:
    """A clock that shows these distances of the wall clock from the steady one, and the last one for ever."""

    def __init__(self, *ahead_ms: int) -> None:
        self._ahead_ms = list(ahead_ms)

    def now(self) -> Moment:
        ahead_ms = self._ahead_ms.pop(0) if self._ahead_ms[1:] else self._ahead_ms[0]
        return Moment(1_000_000 + ahead_ms, 1_000_000)


@pytest.mark.parametrize(
    ("ahead_ms", "set_back_ms"),
    [
        ((0, -3_000, -3_001), 3_001),
        ((0, -3_600_000), 3_600_000),
        ((0, 3_600_000, 3_598_000, 0), 3_600_000),
        ((0, 20_000, 17_000, 16_000), 4_000),
        ((0, 3_600_000, 3_597_000), None),
        ((0, -3_000), None),
    ],
)
def test_a_clock_that_is_set_back_by_more_than_three_seconds_ends_the_run(
    ahead_ms: tuple[int, ...], set_back_ms: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.job.job._POLL_SECONDS", 0.0)
    job, seen = failing(tmp_path), list[None]()

    def failure() -> BaseException | None:
        seen.append(None)
        return ArithmeticError() if len(seen) > len(ahead_ms) else None

    job._clock = Shown(*ahead_ms)  # type: ignore[assignment]
    run = SimpleNamespace(failure=failure, is_waiting=lambda: False)
    ended = job._watch(run)  # type: ignore[arg-type]
    assert getattr(ended, "by_ms", None) == set_back_ms


def test_after_a_clock_was_set_back_the_query_starts_again_and_nothing_is_counted(tmp_path: Path) -> None:
    job = failing(tmp_path, ClockSetBack(3_600_000), restart_limit=0)
    job.restart()
    assert (job.attempts, job.was_kept) == (2, False)


def test_a_step_of_the_start_that_takes_long_says_so_again_and_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.job.job._QUIET_SECONDS", 0.001)
    caplog.set_level("INFO")
    with step("broker"):
        wait_until(lambda: caplog.text.count(" s so far") >= 2, "two lines")
    assert re.fullmatch(r"broker [0-9.]+ s", caplog.messages[-1])
