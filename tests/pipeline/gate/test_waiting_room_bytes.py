"""What waiting callers are charged: who is refused, and who is next, when the pool is depleted."""

import pytest

from pipeline.gate.waiting_room import GateDepleted, RequestSizeRefused
from schemas.names import ClientKey
from tests.pipeline.gate.waiting_setting import Setting, until
from tests.pipeline.throttle.factories import release

NOISY = ClientKey("", "noisy", "etl")
BOB = ClientKey("", "bob", "etl")


def test_bytes_are_charged_until_the_work_is_done_not_only_until_the_caller_wakes() -> None:
    setting = Setting()
    setting.apply(until(5_000))
    caller = setting.must_wait(size_bytes=60)
    setting.apply(release(2))
    assert setting.gauges[2] == 60
    setting.waiting_room.leave(caller)
    assert setting.gauges[2] == 0


def test_a_depleted_pool_refuses_the_throttled_and_lets_the_others_pass() -> None:
    setting = Setting()
    setting.apply(until(5_000))
    first = setting.must_wait(size_bytes=60)
    setting.must_wait(size_bytes=70)  # as in KIP-72: let in while anything is left
    with pytest.raises(GateDepleted, match="the gate's pool of 100 bytes has") as full:
        setting.enter(size_bytes=1)
    assert (full.value.request_bytes, full.value.available_bytes, full.value.pool_bytes) == (1, -30, 100)
    assert setting.enter(size_bytes=100, client=ClientKey("", "bob", "")) is None
    setting.must_wait(size_bytes=0)  # nothing to caller
    setting.waiting_room.leave(first)
    setting.must_wait(size_bytes=1)


def test_the_caller_that_waits_longest_for_memory_gets_it_first() -> None:
    setting = Setting(when_full="wait")
    setting.apply(until(5_000))
    first = setting.must_wait("first", 100)
    second, third = setting.must_wait("second", 80), setting.must_wait("third", 30)
    assert setting.waiting_room.occupancy().waiting_for_memory == 2
    assert setting.gauges == (3, 3, 100)
    setting.apply(release(2))
    assert setting.woken == ["first"]
    setting.waiting_room.leave(first)
    assert setting.woken == ["first", "second", "third"]
    assert setting.gauges[2] == 110
    setting.waiting_room.leave(third)
    setting.waiting_room.leave(second)
    assert setting.gauges == (0, 0, 0)


def test_a_caller_that_gets_memory_while_still_throttled_waits_on() -> None:
    setting = Setting(when_full="wait")
    setting.apply(until(5_000))
    first = setting.must_wait("first", 100)
    setting.must_wait("second", 100)
    setting.waiting_room.leave(first)
    assert setting.woken == ["first"]
    assert setting.gauges == (1, 1, 100)
    setting.pass_time(4_000)
    assert setting.woken == ["first", "second"]


def test_a_caller_that_gives_up_waiting_for_memory_is_passed_over() -> None:
    setting = Setting(when_full="wait")
    setting.apply(until(5_000))
    first, second = setting.must_wait("first", 100), setting.must_wait("second", 100)
    setting.must_wait("third", 100)
    setting.waiting_room.leave(second)
    setting.waiting_room.leave(first)
    assert setting.gauges == (1, 1, 100)
    setting.apply(release(2))
    assert setting.woken == ["second", "first", "third"]


def noisy_fills_the_pool_before_bob() -> Setting:
    """The noisy client waits until 600 000 with the whole pool; bob waits until 2 000, and waits for memory."""
    setting = Setting(when_full="wait")
    setting.apply(until(600_000, user="noisy"), until(2_000, user="bob"))
    setting.must_wait("noisy", 100, NOISY)
    setting.must_wait("bob", 60, BOB)
    assert setting.waiting_room.occupancy().waiting_for_memory == 1
    return setting


def test_a_caller_that_waits_for_memory_goes_on_at_the_end_of_its_own_throttle() -> None:
    setting = noisy_fills_the_pool_before_bob()
    setting.pass_time(999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["bob"]
    assert setting.gauges[2] == 100


def test_a_caller_that_waits_for_memory_goes_on_with_its_own_release() -> None:
    setting = noisy_fills_the_pool_before_bob()
    setting.apply(release(2, user="bob"))
    assert setting.woken == ["bob"]


def test_a_caller_that_waits_for_memory_is_renewed_like_any_other() -> None:
    setting = noisy_fills_the_pool_before_bob()
    setting.apply(until(5_000, 2, user="bob"))
    setting.pass_time(3_999)
    assert setting.woken == []
    setting.pass_time(1)
    assert setting.woken == ["bob"]


def test_after_its_throttle_a_client_waits_for_its_own_requests_alone() -> None:
    setting = noisy_fills_the_pool_before_bob()
    second = setting.must_wait("second", 60, BOB)
    setting.must_wait("third", 60, BOB)
    setting.must_wait("noisy again", 60, NOISY)
    setting.apply(release(2, user="bob"))
    assert setting.woken == ["bob", "second"]  # 120 bytes of bob's own: as many as one client may have
    setting.waiting_room.leave(second)
    assert setting.woken == ["bob", "second", "third"]
    assert setting.gauges[2] == 100


def test_a_client_that_is_throttled_again_while_it_waits_for_its_own_requests_waits_on() -> None:
    setting = noisy_fills_the_pool_before_bob()
    second = setting.must_wait("second", 60, BOB)
    setting.must_wait("third", 60, BOB)
    setting.pass_time(1_000)
    assert setting.woken == ["bob", "second"]
    setting.apply(until(5_000, 2, user="bob"))
    setting.waiting_room.leave(second)
    setting.pass_time(2_999)
    assert setting.woken == ["bob", "second"]
    setting.pass_time(1)
    assert setting.woken == ["bob", "second", "third"]


@pytest.mark.parametrize("size_bytes", [-1, 101])
def test_a_size_beyond_the_limits_is_refused_throttled_or_not(size_bytes: int) -> None:
    with pytest.raises(RequestSizeRefused, match=f"lets in requests of 0 to 100 bytes; this one has {size_bytes}"):
        Setting().enter(size_bytes=size_bytes)
