"""Who waits, for how long, and what it is charged: on a clock moved by hand, without threads.

record until 5 000  ──┐           ┌── at 5 000: the lease lapses
                      ▼           ▼
enter ────────────── wait ────── awake ──── leave (bytes given back, the next one comes in)
                      ▲           ▲
renewed until 9 000 ──┘           └── release: at once
"""

from typing import Any

import pytest

from pipeline.clock import Moment
from pipeline.throttle.errors import GateDepleted, RequestSizeRefused
from pipeline.throttle.held import ClientKey
from pipeline.throttle.hold import Hold
from pipeline.throttle.waiting_room import Occupancy, Room, WaitingRoom
from schemas.throttle_record import ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.pipeline.throttle.factories import ALICE, record, release

START_MS = 1_000


class Setting:
    """A waiting room, its clock, and who was woken."""

    def __init__(self, **room: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.room = WaitingRoom(Room(**{"pool_bytes": 100, "max_request_bytes": 100, **room}), "c", self.clock)
        self.woken: list[str] = []

    def take(self, *records: ThrottleRecord) -> None:
        self.room.take(records)

    def enter(self, name: str = "caller", size_bytes: int = 0, client: ClientKey = ALICE) -> Hold | None:
        return self.room.enter(client, size_bytes, lambda: self.woken.append(name))

    def must_wait(self, name: str = "caller", size_bytes: int = 0, client: ClientKey = ALICE) -> Hold:
        hold = self.enter(name, size_bytes, client)
        assert hold is not None
        return hold

    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.room.advance_clock(0)

    @property
    def gauges(self) -> tuple[int, int, int]:
        now = self.room.occupancy()
        return now.purgatory_size, now.delayed_operations, now.pool_used_bytes


def until(end_ms: int, publish_seq: int = 1, **changes: Any) -> ThrottleRecord:
    return record(publish_seq, end_ms, throttle_time_ms=end_ms, **changes)


def test_a_client_that_is_not_throttled_passes_and_is_charged_nothing() -> None:
    setting = Setting()
    setting.take(until(5_000, user="bob"))
    assert setting.enter(size_bytes=100) is None
    assert setting.gauges == (0, 0, 0)


def test_a_release_wakes_at_once() -> None:
    setting = Setting()
    setting.take(until(5_000))
    hold = setting.must_wait(size_bytes=10)
    assert setting.gauges == (1, 1, 10)
    setting.take(release(2))
    assert setting.woken == ["caller"]
    setting.room.leave(hold)
    assert setting.gauges == (0, 0, 0)


def test_without_a_release_the_lease_wakes_at_its_end_and_not_before() -> None:
    setting = Setting()
    setting.take(until(5_000))
    hold = setting.must_wait()
    setting.pass_time(3_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["caller"]
    setting.room.leave(hold)
    assert setting.gauges == (0, 0, 0)


@pytest.mark.parametrize("renewed_at_ms", [1_000, 4_999], ids=["early", "in the last millisecond"])
def test_a_renewal_before_the_end_makes_the_caller_wait_on(renewed_at_ms: int) -> None:
    setting = Setting()
    setting.take(until(5_000))
    setting.must_wait()
    setting.pass_time(renewed_at_ms - START_MS)
    setting.take(until(9_000, 2))
    setting.pass_time(5_000 - renewed_at_ms)
    assert setting.woken == []
    assert setting.gauges == (1, 1, 0)
    setting.pass_time(3_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["caller"]


def test_a_newer_throttle_with_an_earlier_end_lets_go_earlier() -> None:
    setting = Setting()
    setting.take(until(9_000))
    setting.must_wait()
    setting.take(until(3_000, 2))
    setting.pass_time(1_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["caller"]


def test_an_old_record_that_comes_late_moves_nothing() -> None:
    setting = Setting()
    setting.take(until(5_000, 7))
    setting.must_wait()
    setting.take(release(6), until(9_000, 5), until(9_000, 8, cluster="other"))
    setting.pass_time(3_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["caller"]


def test_of_records_that_come_together_the_newest_of_each_client_holds() -> None:
    setting = Setting()
    setting.take(until(5_000), until(5_000, user="bob"))
    setting.must_wait("alice")
    setting.must_wait("bob", client=ClientKey("", "bob", "etl"))
    setting.take(release(2), until(9_000, 3), release(2, user="bob"))
    assert setting.woken == ["bob"]
    setting.pass_time(9_000 - START_MS)
    assert setting.woken == ["bob", "alice"]


def test_setting_the_machines_clock_back_holds_nobody_longer() -> None:
    setting = Setting()
    setting.take(until(5_000))
    setting.must_wait()
    setting.clock.set_wall(0)
    setting.pass_time(4_000)
    assert setting.woken == ["caller"]


def test_a_throttle_of_one_broker_holds_those_that_go_there() -> None:
    setting = Setting()
    setting.take(until(5_000, broker_id="1"))
    there = ALICE._replace(broker_id="1")
    assert setting.enter() is None
    assert setting.enter(client=ALICE._replace(broker_id="2")) is None
    setting.must_wait("there", client=there)
    setting.take(until(9_000, 2), release(3, broker_id="1"))
    assert setting.woken == []
    setting.take(release(4))
    assert setting.woken == ["there"]


def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    setting = Setting()
    setting.take(until(5_000))
    hold = setting.must_wait(size_bytes=60)
    for _ in range(2):
        setting.room.leave(hold)
    assert setting.gauges == (0, 0, 0)
    assert setting.room.occupancy().waiting == 0


def test_bytes_are_held_until_the_work_is_done_not_only_until_the_caller_wakes() -> None:
    setting = Setting()
    setting.take(until(5_000))
    hold = setting.must_wait(size_bytes=60)
    setting.take(release(2))
    assert setting.gauges[2] == 60
    setting.room.leave(hold)
    assert setting.gauges[2] == 0


def test_a_depleted_pool_refuses_the_throttled_and_lets_the_others_pass() -> None:
    setting = Setting()
    setting.take(until(5_000))
    first = setting.must_wait(size_bytes=60)
    setting.must_wait(size_bytes=70)  # as in KIP-72: let in while anything is left
    with pytest.raises(GateDepleted, match="'request_bytes' must find room in the gate's pool of 100 bytes") as full:
        setting.enter(size_bytes=1)
    assert (full.value.request_bytes, full.value.available_bytes, full.value.pool_bytes) == (1, -30, 100)
    assert setting.enter(size_bytes=100, client=ClientKey("", "bob", "")) is None
    setting.must_wait(size_bytes=0)  # nothing to hold
    setting.room.leave(first)
    setting.must_wait(size_bytes=1)


def test_where_the_full_room_is_waited_for_the_one_that_waits_longest_comes_in_first() -> None:
    setting = Setting(when_full="wait")
    setting.take(until(5_000))
    first = setting.must_wait("first", 100)
    second, third = setting.must_wait("second", 80), setting.must_wait("third", 30)
    assert setting.room.occupancy().waiting_for_room == 2
    assert setting.gauges == (1, 1, 100)
    setting.take(release(2))
    assert setting.woken == ["first"]
    setting.room.leave(first)
    assert setting.woken == ["first", "second", "third"]
    assert setting.gauges[2] == 110
    setting.room.leave(third)
    setting.room.leave(second)
    assert setting.gauges == (0, 0, 0)


def test_who_waits_for_room_and_gets_it_while_still_throttled_waits_on() -> None:
    setting = Setting(when_full="wait")
    setting.take(until(5_000))
    first = setting.must_wait("first", 100)
    setting.must_wait("second", 100)
    setting.room.leave(first)
    assert setting.woken == ["first"]
    assert setting.gauges == (1, 1, 100)
    setting.pass_time(4_000)
    assert setting.woken == ["first", "second"]


def test_who_gives_up_waiting_for_room_is_passed_over() -> None:
    setting = Setting(when_full="wait")
    setting.take(until(5_000))
    first, second = setting.must_wait("first", 100), setting.must_wait("second", 100)
    setting.must_wait("third", 100)
    setting.room.leave(second)
    setting.room.leave(first)
    assert setting.gauges == (1, 1, 100)
    setting.take(release(2))
    assert setting.woken == ["second", "first", "third"]


@pytest.mark.parametrize("size_bytes", [-1, 101])
def test_a_size_the_room_can_not_hold_is_refused_throttled_or_not(size_bytes: int) -> None:
    with pytest.raises(RequestSizeRefused, match=f"'request_bytes' must be from 0 to 100; got {size_bytes}"):
        Setting().enter(size_bytes=size_bytes)


@pytest.mark.parametrize("when_full", ["refuse", "wait"])
def test_closing_lets_everybody_go_and_nobody_waits_afterwards(when_full: str) -> None:
    setting = Setting(when_full=when_full)
    setting.take(until(5_000))
    holds = [setting.must_wait("first", 100)]
    if when_full == "wait":
        holds.append(setting.must_wait("muted", 100))
    for _ in range(2):
        setting.room.close()
    assert len(setting.woken) == len(holds)
    assert setting.enter("late") is None
    for hold in holds:
        setting.room.leave(hold)
    assert setting.gauges == (0, 0, 0)
    assert setting.room.leases() == []


def test_who_comes_in_while_the_room_closes_passes() -> None:
    setting = Setting()
    setting.take(until(5_000))
    when_asked = setting.clock.now

    def close_and_tell() -> Moment:
        setting.clock.now = when_asked  # type: ignore[method-assign]
        setting.room.close()
        return when_asked()

    setting.clock.now = close_and_tell  # type: ignore[method-assign]
    assert setting.enter(size_bytes=10) is None
    assert setting.gauges == (0, 0, 0)


def test_a_throttle_that_ends_while_its_caller_comes_in_leaves_nothing_watched() -> None:
    setting = Setting()
    setting.take(until(START_MS + 3))
    when_asked = setting.clock.now

    def a_millisecond_later() -> Moment:
        setting.clock.advance(1)
        return when_asked()

    setting.clock.now = a_millisecond_later  # type: ignore[method-assign]
    setting.must_wait()
    assert setting.woken == ["caller"]
    assert setting.gauges == (0, 0, 0)


def test_the_gauges() -> None:
    setting = Setting()
    setting.take(until(5_000), until(5_000, client_id="other"), until(500, user="over"))
    setting.must_wait(size_bytes=100)
    with pytest.raises(GateDepleted):
        setting.enter(size_bytes=1)
    setting.clock.advance(3_000)
    assert setting.room.occupancy() == Occupancy(
        purgatory_size=1,
        delayed_operations=1,
        waiting=1,
        waiting_for_room=0,
        pool_size_bytes=100,
        pool_available_bytes=0,
        pool_used_bytes=100,
        pool_depleted_percent=100.0,
        throttled_clients=2,
    )
