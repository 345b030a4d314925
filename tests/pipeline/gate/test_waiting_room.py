"""Who waits, for how long, and what it is charged, on a clock moved by hand and without threads.

record until 5 000  ──┐           ┌── at 5 000: the throttle ends
                      ▼           ▼
enter ────────────── wait ────── awake ──── leave (its bytes are free again)
                      ▲           ▲
renewed until 9 000 ──┘           └── release: at once
"""

import pytest

from pipeline.clock import Moment
from pipeline.gate.waiting_room import GateDepleted, Occupancy
from schemas.names import ClientKey
from tests.pipeline.gate.waiting_setting import START_MS, Setting, until
from tests.pipeline.throttle.factories import ALICE, release


def test_a_client_that_is_not_throttled_passes_and_is_charged_nothing() -> None:
    setting = Setting()
    setting.apply(until(5_000, user="bob"))
    assert setting.enter(size_bytes=100) is None
    assert setting.gauges == (0, 0, 0)


def test_a_release_wakes_at_once() -> None:
    setting = Setting()
    setting.apply(until(5_000))
    caller = setting.must_wait(size_bytes=10)
    assert setting.gauges == (1, 1, 10)
    setting.apply(release(2))
    assert setting.woken == ["caller"]
    setting.waiting_room.leave(caller)
    assert setting.gauges == (0, 0, 0)


