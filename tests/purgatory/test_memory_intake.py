"""Sources get memory in the order in which they were refused."""

import pytest

from purgatory.errors import AlreadyMutedError, InvalidArgumentError
from purgatory.memory_pool import Allocation, MemoryIntake, MemoryPool
from tests.fakes.monotonic_clock import ManualMonotonicClock


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


def test_several_are_served_while_there_is_memory() -> None:
    intake, memory, allocation = full_intake()
    for source in ("a", "b", "c"):
        intake.try_allocate(source, 6)
    memory.release(allocation)
    served = intake.unmute()
    assert [(source, allocation.size_bytes) for source, allocation in served] == [("a", 6), ("b", 6)]
    assert intake.muted == ("c",)


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


def test_a_source_that_went_away_is_forgotten() -> None:
    intake, memory, allocation = full_intake()
    intake.try_allocate("a", 5)
    assert intake.forget("a")
    assert not intake.forget("a")
    memory.release(allocation)
    assert intake.unmute() == []
    assert memory.available_bytes == 10
