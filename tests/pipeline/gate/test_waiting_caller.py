"""One waiting caller and the timer: the end of its throttle moves, and the caller has not been asked yet."""

from pipeline.gate.waiting_room import WaitingCaller
from purgatory.delayed_operation import DelayedOperationPurgatory
from purgatory.timer import SystemTimer
from purgatory.timing_wheel import TimerTask
from schemas.names import ClientKey
from tests.fakes.monotonic_clock import ManualMonotonicClock
from tests.pipeline.throttle.factories import ALICE


class Setting:
    """One caller in a purgatory. The end of its throttle is set by hand, without a check of its key."""

    def __init__(self, until_ms: int, timer: type[SystemTimer] = SystemTimer) -> None:
        self.until_ms = until_ms
        self.clock = ManualMonotonicClock(1_000)
        self.woken = 0
        self.is_memory_free = True
        self.timer = timer(self.clock)
        self.purgatory: DelayedOperationPurgatory[WaitingCaller] = DelayedOperationPurgatory(self.timer)
        self.caller = WaitingCaller(ALICE, 10, self, self.timer, self._wake)

    def blocked_until_ms(self, client: ClientKey) -> int:
        assert client == ALICE
        return self.until_ms

    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    def find_memory(self, caller: WaitingCaller) -> bool:
        assert caller is self.caller
        return self.is_memory_free

    def watch(self) -> None:
        self.purgatory.try_complete_else_watch(self.caller, self.caller.keys)

    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.purgatory.advance_clock(0)

    def _wake(self) -> None:
        self.woken += 1


def test_a_time_out_that_finds_a_later_end_waits_on() -> None:
    setting = Setting(until_ms=2_000)
    setting.watch()
    setting.until_ms = 3_000
    setting.pass_time(1_000)
    assert (setting.woken, setting.purgatory.num_delayed) == (0, 1)
    setting.pass_time(999)
    assert setting.woken == 0
    setting.pass_time(1)
    assert (setting.woken, setting.purgatory.num_delayed) == (1, 0)


def test_a_throttle_that_is_over_does_not_wait_at_all() -> None:
    setting = Setting(until_ms=1_000)
    setting.watch()
    assert (setting.woken, setting.purgatory.num_delayed, setting.purgatory.watched) == (1, 0, 0)


def test_a_caller_that_is_woken_while_its_end_moves_leaves_no_timer_behind() -> None:
    class Interrupted(SystemTimer):
        adds = 0

        def add(self, task: TimerTask) -> None:
            self.adds += 1
            if self.adds == 2 and isinstance(task, WaitingCaller):  # another thread's release, just before the move
                task.force_complete()
            super().add(task)

    setting = Setting(until_ms=2_000, timer=Interrupted)
    setting.watch()
    setting.until_ms = 3_000
    assert setting.purgatory.check_and_complete(ALICE) == 0
    assert (setting.woken, setting.purgatory.num_delayed) == (1, 0)


def test_a_caller_without_memory_at_the_end_of_its_throttle_waits_without_a_timer() -> None:
    setting = Setting(until_ms=2_000)
    setting.is_memory_free = False
    setting.watch()
    setting.pass_time(1_000)
    assert (setting.woken, setting.purgatory.num_delayed) == (0, 0)
    setting.until_ms = 3_000  # throttled again
    assert setting.purgatory.check_and_complete(ALICE) == 0
    setting.is_memory_free = True
    setting.pass_time(999)
    assert (setting.woken, setting.purgatory.num_delayed) == (0, 1)
    setting.pass_time(1)
    assert (setting.woken, setting.purgatory.num_delayed) == (1, 0)


def test_a_caller_that_comes_after_its_throttle_and_finds_no_memory_waits_for_the_next_throttle_too() -> None:
    setting = Setting(until_ms=0)
    setting.is_memory_free = False
    setting.watch()
    setting.pass_time(0)
    assert (setting.woken, setting.purgatory.num_delayed) == (0, 0)
    setting.until_ms = 3_000
    setting.purgatory.check_and_complete(ALICE)
    setting.is_memory_free = True
    setting.pass_time(1_999)
    assert setting.woken == 0
    setting.pass_time(1)
    assert setting.woken == 1
