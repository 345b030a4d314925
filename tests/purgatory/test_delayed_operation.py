"""A delayed operation completes exactly once.

Kafka's DelayedOperationTest (3.4), related tests (3.5) of other things that wait, and what this purgatory promises.
"""

import random
import threading
import time

import pytest

from purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.timer import SystemMonotonicClock, SystemTimer
from purgatory.timing_wheel import TimerTask
from tests.fakes.clock import ManualMonotonicClock


class Operation(DelayedOperation):
    """Completes when it is told that it can. Notes what happens to it."""

    def __init__(self, delay_ms: int = 100_000, *, completable: bool = False) -> None:
        super().__init__(delay_ms)
        self.completable = completable
        self.life: list[str] = []

    def try_complete(self) -> bool:
        return self.completable and self.force_complete()

    def on_complete(self) -> None:
        self.life.append("completed")

    def on_expiration(self) -> None:
        self.life.append("expired")


def test_an_operation_that_was_completed_does_not_expire() -> None:
    operation = Operation(completable=True)
    assert operation.safe_try_complete()
    operation.run()
    assert not operation.force_complete()
    assert operation.life == ["completed"]


def test_3_4_2_or_else_runs_only_when_the_first_try_fails() -> None:
    ran: list[str] = []
    assert not Operation().safe_try_complete_or_else(lambda: ran.append("else"))
    assert Operation(completable=True).safe_try_complete_or_else(lambda: ran.append("never"))
    assert ran == ["else"]


def test_or_else_tries_again_because_the_event_may_have_come_in_between() -> None:
    operation = Operation()

    def event() -> None:
        operation.completable = True

    assert operation.safe_try_complete_or_else(event)
    assert operation.life == ["completed"]


class Setting:
    """A purgatory on a clock moved by hand."""

    def __init__(self, purge_interval: int = 1000) -> None:
        self.clock = ManualMonotonicClock()
        timer = SystemTimer(self.clock)
        self.purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory(timer, purge_interval)

    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.purgatory.advance_clock(0)

    def watch(self, operation: Operation, *keys: str) -> Operation:
        assert not self.purgatory.try_complete_else_watch(operation, keys)
        return operation

    @property
    def gauges(self) -> tuple[int, int]:
        return self.purgatory.num_delayed, self.purgatory.watched


def test_3_4_3_satisfaction_by_event() -> None:
    purgatory = Setting().purgatory
    operations = {key: Operation() for key in ("test1", "test2")}
    for key, operation in operations.items():
        assert purgatory.check_and_complete(key) == 0
        assert not purgatory.try_complete_else_watch(operation, [key])
        assert purgatory.check_and_complete(key) == 0
    for key, operation in operations.items():
        operation.completable = True
        assert [purgatory.check_and_complete(key) for _ in range(2)] == [1, 0]
        assert operation.life == ["completed"]


def test_3_4_4_expiry_of_one_leaves_the_other() -> None:
    setting = Setting()
    first, second = setting.watch(Operation(20), "test1"), setting.watch(Operation(200_000), "test2")
    setting.pass_time(19)
    assert not first.is_completed
    setting.pass_time(1)
    assert (first.life, second.is_completed) == (["completed", "expired"], False)


def test_3_4_6_completed_operations_leave_a_list_when_its_key_is_checked() -> None:
    setting = Setting()
    operations = [setting.watch(Operation(), *("test1", "test2", "test3")[:keys]) for keys in (1, 2, 3)]
    assert setting.gauges == (3, 6)
    for operation in operations[1:]:
        operation.force_complete()
    assert setting.purgatory.num_delayed == 1
    watched = []
    for key in ("test1", "test2", "test3"):
        assert setting.purgatory.check_and_complete(key) == 0
        watched.append(setting.purgatory.watched)
    assert watched == [4, 2, 1]


