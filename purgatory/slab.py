"""The slots behind the batch wheel: one per pending entry, and handles that recognise their own slot.

A handle is `sequence · 2^25 + slot`. `owner[slot]` holds the handle of the entry that is in the slot, or a negative
number when the slot is free. An entry is pending exactly when `owner[slot of the handle] == handle`. So one indexed
read tells a pending handle from a stale or invented one, and the slot of a cancelled entry can be used again at once.
"""

from itertools import count

import numpy as np
import numpy.typing as npt

from purgatory.errors import WheelFullError
from purgatory.radix import Int64s

SLOT_BITS = 25
MAX_PENDING = 1 << SLOT_BITS
SEQUENCE_BITS = 63 - SLOT_BITS
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1

_FIRST_CAPACITY = 1 << 10
_HOT_SLOTS = 256
_FREE = -1

# Wheels begin their sequences far apart, at multiples of the golden ratio of the range. So a handle of one wheel means
# nothing to another: with 1 000 wheels in a process each can schedule about 10^8 entries before that could change.
_GOLDEN_STEP = 169_882_977_517  # odd, about 0.618 · 2^38
_slab_numbers = count()


class Slab:
    """Pending entries by slot. It grows by doubling and never shrinks. Freed slots are used again, last in, first out.

    Attributes:
        live: number of pending entries.
        capacity: number of slots, a power of two.
    """

    def __init__(self, first_sequence: int | None = None) -> None:
        """Make an empty slab.

        Args:
            first_sequence: where the sequence of its handles begins; by default far from that of every other slab.
        """
        if first_sequence is None:
            first_sequence = next(_slab_numbers) * _GOLDEN_STEP
        self._sequence = first_sequence & SEQUENCE_MASK
        self.live = 0
        self.capacity = 0
        self._owner = np.empty(0, dtype=np.int64)
        self._free = np.empty(0, dtype=np.int32)
        self._free_count = 0
        self._hot: list[int] = []  # free slots set aside for the scalar path, not on the stack
        self._grow_to(_FIRST_CAPACITY)

    def _grow_to(self, slots: int) -> None:
        capacity = max(_FIRST_CAPACITY, 1 << (slots - 1).bit_length())
        if capacity > MAX_PENDING:
            raise WheelFullError(MAX_PENDING, slots)
        old = self.capacity
        owner = np.full(capacity, _FREE, dtype=np.int64)
        owner[:old] = self._owner
        free = np.empty(capacity, dtype=np.int32)
        free[: self._free_count] = self._free[: self._free_count]
        free[self._free_count : self._free_count + capacity - old] = np.arange(capacity - 1, old - 1, -1)
        self._free_count += capacity - old
        self.capacity = capacity
        self._owner, self._free = owner, free
        self._owner_view = owner.data  # one element costs a third of NumPy's scalar indexing

    def reserve(self, n: int) -> None:
        """Make room for n more entries on the array path.

        Raises:
            WheelFullError: the slab is unchanged.
        """
        if n > self._free_count:
            self._spill_hot()
            if n > self._free_count:
                self._grow_to(self.live + n)

    def take_many(self, n: int) -> Int64s:
        """Take n slots for which `reserve` made room. Returns their handles in the order of sequence, int64[n]."""
        self._free_count -= n
        slots = self._free[self._free_count : self._free_count + n]
        handles = np.arange(self._sequence, self._sequence + n)
        self._sequence += n
        if self._sequence > SEQUENCE_MASK:
            self._sequence &= SEQUENCE_MASK
            handles &= SEQUENCE_MASK
        handles <<= SLOT_BITS
        handles |= slots
        self._owner[slots] = handles
        self.live += n
        return handles

    def take(self) -> int:
        """Take one slot and return its handle.

        Raises:
            WheelFullError: the slab is unchanged.
        """
        if not self._hot:
            self._refill_hot()
        slot = self._hot.pop()
        handle = self._sequence << SLOT_BITS | slot
        self._owner_view[slot] = handle
        self._sequence = (self._sequence + 1) & SEQUENCE_MASK
        self.live += 1
        return handle

    def _refill_hot(self) -> None:
        self.reserve(1)
        n = min(_HOT_SLOTS, self._free_count)
        self._free_count -= n
        self._hot = self._free[self._free_count : self._free_count + n].tolist()

    def _spill_hot(self) -> None:
        self._free[self._free_count : self._free_count + len(self._hot)] = self._hot
        self._free_count += len(self._hot)
        self._hot = []

    def remove_many(self, handles: Int64s) -> Int64s:
        """Free the slots of the handles that are pending. Returns these handles, each once."""
        if handles.size and int(handles.min()) < 0:
            handles = handles.compress(handles >= 0)  # the owner of a free slot is negative and must not match
        slots = handles & (self.capacity - 1)
        pending = self._owner[slots] == handles
        if not pending.all():
            slots, handles = slots.compress(pending), handles.compress(pending)
        # A repeated handle passes the test each time. So every position writes a tag of its own into its slot. Of
        # several tags written to one slot only one can be read back, and exactly one repetition recognises its own. The
        # tags are negative, which also marks the slots as free.
        tags = np.arange(-slots.size, 0)
        self._owner[slots] = tags
        first = self._owner[slots] == tags
        if not first.all():
            slots, handles = slots.compress(first), handles.compress(first)
        self._push(slots)
        return handles

    def remove(self, handle: int) -> bool:
        """Free the slot of one handle. Returns False if the handle is not pending."""
        slot = handle & (self.capacity - 1)
        if handle < 0 or self._owner_view[slot] != handle:
            return False
        self._owner_view[slot] = _FREE
        self.live -= 1
        self._hot.append(int(slot))  # a NumPy integer would make later handles NumPy integers
        if len(self._hot) > 2 * _HOT_SLOTS:
            self._spill_hot()
        return True

    def are_pending(self, handles: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these handles are still pending: bool[n]. All must be handles that this slab issued at some time."""
        pending: npt.NDArray[np.bool_] = self._owner[handles & (self.capacity - 1)] == handles
        return pending

    def release_many(self, handles: Int64s) -> None:
        """Free the slots of handles that are all pending and all different."""
        slots = handles & (self.capacity - 1)
        self._owner[slots] = _FREE
        self._push(slots)

    def _push(self, slots: Int64s) -> None:
        self._free[self._free_count : self._free_count + slots.size] = slots
        self._free_count += slots.size
        self.live -= slots.size

    @property
    def nbytes(self) -> int:
        """The memory of all columns, in bytes."""
        return self._owner.nbytes + self._free.nbytes


def slots_of(handles: npt.NDArray[np.int64]) -> Int64s:
    """The slot numbers of handles, int64[n]: different for pending entries, and below the wheel's capacity."""
    return handles & (MAX_PENDING - 1)
