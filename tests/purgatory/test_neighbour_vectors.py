"""Vectors of related tests in Kafka (3.5): other things that wait for a time or an event, built with this package."""

from purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.timer import SystemTimer
from purgatory.timing_wheel import TimerTask
from tests.fakes.monotonic_clock import ManualMonotonicClock


class Ending(TimerTask):
    """A throttle, or an expiration, that notes its end."""

    def __init__(self, delay_ms: int, name: int, ended: list[int]) -> None:
        super().__init__(delay_ms)
        self.name = name
        self.ended = ended

    def run(self) -> None:
        self.ended.append(self.name)


class Threshold(DelayedOperation):
    """Waits until a value has reached its threshold."""

    def __init__(self, threshold: int, delay_ms: int, value: list[int]) -> None:
        super().__init__(delay_ms)
        self.threshold = threshold
        self.value = value
        self.expired = False

    def try_complete(self) -> bool:
        return self.value[0] >= self.threshold and self.force_complete()

    def on_complete(self) -> None:
        pass

    def on_expiration(self) -> None:
        self.expired = True


class Thresholds:
    """Kafka's threshold purgatory: one value and one key."""

    def __init__(self) -> None:
        self.clock = ManualMonotonicClock()
        self.value = [0]
        self.purgatory: DelayedOperationPurgatory[Threshold] = DelayedOperationPurgatory(SystemTimer(self.clock))

    def wait_for(self, threshold: int, delay_ms: int) -> Threshold:
        waiting = Threshold(threshold, delay_ms, self.value)
        self.purgatory.try_complete_else_watch(waiting, ["value"])
        return waiting

    def rise_to(self, value: int) -> int:
        self.value[0] = value
        self.purgatory.check_and_complete("value")
        return self.purgatory.num_delayed

    def pass_time_to(self, now_ms: int) -> int:
        self.clock.advance(now_ms - self.clock.now_ms)
        self.purgatory.advance_clock(0)
        return self.purgatory.num_delayed


def test_3_5_threshold_purgatory_completion() -> None:
    thresholds = Thresholds()
    waiting = [thresholds.wait_for(threshold, 500) for threshold in (3, 1, 5)]
    assert thresholds.purgatory.num_delayed == 3
    done = []
    for value in range(1, 6):
        left = thresholds.rise_to(value)
        done.append((left, [one.is_completed for one in waiting]))
    assert done == [
        (2, [False, True, False]),
        (2, [False, True, False]),
        (1, [True, True, False]),
        (1, [True, True, False]),
        (0, [True, True, True]),
    ]
    assert not any(one.expired for one in waiting)


def test_3_5_threshold_purgatory_expiry() -> None:
    thresholds = Thresholds()
    for _ in range(2):
        thresholds.wait_for(1, 200)
    assert thresholds.pass_time_to(100) == 2
    for delay_ms in (50, 200, 100):
        thresholds.wait_for(1, delay_ms)
    assert thresholds.purgatory.num_delayed == 5
    assert [thresholds.pass_time_to(now_ms) for now_ms in (150, 200, 250, 300)] == [4, 1, 1, 0]


def test_3_5_mock_expiration_service() -> None:
    clock, ended = ManualMonotonicClock(), list[int]()
    timer = SystemTimer(clock)
    for name, delay_ms in enumerate((50, 25, 75, 50), start=1):
        timer.add(Ending(delay_ms, name, ended))
    seen = []
    for _ in range(3):
        clock.advance(25)
        timer.advance_clock(0)
        seen.append(list(ended))
    assert seen == [[2], [2, 1, 4], [2, 1, 4, 3]]


def test_3_5_throttled_channels_end_together_where_kafka_ends_one_a_step() -> None:
    # Kafka's reaper ends one channel per step: after each 10 ms 1, 2, 3, and the fourth one step late.
    clock, ended = ManualMonotonicClock(), list[int]()
    timer = SystemTimer(clock)
    for name, delay_ms in enumerate((10, 30, 30, 20)):
        timer.add(Ending(delay_ms, name, ended))
    assert timer.size() == 4
    counts = []
    for _ in range(3):
        clock.advance(10)
        timer.advance_clock(0)
        counts.append(len(ended))
    assert counts == [1, 2, 4]
    assert timer.size() == 0
    assert not timer.advance_clock(0)
    assert ended == [0, 3, 1, 2]


def test_3_5_a_satisfied_operation_is_no_longer_delayed_where_the_heap_kept_it() -> None:
    # In the tests before the wheel, watched and delayed are 5 and 3, then 3 and still 3, then 5 and 4.
    clock, value = ManualMonotonicClock(), [0]
    purgatory: DelayedOperationPurgatory[Threshold] = DelayedOperationPurgatory(SystemTimer(clock), purge_interval=0)

    def watch(*keys: str) -> Threshold:
        operation = Threshold(1, 100_000, value)
        purgatory.try_complete_else_watch(operation, keys)
        return operation

    _, second, _ = watch("1"), watch("1", "2"), watch("2", "3")
    gauges = [(purgatory.watched, purgatory.num_delayed)]
    second.force_complete()
    assert (purgatory.watched, purgatory.num_delayed) == (5, 2)
    purgatory.advance_clock(0)
    gauges.append((purgatory.watched, purgatory.num_delayed))
    watch("1")
    watch("1")
    gauges.append((purgatory.watched, purgatory.num_delayed))
    assert gauges == [(5, 3), (3, 2), (5, 4)]
