"""The timer and its thread: Kafka's TimerTest (3.2), V9 to V13, and what this timer promises in addition."""

import random
import threading
from collections.abc import Callable

import pytest

from purgatory.timer import Reaper, SystemMonotonicClock, SystemTimer
from purgatory.timing_wheel import TimerTask
from tests.fakes.clock import ManualMonotonicClock
from tests.waiting import PATIENCE_SECONDS


class Calling(TimerTask):
    def __init__(self, delay_ms: int, call: Callable[[], object]) -> None:
        super().__init__(delay_ms)
        self.call = call

    def run(self) -> None:
        self.call()


def fail() -> None:
    msg = "broken task"
    raise RuntimeError(msg)


class HandTimer:
    """A timer on a clock that is set by hand, and the names of the tasks that it has run."""

    def __init__(self, start_ms: int = 0, tick_ms: int = 1, wheel_size: int = 20) -> None:
        self.clock = ManualMonotonicClock(start_ms)
        self.timer = SystemTimer(self.clock, tick_ms=tick_ms, wheel_size=wheel_size)
        self.ran: list[object] = []

    def add(self, delay_ms: int, name: object) -> TimerTask:
        task = Calling(delay_ms, lambda: self.ran.append(name))
        self.timer.add(task)
        return task

    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.timer.advance_clock(0)


def test_3_2_1_already_expired_tasks_run_at_the_next_advance() -> None:
    hand = HandTimer(100, wheel_size=3)
    for delay_ms in (-5, -4, -3, -2, -1):
        hand.add(delay_ms, delay_ms)
    assert (hand.ran, hand.timer.size()) == ([], 5)
    assert hand.timer.advance_clock(0)
    assert (hand.ran, hand.timer.size()) == ([-5, -4, -3, -2, -1], 0)


def test_3_2_2_585_tasks_run_in_exact_time_order() -> None:
    delays_ms = [*range(5), *range(10, 100), *range(10, 100), *range(100, 500)]
    random.Random(3).shuffle(delays_ms)
    hand = HandTimer(7, wheel_size=3)
    for delay_ms in delays_ms:
        hand.add(delay_ms, delay_ms)
    for _ in range(500):
        while hand.timer.advance_clock(0):
            pass
        hand.clock.advance(1)
    assert len(hand.ran) == 585
    assert hand.ran == sorted(delays_ms)


def test_v9_entries_of_one_millisecond_run_first_in_first_out() -> None:
    #   A (25) on level 2, B (25) on level 1: the bare wheel runs B first, the timer A.
    hand = HandTimer()
    hand.add(25, "A")
    hand.add(10, "at ten")
    hand.pass_time(10)
    hand.add(15, "B")
    hand.pass_time(10)
    hand.pass_time(5)
    assert hand.ran == ["at ten", "A", "B"]


def test_v10_adding_a_waiting_task_again_moves_it() -> None:
    hand = HandTimer()
    task = hand.add(25, "T")
    task.delay_ms = 40
    hand.timer.add(task)
    assert hand.timer.size() == 1
    hand.pass_time(39)
    assert hand.ran == []
    hand.pass_time(1)
    assert hand.ran == ["T"]


@pytest.mark.parametrize(("delay_ms", "runs_at_ms"), [(4, 5), (5, 5), (6, 10), (99, 100), (100, 100)])
def test_a_coarse_tick_is_never_early(delay_ms: int, runs_at_ms: int) -> None:
    hand = HandTimer(tick_ms=5, wheel_size=4)
    hand.add(delay_ms, "T")
    while not hand.ran:
        hand.pass_time(1)
    assert hand.clock.now_ms == runs_at_ms


def test_a_failing_task_does_not_stop_the_others() -> None:
    hand = HandTimer()
    hand.timer.add(Calling(1, fail))
    hand.add(1, "after it")
    with pytest.raises(ExceptionGroup, match="1 of 2 due tasks failed"):
        hand.pass_time(1)
    assert hand.ran == ["after it"]


def test_a_task_that_cancels_another_due_one_stops_it() -> None:
    hand = HandTimer()
    second = Calling(1, lambda: hand.ran.append("second"))
    hand.timer.add(Calling(1, second.cancel))
    hand.timer.add(second)
    hand.pass_time(1)
    assert hand.ran == []


def test_waiting_ends_when_a_sooner_task_is_added() -> None:
    ran: list[str] = []
    timer = SystemTimer(SystemMonotonicClock())
    timer.add(Calling(60_000, lambda: ran.append("late")))

    def advance_until_something_ran() -> None:
        while not ran:  # a poll may only move the task to a finer level
            timer.advance_clock(30_000)

    waiting = threading.Thread(target=advance_until_something_ran, daemon=True)
    waiting.start()
    timer.add(Calling(5, lambda: ran.append("soon")))
    waiting.join(PATIENCE_SECONDS)
    assert ran == ["soon"]


def test_the_reaper_runs_tasks_tells_of_those_that_fail_and_goes_on() -> None:
    told: list[Exception] = []
    timer, is_done = SystemTimer(SystemMonotonicClock()), threading.Event()
    with Reaper(timer, "reaper", on_error=told.append):
        timer.add(Calling(1, fail))
        timer.add(Calling(30, is_done.set))
        assert is_done.wait(PATIENCE_SECONDS)
    assert [type(failure) for failure in told] == [ExceptionGroup]


def test_closing_stops_the_thread_at_once_and_can_be_repeated() -> None:
    timer, is_done = SystemTimer(SystemMonotonicClock()), threading.Event()
    timer.add(Calling(600_000, is_done.set))
    reaper = Reaper(timer, "reaper to be closed", on_error=lambda failure: None)
    reaper.start()
    assert "reaper to be closed" in [thread.name for thread in threading.enumerate()]
    reaper.close()
    reaper.close()
    assert "reaper to be closed" not in [thread.name for thread in threading.enumerate()]
    assert not is_done.is_set()
