"""What waiting callers are charged: who is refused, and who comes in next, when the pool is empty."""

import pytest

from pipeline.gate.errors import GateDepleted, RequestSizeRefused
from schemas.client_key import ClientKey
from tests.pipeline.gate.waiting_setting import Setting, until
from tests.pipeline.throttle.factories import release


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
