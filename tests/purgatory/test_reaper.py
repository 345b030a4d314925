"""The thread of a timer."""

import threading

from purgatory.timer import Reaper, SystemMonotonicClock, SystemTimer
from purgatory.timing_wheel import TimerTask
from tests.waiting import PATIENCE_SECONDS


class Signal(TimerTask):
    def __init__(self, delay_ms: int, *, fails: bool = False) -> None:
        super().__init__(delay_ms)
        self.ran = threading.Event()
        self.fails = fails

    def run(self) -> None:
        self.ran.set()
        if self.fails:
            msg = "broken task"
            raise RuntimeError(msg)


def test_3_2_3_tasks_run_without_anybody_advancing() -> None:
    timer = SystemTimer(SystemMonotonicClock())
    tasks = [Signal(delay_ms) for delay_ms in (10, 20, 30)]
    with Reaper(timer, "reaper", on_error=lambda failure: None):
        for task in tasks:
            timer.add(task)
        assert all(task.ran.wait(PATIENCE_SECONDS) for task in tasks)


def test_closing_stops_the_thread_at_once_and_can_be_repeated() -> None:
    timer = SystemTimer(SystemMonotonicClock())
    far = Signal(600_000)
    timer.add(far)
    reaper = Reaper(timer, "reaper to be closed", on_error=lambda failure: None)
    reaper.start()
    assert "reaper to be closed" in [thread.name for thread in threading.enumerate()]
    reaper.close()
    reaper.close()
    assert "reaper to be closed" not in [thread.name for thread in threading.enumerate()]
    assert not far.ran.is_set()


def test_a_failing_task_is_told_and_the_reaper_goes_on() -> None:
    told: list[Exception] = []
    timer = SystemTimer(SystemMonotonicClock())
    broken, fine = Signal(1, fails=True), Signal(30)
    with Reaper(timer, "reaper", on_error=told.append):
        timer.add(broken)
        timer.add(fine)
        assert fine.ran.wait(PATIENCE_SECONDS)
    assert len(told) == 1
    assert isinstance(told[0], ExceptionGroup)