def test_without_a_release_the_caller_wakes_at_the_end_and_not_before() -> None:
    setting = Setting()
    setting.apply(until(5_000))
    caller = setting.must_wait()
    setting.pass_time(3_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["caller"]
    setting.waiting_room.leave(caller)
    assert setting.gauges == (0, 0, 0)


@pytest.mark.parametrize("renewed_at_ms", [1_000, 4_999], ids=["early", "in the last millisecond"])
def test_a_renewal_before_the_end_makes_the_caller_wait_on(renewed_at_ms: int) -> None:
    setting = Setting()
    setting.apply(until(5_000))
    setting.must_wait()
    setting.pass_time(renewed_at_ms - START_MS)
    setting.apply(until(9_000, 2))
    setting.pass_time(5_000 - renewed_at_ms)
    assert setting.woken == []
    assert setting.gauges == (1, 1, 0)
    setting.pass_time(3_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["caller"]


def test_a_newer_throttle_with_an_earlier_end_wakes_earlier() -> None:
    setting = Setting()
    setting.apply(until(9_000))
    setting.must_wait()
    setting.apply(until(3_000, 2))
    setting.pass_time(1_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["caller"]


def test_a_record_of_another_cluster_changes_nothing() -> None:
    setting = Setting()
    setting.apply(until(5_000, 7))
    setting.must_wait()
    setting.apply(until(9_000, 8, cluster="other"))
    setting.pass_time(3_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["caller"]


def test_a_new_topic_wakes_the_callers_of_the_old_one_but_for_those_it_throttles() -> None:
    setting = Setting()
    setting.apply(until(5_000, 500_000), until(5_000, 500_001, user="bob"))
    setting.must_wait("alice")
    setting.must_wait("bob", client=ALICE._replace(user="bob"))
    setting.waiting_room.apply([until(9_000, 0, user="bob")], is_new_topic=True)
    assert setting.woken == ["alice"]
    setting.pass_time(8_000)
    assert setting.woken == ["alice", "bob"]


def test_throttles_that_have_ended_are_forgotten_by_time() -> None:
    setting = Setting()
    setting.apply(*(until(5_000, seq, user=f"user-{seq}") for seq in range(9)))
    setting.pass_time(60_000)
    setting.apply(until(70_000, 0))
    assert len(setting.waiting_room._state) == 1


def test_of_records_that_come_together_the_newest_of_each_client_counts() -> None:
    setting = Setting()
    setting.apply(until(5_000), until(5_000, user="bob"))
    setting.must_wait("alice")
    setting.must_wait("bob", client=ClientKey("", "bob", "etl"))
    setting.apply(release(2), until(9_000, 3), release(2, user="bob"))
    assert setting.woken == ["bob"]
    setting.pass_time(9_000 - START_MS)
    assert setting.woken == ["bob", "alice"]


def test_setting_the_machines_clock_back_makes_no_caller_wait_longer() -> None:
    setting = Setting()
    setting.apply(until(5_000))
    setting.must_wait()
    setting.clock.set_wall(0)
    setting.pass_time(4_000)
    assert setting.woken == ["caller"]


def test_a_throttle_of_one_broker_blocks_callers_of_that_broker_alone() -> None:
    setting = Setting()
    setting.apply(until(5_000, broker_id="1"))
    there = ALICE._replace(broker_id="1")
    assert setting.enter() is None
    assert setting.enter(client=ALICE._replace(broker_id="2")) is None
    setting.must_wait("there", client=there)
    setting.apply(until(9_000, 2), release(3, broker_id="1"))
    assert setting.woken == []
    setting.apply(release(4))
    assert setting.woken == ["there"]


def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    setting = Setting()
    setting.apply(until(5_000))
    caller = setting.must_wait(size_bytes=60)
    for _ in range(2):
        setting.waiting_room.leave(caller)
    assert setting.gauges == (0, 0, 0)
    assert setting.waiting_room.occupancy().waiting == 0


@pytest.mark.parametrize("when_full", ["refuse", "wait"])
def test_closing_wakes_all_callers_and_later_ones_pass(when_full: str) -> None:
    setting = Setting(when_full=when_full)
    setting.apply(until(5_000))
    callers = [setting.must_wait("first", 100)]
    if when_full == "wait":
        callers.append(setting.must_wait("muted", 100))
    for _ in range(2):
        setting.waiting_room.close()
    assert len(setting.woken) == len(callers)
    assert setting.enter("late") is None
    for caller in callers:
        setting.waiting_room.leave(caller)
    assert setting.gauges == (0, 0, 0)
    assert setting.waiting_room.leases() == []


def test_a_restart_wakes_all_callers_and_begins_empty_with_the_known_throttles() -> None:
    setting = Setting(when_full="wait")
    setting.apply(until(5_000))
    callers = [setting.must_wait("first", 100), setting.must_wait("without memory", 100)]
    setting.waiting_room.restart()
    assert sorted(setting.woken) == ["first", "without memory"]
    assert setting.gauges == (0, 0, 0)
    setting.must_wait("later", 60)
    for caller in callers:
        setting.waiting_room.leave(caller)
    assert setting.gauges == (1, 1, 60)
    setting.pass_time(4_000)
    assert setting.woken[2:] == ["later"]


def test_a_caller_that_comes_while_the_room_closes_passes() -> None:
    setting = Setting()
    setting.apply(until(5_000))
    when_asked = setting.clock.now

    def close_and_read() -> Moment:
        setting.clock.now = when_asked  # type: ignore[method-assign]
        setting.waiting_room.close()
        return when_asked()

    setting.clock.now = close_and_read  # type: ignore[method-assign]
    assert setting.enter(size_bytes=10) is None
    assert setting.gauges == (0, 0, 0)


def test_a_throttle_that_ends_while_its_caller_comes_in_leaves_nothing_watched() -> None:
    setting = Setting()
    setting.apply(until(START_MS + 3))
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
    setting.apply(until(5_000), until(5_000, client_id="other"), until(500, user="over"))
    setting.must_wait(size_bytes=100)
    with pytest.raises(GateDepleted):
        setting.enter(size_bytes=1)
    setting.clock.advance(3_000)
    assert setting.waiting_room.occupancy() == Occupancy(
        purgatory_size=1,
        delayed_operations=1,
        waiting=1,
        waiting_for_memory=0,
        pool_size_bytes=100,
        pool_available_bytes=0,
        pool_used_bytes=100,
        pool_depleted_percent=100.0,
        throttled_clients=2,
    )
