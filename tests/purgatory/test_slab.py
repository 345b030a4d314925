"""Slots and handles, and which handle owns which slot."""

import numpy as np
import pytest

from purgatory.batch_wheel import MAX_PENDING, SEQUENCE_MASK, Slab, slots_of
from purgatory.errors import WheelFullError


def taken(slab: Slab, n: int) -> list[int]:
    slab.reserve(n)
    handles: list[int] = slab.take_many(n).tolist()
    return handles


def test_slots_are_unique_among_pending_entries_and_below_the_capacity() -> None:
    slab = Slab()
    handles = taken(slab, 3000)
    handles += [slab.take() for _ in range(700)]
    slots = slots_of(np.array(handles))
    assert len(set(slots.tolist())) == 3700
    assert slots.max() < slab.capacity == 4096


def test_growth_keeps_owners() -> None:
    slab = Slab()
    handles = taken(slab, 1000)
    taken(slab, 50_000)
    assert slab.remove_many(np.array(handles)).tolist() == handles


def test_handles_survive_a_wrap_of_the_sequence() -> None:
    slab = Slab(first_sequence=SEQUENCE_MASK - 4)
    handles = [*taken(slab, 3), slab.take(), *taken(slab, 3), slab.take()]
    assert min(handles) >= 0
    assert len(set(handles)) == 8
    assert handles[-1] < handles[0]
    assert slab.are_pending(np.array(handles)).all()
    assert slab.remove_many(np.array(handles)).size == 8


def test_the_scalar_path_wraps_its_sequence_as_well() -> None:
    slab = Slab(first_sequence=SEQUENCE_MASK)
    handles = [slab.take(), slab.take()]
    assert handles[1] < handles[0]
    assert slab.are_pending(np.array(handles)).all()


def test_the_array_path_finds_slots_that_the_scalar_path_freed() -> None:
    slab = Slab()
    for handle in taken(slab, 1024):
        slab.remove(handle)
    taken(slab, 1024)
    assert (slab.live, slab.capacity) == (1024, 1024)


def test_a_free_slot_is_not_owned_by_a_negative_handle() -> None:
    slab = Slab()
    free_markers = np.array([-1, -1024, -2])
    slab.remove_many(np.array(taken(slab, 1024)))  # owners are now negative tags
    assert slab.remove_many(np.concatenate([free_markers, np.arange(-1024, 0)])).size == 0
    assert not any(slab.remove(handle) for handle in range(-1024, 0))
    assert slab.live == 0


def test_room_for_more_than_handles_can_address_is_refused() -> None:
    slab = Slab()
    with pytest.raises(WheelFullError, match=f"holds at most {MAX_PENDING} pending entries"):
        slab.reserve(MAX_PENDING + 1)
    assert slab.capacity == 1024


def test_a_pending_entry_costs_twelve_bytes_of_columns() -> None:
    slab = Slab()
    taken(slab, 1 << 16)
    assert slab._owner.nbytes + slab._free.nbytes == 12 * (1 << 16)
