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


@pytest.mark.parametrize(
    ("size", "largest", "name"),
    [
        (0, 1, "size_bytes"),
        (-1, 1, "size_bytes"),
        (100, 0, "max_allocation_bytes"),
        (100, -1, "max_allocation_bytes"),
        (100, 101, "max_allocation_bytes"),
    ],
)
def test_m1_impossible_pools_are_refused(size: int, largest: int, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name} is .*; it can be"):
        pool(size, largest)


@pytest.mark.parametrize("size_bytes", [11, 0, -1])
def test_m2_impossible_allocations_are_refused(size_bytes: int) -> None:
    memory = pool(1000, 10)
    with pytest.raises(
        InvalidArgumentError, match=f"an allocation of {size_bytes} bytes is impossible; it can be from 1 to 10"
    ):
        memory.try_allocate(size_bytes)
    assert memory.available_bytes == 1000


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


def test_m7_a_double_release_is_refused_where_kafka_inflates_the_pool() -> None:
    memory = pool(100, 100)
    allocation = taken(memory, 10)
    memory.release(allocation)
    with pytest.raises(InvalidArgumentError):
        memory.release(allocation)
    assert memory.available_bytes == 100


def test_m8_a_foreign_release_is_refused() -> None:
    memory, other = pool(1000, 10), pool(1000, 10)
    taken(memory, 10)
    for foreign in (taken(other, 10), Allocation(10)):
        with pytest.raises(InvalidArgumentError):
            memory.release(foreign)
    assert memory.available_bytes == 990


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
    assert memory.depleted_total_ms == 250
    assert memory.depleted_percent == 50.0  # 250 of 500 ms


def test_the_depleted_percent_looks_back_over_its_window_only() -> None:
    clock = ManualMonotonicClock()
    memory = pool(10, 10, clock=clock)
    for _ in range(3):
        allocation = taken(memory, 10)
        memory.try_allocate(1)
        clock.advance(600)
        memory.release(allocation)
        clock.advance(400)
    assert memory.depleted_percent == 60.0
    clock.advance(400)  # the last depleted span was from 2000 to 2600; the window begins at 2400
    assert memory.depleted_percent == 20.0
    clock.advance(300)
    assert memory.depleted_percent == 0.0
    taken(memory, 10)
    memory.try_allocate(1)
    clock.advance(250)
    assert memory.depleted_percent == 25.0


def full_intake(*, strict: bool = False) -> tuple[MemoryIntake[str], MemoryPool, Allocation]:
    memory = MemoryPool(10, 10, ManualMonotonicClock(), strict=strict)
    intake: MemoryIntake[str] = MemoryIntake(memory)
    allocation = intake.try_allocate("first", 10)
    assert allocation is not None
    return intake, memory, allocation


def test_refused_sources_come_back_in_the_order_they_were_refused() -> None:
    intake, memory, allocation = full_intake()
    for source in ("b", "a", "c"):
        assert intake.try_allocate(source, 10) is None
    assert intake.muted == ("b", "a", "c")
    assert intake.unmute() == []
    order = []
    while intake.muted:
        memory.release(allocation)
        ((source, allocation),) = intake.unmute()
        order.append(source)
    assert order == ["b", "a", "c"]


def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    memory = MemoryPool(10, 10, ManualMonotonicClock(), strict=True)
    intake: MemoryIntake[str] = MemoryIntake(memory)
    half = intake.try_allocate("half", 5)
    assert intake.try_allocate("large", 10) is None
    assert intake.try_allocate("small", 1) is None
    assert half is not None
    memory.release(half)
    assert [source for source, _ in intake.unmute()] == ["large"]


def test_a_muted_source_must_not_ask_again() -> None:
    intake, _, _ = full_intake()
    intake.try_allocate("a", 5)
    with pytest.raises(AlreadyMutedError):
        intake.try_allocate("a", 5)
    assert intake.muted == ("a",)


def test_an_impossible_size_does_not_mute() -> None:
    intake, _, _ = full_intake()
    intake.try_allocate("a", 5)
    with pytest.raises(InvalidArgumentError):
        intake.try_allocate("b", 11)
    assert intake.muted == ("a",)
