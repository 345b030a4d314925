"""The job's restarts in its process: what an ended run leaves behind."""

import logging
import weakref
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from pipeline.clock import Moment
from pipeline.errors import ClusterUnreachable, PipelineError
from pipeline.job.job import ClockSetBack, Job
from pipeline.job.metrics import Listeners
from pipeline.settings.model import KafkaSettings, Settings, StreamSettings, TablesSettings
from pipeline.stream.session import SparkStarter
from tests.log_messages import messages_of
from tests.waiting import PATIENCE_SECONDS, wait_until

CAUSE = "java.io.IOException: gone"


def starter_of(settings: Settings) -> SparkStarter:
    return SparkStarter(settings)


class Run:
    """Stands for an engine with its tables and clients: in a cycle, as those are."""

    def __init__(self) -> None:
        self.itself = self


class FailingOnce(Job):
    """A job whose first run fails; the second looks whether anything of the first is left."""

    def __init__(self, folder: Path, failure: Exception, restart_limit: int = 5) -> None:
        stream = StreamSettings(restart_limit=restart_limit)
        kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
        super().__init__(
            Settings(run_dir=folder, stream=stream, kafka=kafka), Listeners(lambda *_: None, lambda _: None)
        )
        self.failures = [failure]
        self.ended_run: weakref.ref[Run] | None = None
        self.was_kept: bool | None = None

    def _run_once(self, cluster: str, starter: SparkStarter) -> BaseException | None:
        del cluster, starter
        if self.ended_run is not None:
            self.was_kept = self.ended_run() is not None
            return None
        run = Run()
        self.ended_run = weakref.ref(run)
        try:
            raise self.failures.pop()
        except (ArithmeticError, PipelineError) as exc:
            return exc  # its traceback has this frame, with the run

    def _outage(self, failure: BaseException) -> None:
        """There is no cluster here that could be away."""

    def give_up(self) -> PipelineError:
        with pytest.raises(PipelineError) as given_up:
            self.restart()
        return given_up.value

    def restart(self) -> None:
        self._run_with_restarts("c", starter_of(self._settings))


class FailingAlways(FailingOnce):
    """A job of which every run fails; with five restarts."""

    attempts = 0

    def _run_once(self, cluster: str, starter: SparkStarter) -> BaseException:
        del cluster, starter
        self.attempts += 1
        return self.failures[0]


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
    assert messages_of(caplog, "pipeline.job.job") == [f"{told}. Starting again in 0.5 s (1 in a row)"]


def test_a_job_that_gives_up_says_what_failed_and_where_to_look(tmp_path: Path) -> None:
    job = FailingOnce(
        tmp_path, ArithmeticError("calling o1.go.\n: java.io.IOException: gone\n\tat a.B"), restart_limit=0
    )
    error = job.give_up()
    assert error.message == f"streaming query failed: {CAUSE}, at attempt 1"
    assert (error.fix, error.exit_code) == ("see the log above for the cause; a restart continues where it ended", 1)


def test_a_job_gives_up_after_the_limit_of_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.job.job._RESTART_SECONDS", (0.0,))
    job = FailingAlways(tmp_path, OSError("disk full"))
    assert job.give_up().message == "streaming query failed: disk full, at attempt 6"
    assert job.attempts == 6


def test_a_job_that_gives_up_ends_with_the_error_that_says_what_to_do(tmp_path: Path) -> None:
    failure = PipelineError("'epoch' must be 1; got 2", "stop the other driver", exit_code=4)
    assert FailingOnce(tmp_path, failure).give_up() is failure


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_does_not_answer_is_waited_for_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.job.job._RETRY_SECONDS", (0.01,))
    job = nowhere(tmp_path)
    waiting = Thread(target=job.run, args=(starter_of(job._settings),))
    waiting.start()

    def tries() -> list[str]:
        return [line for line in messages_of(caplog, "pipeline.job.job") if "next try in" in line]

    wait_until(lambda: len(tries()) >= 3 or not waiting.is_alive(), "three tries")
    assert waiting.is_alive()
    job.stop()
    waiting.join(PATIENCE_SECONDS)
    assert not waiting.is_alive()
    assert "127.0.0.1:1" in tries()[0]


def test_an_outage_does_not_count_as_failures_in_a_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Away(FailingOnce):
        """Its cluster is away for three restarts."""

        def _run_once(self, cluster: str, starter: SparkStarter) -> BaseException | None:
            del cluster, starter
            return self.failures.pop() if self.failures else None

        def _outage(self, failure: BaseException) -> ClusterUnreachable:  # type: ignore[override]
            del failure
            return ClusterUnreachable("b:9092", "connection refused", "start it")

        def _reached_cluster(self) -> str:
            return "c"

    job = Away(tmp_path, ArithmeticError(), restart_limit=1)
    job.failures = [ArithmeticError("the source failed") for _ in range(3)]
    job._run_with_restarts("c", starter_of(job._settings))
    assert caplog.messages.count("the source failed. Starting again when the cluster answers") == 3


def nowhere(folder: Path, waits: bool = True) -> Job:
    """A job whose cluster is a port that nobody listens on."""
    settings = Settings(
        run_dir=folder,
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        tables=TablesSettings(root=str(folder / "tables")),
    )
    return Job(settings, Listeners(lambda *_: None, lambda _: None), waits=waits)


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
    job, seen = FailingOnce(tmp_path, ArithmeticError()), list[None]()

    def failure() -> BaseException | None:
        seen.append(None)
        return ArithmeticError() if len(seen) > len(ahead_ms) else None

    job._clock = Shown(*ahead_ms)  # type: ignore[assignment]
    run = SimpleNamespace(failure=failure, is_waiting=lambda: False)
    ended = job._watch(run)  # type: ignore[arg-type]
    assert getattr(ended, "by_ms", None) == set_back_ms


def test_after_a_clock_was_set_back_the_query_starts_again_and_nothing_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = FailingOnce(tmp_path, ClockSetBack(3_600_000), restart_limit=0)
    job.restart()
    assert job.was_kept is False
    assert "set back by 3600.0 s" in caplog.text
