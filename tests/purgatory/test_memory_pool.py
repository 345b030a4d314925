"""The memory pool of KIP-72 (vectors M1 to M8), and its intake, which serves sources in the order of their refusals."""

import pytest

from purgatory.errors import AlreadyMutedError, InvalidArgumentError
from purgatory.memory_pool import Allocation, MemoryIntake, MemoryPool
from tests.fakes.clock import ManualMonotonicClock


def pool(size: int, largest: int, *, strict: bool = False, clock: ManualMonotonicClock | None = None) -> MemoryPool:
    return MemoryPool(size, largest, clock or ManualMonotonicClock(), strict=strict, depleted_window_ms=1000)


def taken(memory: MemoryPool, size_bytes: int) -> Allocation:
    allocation = memory.try_allocate(size_bytes)
    assert allocation is not None
    return allocation


@pytest.mark.parametrize("size_bytes", [11, 0])
def test_m2_impossible_allocations_are_refused_and_mute_nobody(size_bytes: int) -> None:
    memory = pool(1000, 10)
    intake = MemoryIntake[str](memory)
    with pytest.raises(
        InvalidArgumentError, match=f"an allocation of {size_bytes} bytes is impossible; it can be from 1"
    ):
        intake.try_allocate("a", size_bytes)
    assert (memory.available_bytes, intake.muted) == (1000, ())


def test_m3_a_non_strict_pool_is_overdrawn_once() -> None:
    memory = pool(21, 10)
    available = []
    for _ in range(3):
        taken(memory, 10)
        available.append((memory.available_bytes, memory.is_out_of_memory))
    assert available == [(11, False), (1, False), (-9, True)]
    assert memory.try_allocate(10) is None
    assert (memory.available_bytes, memory.used_bytes) == (-9, 30)


def test_m5_a_strict_pool_refuses_although_it_is_not_out() -> None:
    memory = pool(21, 10, strict=True)
    taken(memory, 10)
    taken(memory, 10)
    assert memory.try_allocate(10) is None
    assert not memory.is_out_of_memory
    taken(memory, 1)
    assert (memory.available_bytes, memory.is_out_of_memory) == (0, True)


def test_m7_m8_a_second_and_a_foreign_release_are_refused() -> None:
    memory, other = pool(100, 100), pool(100, 100)
    allocation = taken(memory, 10)
    memory.release(allocation)
    taken(memory, 10)
    for refused in (allocation, taken(other, 10), Allocation(10)):
        with pytest.raises(InvalidArgumentError):
            memory.release(refused)
    assert memory.available_bytes == 90


def test_depleted_time_begins_with_the_refusal_and_ends_with_the_release() -> None:
    clock = ManualMonotonicClock()
    memory = pool(10, 10, clock=clock)
    allocation = taken(memory, 10)
    clock.advance(100)  # nothing is left, but nobody was refused
    assert memory.depleted_total_ms == 0
    memory.try_allocate(1)
    clock.advance(200)
    assert memory.depleted_total_ms == 200  # the time counts while it lasts
    memory.try_allocate(1)
    clock.advance(50)
    memory.release(allocation)
    clock.advance(150)
    assert (memory.depleted_total_ms, memory.depleted_percent) == (250, 50.0)  # of 500 ms
    for passed_ms, percent in ((700, 15.0), (150, 0.0)):  # it was depleted from 100 to 350; a window is 1000 ms
        clock.advance(passed_ms)
        assert memory.depleted_percent == percent


def test_refused_sources_come_back_in_the_order_they_were_refused() -> None:
    memory = pool(10, 10)
    intake = MemoryIntake[str](memory)
    allocation = intake.try_allocate("first", 10)
    for source in ("b", "a", "c"):
        assert intake.try_allocate(source, 10) is None
    assert intake.unmute() == []
    with pytest.raises(AlreadyMutedError):
        intake.try_allocate("a", 5)
    order = []
    while intake.muted:
        assert allocation is not None
        memory.release(allocation)
        ((source, allocation),) = intake.unmute()
        order.append(source)
    assert order == ["b", "a", "c"]


def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    memory = pool(10, 10, strict=True)
    intake = MemoryIntake[str](memory)
    half = intake.try_allocate("half", 5)
    assert intake.try_allocate("large", 10) is None
    assert intake.try_allocate("small", 1) is None
    assert half is not None
    memory.release(half)
    assert [source for source, _ in intake.unmute()] == ["large"]
