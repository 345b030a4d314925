"""The timer and its thread: Kafka's TimerTest (3.2), V9 to V13, and what this timer promises in addition."""

import random
import threading

import pytest

from purgatory.timer import Reaper, SystemMonotonicClock, SystemTimer
from purgatory.timing_wheel import TimerTask
from tests.fakes.clock import ManualMonotonicClock
from tests.waiting import PATIENCE_SECONDS


class Noted(TimerTask):
    """Notes its name when it runs."""

    def __init__(self, delay_ms: int, name: object, ran: list[object]) -> None:
        super().__init__(delay_ms)
        self.name = name
        self.ran = ran

    def run(self) -> None:
        self.ran.append(self.name)


class Failing(TimerTask):
    def run(self) -> None:
        msg = "broken task"
        raise RuntimeError(msg)


def test_3_2_1_already_expired_tasks_run_at_the_next_advance() -> None:
    ran: list[object] = []
    timer = SystemTimer(ManualMonotonicClock(100), wheel_size=3)
    for delay_ms in (-5, -4, -3, -2, -1):
        timer.add(Noted(delay_ms, delay_ms, ran))
    assert (ran, timer.size()) == ([], 5)
    assert timer.advance_clock(0)
    assert ran == [-5, -4, -3, -2, -1]
    assert timer.size() == 0


def test_3_2_2_585_tasks_run_in_exact_time_order() -> None:
    delays_ms = [*range(5), *range(10, 100), *range(10, 100), *range(100, 500)]
    random.Random(3).shuffle(delays_ms)
    ran: list[object] = []
    clock = ManualMonotonicClock(7)
    timer = SystemTimer(clock, wheel_size=3)
    for delay_ms in delays_ms:
        timer.add(Noted(delay_ms, delay_ms, ran))
    for _ in range(500):
        while timer.advance_clock(0):
            pass
        clock.advance(1)
    assert len(ran) == 585
    assert ran == sorted(delays_ms)


def test_v9_entries_of_one_millisecond_run_first_in_first_out() -> None:
    #   A (25) on level 2, B (25) on level 1: the bare wheel runs B first, the timer A.
    ran: list[object] = []
    clock = ManualMonotonicClock()
    timer = SystemTimer(clock)
    timer.add(Noted(25, "A", ran))
    timer.add(Noted(10, "at ten", ran))
    clock.advance(10)
    timer.advance_clock(0)
    timer.add(Noted(15, "B", ran))
    clock.advance(10)
    timer.advance_clock(0)
    clock.advance(5)
    timer.advance_clock(0)
    assert ran == ["at ten", "A", "B"]


def test_v10_adding_a_waiting_task_again_moves_it() -> None:
    ran: list[object] = []
    clock = ManualMonotonicClock()
    timer = SystemTimer(clock)
    task = Noted(25, "T", ran)
    timer.add(task)
    task.delay_ms = 40
    timer.add(task)
    assert timer.size() == 1
    clock.advance(39)
    timer.advance_clock(0)
    assert ran == []
    clock.advance(1)
    timer.advance_clock(0)
    assert ran == ["T"]


@pytest.mark.parametrize(("delay_ms", "runs_at_ms"), [(4, 5), (5, 5), (6, 10), (99, 100), (100, 100)])
def test_a_coarse_tick_is_never_early(delay_ms: int, runs_at_ms: int) -> None:
    ran: list[object] = []
    clock = ManualMonotonicClock()
    timer = SystemTimer(clock, tick_ms=5, wheel_size=4)
    timer.add(Noted(delay_ms, "T", ran))
    while not ran:
        clock.advance(1)
        timer.advance_clock(0)
    assert clock.now_ms == runs_at_ms


def test_a_failing_task_does_not_stop_the_others() -> None:
    ran: list[object] = []
    clock = ManualMonotonicClock()
    timer = SystemTimer(clock)
    timer.add(Failing(1))
    timer.add(Noted(1, "after it", ran))
    clock.advance(1)
    with pytest.raises(ExceptionGroup, match="1 of 2 due tasks failed"):
        timer.advance_clock(0)
    assert ran == ["after it"]


def test_a_task_that_cancels_another_due_one_stops_it() -> None:
    ran: list[object] = []
    clock = ManualMonotonicClock()
    timer = SystemTimer(clock)
    second = Noted(1, "second", ran)

    class Cancelling(TimerTask):
        def run(self) -> None:
            second.cancel()

    timer.add(Cancelling(1))
    timer.add(second)
    clock.advance(1)
    timer.advance_clock(0)
    assert ran == []


def test_waiting_ends_when_a_sooner_task_is_added() -> None:
    ran: list[object] = []
    timer = SystemTimer(SystemMonotonicClock())
    timer.add(Noted(60_000, "late", ran))

    def advance_until_something_ran() -> None:
        while not ran:  # a poll may only move the task to a finer level
            timer.advance_clock(30_000)

    waiting = threading.Thread(target=advance_until_something_ran, daemon=True)
    waiting.start()
    timer.add(Noted(5, "soon", ran))
    waiting.join(PATIENCE_SECONDS)
    assert ran == ["soon"]


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
