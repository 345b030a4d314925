"""Who waits, for how long, and what it is charged: on a clock moved by hand, without threads.

record until 5 000  ──┐           ┌── at 5 000: the lease lapses
                      ▼           ▼
enter ────────────── wait ────── awake ──── leave (bytes given back, the next one comes in)
                      ▲           ▲
renewed until 9 000 ──┘           └── release: at once
"""

import pytest

from pipeline.clock import Moment
from pipeline.gate.errors import GateDepleted
from pipeline.gate.waiting_room import Occupancy
from schemas.client_key import ClientKey
from tests.pipeline.gate.waiting_setting import START_MS, Setting, until
from tests.pipeline.throttle.factories import ALICE, release


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
