"""Kafka's DelayedFutureTest (3.4, vector 5), on a clock moved by hand."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from purgatory.delayed_future import DelayedFuturePurgatory
from purgatory.timer import SystemTimer
from tests.fakes.monotonic_clock import ManualMonotonicClock


class Setting:
    """Waits for futures and adds up the results of those that did not fail."""

    def __init__(self) -> None:
        self.clock = ManualMonotonicClock()
        self.waiting: DelayedFuturePurgatory[int] = DelayedFuturePurgatory(SystemTimer(self.clock))
        self.result = -1
        self.responses = 0

    def wait_for(self, *futures: Future[int], timeout_ms: int = 100_000) -> bool:
        def respond() -> None:
            self.responses += 1
            self.result = sum(future.result() for future in futures if future.exception(timeout=0) is None)

        return self.waiting.try_complete_else_watch(timeout_ms, futures, respond).is_completed

    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.waiting.purgatory.advance_clock(0)


def done(value: int) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(value)
    return future


def test_3_4_5a_futures_that_are_done_respond_at_once() -> None:
    setting = Setting()
    assert setting.wait_for(done(10), done(11))
    assert (setting.result, setting.responses) == (21, 1)
    assert (setting.waiting.purgatory.num_delayed, setting.waiting.purgatory.watched) == (0, 0)


def test_3_4_5b_two_pending_futures_respond_after_the_second() -> None:
    setting = Setting()
    first, second = Future[int](), Future[int]()
    assert not setting.wait_for(first, second)
    first.set_result(20)
    assert setting.result == -1
    second.set_result(21)
    assert (setting.result, setting.responses) == (41, 1)
    assert (setting.waiting.purgatory.num_delayed, setting.waiting.purgatory.watched) == (0, 0)


def test_3_4_5c_one_done_and_one_pending_respond_after_the_pending_one() -> None:
    setting = Setting()
    pending = Future[int]()
    assert not setting.wait_for(pending, done(31))
    pending.set_result(30)
    assert (setting.result, setting.responses) == (61, 1)


def test_3_4_5d_what_is_not_done_in_time_fails_and_the_rest_counts() -> None:
    setting = Setting()
    late = Future[int]()
    assert not setting.wait_for(done(40), late, timeout_ms=2000)
    setting.pass_time(1999)
    assert setting.responses == 0
    setting.pass_time(1)
    assert (setting.result, setting.responses) == (40, 1)
    with pytest.raises(TimeoutError, match="not done within 2000 ms"):
        late.result()
    setting.pass_time(10_000)
    assert setting.responses == 1


def test_a_failed_future_counts_as_done() -> None:
    setting = Setting()
    failing = Future[int]()
    setting.wait_for(failing, done(5))
    failing.set_exception(ValueError("broken"))
    assert (setting.result, setting.responses) == (5, 1)


def test_a_future_done_just_before_it_is_listened_to_responds() -> None:
    class DoneMeanwhile(Future[int]):
        def add_done_callback(self, fn: Callable[[Future[int]], object]) -> None:
            self.set_result(7)
            super().add_done_callback(fn)

    setting = Setting()
    setting.wait_for(DoneMeanwhile())
    assert (setting.result, setting.responses) == (7, 1)