@pytest.mark.parametrize(("completed", "watched_after"), [(5, 6 * 2), (6, 0)], ids=["at the interval", "above it"])
def test_more_completed_operations_than_the_interval_are_purged(completed: int, watched_after: int) -> None:
    setting = Setting(purge_interval=5)
    operations = [setting.watch(Operation(), "key", "other") for _ in range(6)]
    for operation in operations[:completed]:
        operation.force_complete()
    setting.purgatory.advance_clock(0)
    assert setting.purgatory.watched == watched_after


def test_3_4_7_cancel_for_key_returns_and_forgets_the_operations_of_one_key() -> None:
    setting = Setting()
    first, second, _ = (setting.watch(Operation(), key) for key in ("key", "key", "key2"))
    assert setting.purgatory.cancel_for_key("key") == [first, second]
    assert setting.gauges == (1, 1)
    assert setting.purgatory.cancel_for_key("unknown") == []
    assert not first.is_completed


def test_cancel_for_key_leaves_nothing_on_other_keys_where_kafka_leaks() -> None:
    setting = Setting()
    operation = setting.watch(Operation(10), "key", "other")
    setting.purgatory.cancel_for_key("key")
    assert setting.gauges == (0, 0)
    operation.completable = True
    assert setting.purgatory.check_and_complete("other") == 0
    setting.pass_time(10)
    assert operation.life == []


def test_completion_while_the_timer_is_started_leaves_no_timer_behind() -> None:
    class CompletingTimer(SystemTimer):
        def add(self, task: TimerTask) -> None:
            if isinstance(task, Operation):
                task.force_complete()  # an event on another thread, just before the timer gets the operation
            super().add(task)

    purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory(CompletingTimer(ManualMonotonicClock()))
    assert not purgatory.try_complete_else_watch(Operation(), ["key"])
    assert purgatory.num_delayed == 0


def test_a_failing_expiry_is_raised_after_the_others_and_the_purge() -> None:
    setting = Setting(purge_interval=0)

    class Failing(Operation):
        def on_expiration(self) -> None:
            msg = "broken expiry"
            raise RuntimeError(msg)

    fine = Operation(5)
    setting.watch(Failing(5), "key")
    setting.watch(fine, "key")
    with pytest.raises(ExceptionGroup):
        setting.pass_time(5)
    assert "expired" in fine.life
    assert setting.gauges == (0, 0)


def test_3_4_8_all_of_a_hundred_operations_end_completed_under_twenty_threads() -> None:
    # Each operation can complete at its 20th attempt. A thread that loses a race must not leave one uncompleted.
    purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory(SystemTimer(SystemMonotonicClock()))
    operations = [Operation(60_000) for _ in range(100)]
    attempts = [0] * 100
    counting = threading.Lock()
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [number])
    order = [number for number in range(100) for _ in range(20)]
    random.Random(8).shuffle(order)

    def work(numbers: list[int]) -> None:
        for number in numbers:
            time.sleep(0.0005)
            with counting:
                attempts[number] += 1
                operations[number].completable = attempts[number] == 20 or operations[number].completable
            purgatory.check_and_complete(number)

    workers = [threading.Thread(target=work, args=(order[first::20],)) for first in range(20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [operation.life for operation in operations] == [["completed"]] * 100
    assert (purgatory.num_delayed, purgatory.watched) == (0, 0)


@pytest.mark.parametrize("is_completed", [False, True], ids=["waiting", "completed"])
def test_a_forgotten_operation_leaves_nothing_behind(is_completed: bool) -> None:
    setting = Setting()
    gone, left = setting.watch(Operation(), "key", "other"), setting.watch(Operation(), "key")
    if is_completed:
        gone.force_complete()
    for _ in range(2):
        setting.purgatory.forget(gone, ["key", "other", "unknown"])
    assert setting.gauges == (1, 1)
    gone.completable = left.completable = True
    assert setting.purgatory.check_and_complete("key") == 1


def test_forgetting_what_was_never_watched_does_not_put_a_purge_off() -> None:
    setting = Setting(purge_interval=0)
    setting.watch(Operation(), "key").force_complete()
    setting.purgatory.forget(Operation(), ["key", "other"])
    setting.purgatory.advance_clock(0)
    assert setting.gauges == (0, 0)
