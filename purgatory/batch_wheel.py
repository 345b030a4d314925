"""A timing wheel that schedules, cancels and releases whole arrays of entries at once.

It does the work of Kafka's `SystemTimer` without an object per task. Four parts share it:

* The **slab** has one slot per pending entry. A handle names an entry and its slot.
* The **staging** holds what was scheduled lately, as it came. A schedule only appends.
* The **levels** hold the rest (both in `purgatory.batch_levels`): six levels of 256 buckets each. A bucket is a list of
  arrays of *references*: rows of (expiration, handle).
* The **overdue** references were due when they left the staging. They wait for the next advance.

When the staging has 32 768 entries, or one of its entries is due, all of it goes to the buckets in one radix pass: the
bucket of each entry is computed by columns, then a stable sort of 16-bit bucket numbers brings equal ones together.

A cancel only frees the slot. The reference stays behind, dead, until its bucket is drained. When the dead references
outnumber the pending ones by more than 65 536, the buckets are rebuilt without them. An advance drains whole buckets.
Only the one bucket that contains the new clock is split: what is due comes out, the rest sinks to finer levels.

Costs for n entries: schedule O(n), cancel O(n), advance O(n) for n entries that come out, plus at most 256 steps per
level that the clock passes. An entry sinks from level to level at most five times. A sort by expiration is needed only
when an advance drains a coarse bucket.

**An example.**

>>> wheel = BatchTimingWheel(start_ms=1000)
>>> early, late, again = wheel.schedule_many([1010, 9999, 1010])
>>> wheel.cancel_many([late, late])
1
>>> wheel.advance(1009)[1], wheel.next_expiration_ms
(array([], dtype=int64), 1010)
>>> handles, expiration_ms = wheel.advance(1010)
>>> handles.tolist() == [early, again], expiration_ms
(True, array([1010, 1010]))
>>> len(wheel), wheel.cancel_many([early])
(0, 0)

Three things differ from Kafka, on purpose: entries of one millisecond come out in the order of submission; none comes
out early; and an entry that is already due when it is scheduled comes out at the next advance, even if the clock does
not move.

**The slab.** A handle is `sequence · 2^25 + slot`. `owner[slot]` holds the handle of the entry that is in the slot, or
a negative number when the slot is free. An entry is pending exactly when `owner[slot of the handle] == handle`. So one
indexed read tells a pending handle from a stale or invented one, and the slot of a cancelled entry can be used again at
once.
"""

from itertools import count
from operator import index

import numpy as np
import numpy.typing as npt

from purgatory.batch_levels import (
    EXPIRATION,
    HANDLE,
    MAX_TIME_MS,
    NO_REFERENCES,
    Int64s,
    Levels,
    References,
    Staging,
    expiration_order,
)
from purgatory.errors import InvalidArgumentError, WheelFullError

SLOT_BITS = 25
MAX_PENDING = 1 << SLOT_BITS
SEQUENCE_BITS = 63 - SLOT_BITS
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1

_FIRST_CAPACITY = 1 << 10
_FREE = -1

# Wheels begin their sequences far apart, at multiples of the golden ratio of the range. So a handle of one wheel means
# nothing to another: with 1 000 wheels in a process each can schedule about 10^8 entries before that could change.
_GOLDEN_STEP = 169_882_977_517  # odd, about 0.618 · 2^38
_slab_numbers = count()


class Slab:
    """Pending entries (`live`) by slot. It grows by doubling and never shrinks. Freed slots are used again."""

    def __init__(self, first_sequence: int | None = None) -> None:
        if first_sequence is None:
            first_sequence = next(_slab_numbers) * _GOLDEN_STEP
        self._sequence = first_sequence & SEQUENCE_MASK
        self.live = 0
        self.capacity = 0
        self._owner = np.empty(0, dtype=np.int64)
        self._free = np.empty(0, dtype=np.int32)
        self._free_count = 0
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

    def reserve(self, n: int) -> None:
        """Make room for n more entries. `WheelFullError` leaves the slab unchanged."""
        if n > self._free_count:
            self._grow_to(self.live + n)

    def take_many(self, n: int) -> Int64s:
        """Take n slots for which `reserve` made room. Returns their handles in the order of sequence."""
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

    def are_pending(self, handles: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these handles are still pending. All must be handles that this slab issued at some time."""
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


def slots_of(handles: npt.NDArray[np.int64]) -> Int64s:
    """The slot numbers of handles, int64[n]: different for pending entries, and below the wheel's capacity."""
    return handles & (MAX_PENDING - 1)


_STAGED_MAX = 1 << 15
_DEAD_SLACK = 1 << 16  # so few dead references are never worth a compaction


class BatchTimingWheel:
    """Entries that wait for an instant, in whole milliseconds, on a clock that only `advance` moves.

    Times are integers in [0, MAX_TIME_MS], so milliseconds since the epoch fit. At most MAX_PENDING entries can be
    pending at once. A handle names one scheduled entry. When the entry is cancelled or handed out, its handle is stale.
    Stale, repeated and invented handles cancel nothing and do no harm.

    Thread rule: no lock, thread or clock inside. The caller serialises all calls and says what time it is.

    `compactions` counts how often the buckets were rebuilt to get rid of dead references.
    """

    def __init__(self, start_ms: int = 0) -> None:
        """Make an empty wheel, whose clock begins at an integer from 0 to MAX_TIME_MS, else `InvalidArgumentError`."""
        self._clock_ms = _whole("start_ms", start_ms)
        if not 0 <= self._clock_ms <= MAX_TIME_MS:
            raise _refused_time(name="start_ms", value_ms=start_ms)
        self._slab = Slab()
        self._levels = Levels()
        self._staging = Staging()
        self._overdue: list[References] = []
        self._overdue_min_ms = MAX_TIME_MS
        self._dead = 0
        self.compactions = 0

    def schedule_many(self, expiration_ms: npt.ArrayLike) -> Int64s:
        """Schedule n entries. The order of submission is the order in the array.

        Args:
            expiration_ms: int64[n], absolute. Entries at or before the clock come out at the next advance.

        Returns:
            int64[n], one handle per entry, never negative.

        Raises:
            InvalidArgumentError: not a one-dimensional array of integers, or an element is negative or above
                MAX_TIME_MS. Nothing was scheduled.
            WheelFullError: more than MAX_PENDING entries would be pending. Nothing was scheduled.
        """
        given = _integers("expiration_ms", expiration_ms)
        if not given.size:
            return np.empty(0, dtype=np.int64)
        min_ms, max_ms = int(given.min()), int(given.max())
        if min_ms < 0 or max_ms > MAX_TIME_MS:
            refused = given[(given < 0) | (given > MAX_TIME_MS)]
            raise _refused_time(name="expiration_ms", value_ms=int(refused[0]))
        self._slab.reserve(given.size)
        owned_ms = given.astype(np.int64)  # a copy: the caller may reuse its array
        handles = self._slab.take_many(owned_ms.size)
        self._staging.extend(owned_ms, handles, min_ms)
        if self._staging.size >= _STAGED_MAX:
            self._flush()
        return handles.copy()

    def cancel_many(self, handles: npt.ArrayLike) -> int:
        """Cancel entries and return how many of them were pending. Any int64 is accepted; repeated ones count once.

        Raises:
            InvalidArgumentError: not a one-dimensional array of integers.
        """
        return self.withdraw_many(handles).size

    def withdraw_many(self, handles: npt.ArrayLike) -> Int64s:
        """Cancel as `cancel_many` does. Returns the handles that were pending, each once: do not write into them."""
        cancelled = self._slab.remove_many(_integers("handles", handles).astype(np.int64, copy=False))
        self._dead += cancelled.size
        self._compact_if_worth_while()
        return cancelled

    def advance(self, now_ms: int) -> tuple[Int64s, Int64s]:
        """Move the clock and hand out everything that is due: expiration ≤ clock.

        Args:
            now_ms: the new clock. If it is before the clock, the clock stays where it is. Entries that were already due
                when they were scheduled are handed out in any case.

        Returns:
            (handles, expiration_ms), int64[m] each, in the order of (expiration, submission). The handles are stale.

        Raises:
            InvalidArgumentError: now_ms is above MAX_TIME_MS or not an integer. Nothing happened.
        """
        now_ms = _whole("now_ms", now_ms)
        if now_ms > MAX_TIME_MS:
            raise _refused_time(name="now_ms", value_ms=now_ms)
        due = self._overdue
        in_order = not due
        self._overdue = []
        if now_ms > self._clock_ms:
            drained = self._levels.drain(self._clock_ms, now_ms)
            self._clock_ms = now_ms
            due += drained.due
            if drained.boundary:
                self._settle(self._still_pending(drained.boundary))
            in_order = in_order and drained.in_order
        if self._staging.min_ms <= self._clock_ms:
            self._flush()
        # Overdue entries, from the boundary bucket and the staging, come behind drained ones of the same millisecond.
        in_order = in_order and not self._overdue
        due += self._overdue
        self._overdue, self._overdue_min_ms = [], MAX_TIME_MS
        references = self._still_pending(due)
        order = None if in_order else expiration_order(references[:, EXPIRATION])
        if order is not None:
            references = references.take(order, axis=0)
        handles = references[:, HANDLE].copy()
        self._slab.release_many(handles)
        return handles, references[:, EXPIRATION].copy()

    def _still_pending(self, parts: list[References]) -> References:
        """Join references in the given order, without those to cancelled entries."""
        references = np.concatenate(parts) if parts else NO_REFERENCES
        if not self._dead:
            return references
        pending = self._slab.are_pending(references[:, HANDLE])
        dropped = len(references) - int(np.count_nonzero(pending))
        self._dead -= dropped
        return references.compress(pending, axis=0) if dropped else references

    def _flush(self) -> None:
        references = self._staging.take_all()
        if 2 * self._dead >= len(references):  # many may be cancelled: a look is cheaper than placing them
            references = self._still_pending([references])
        self._settle(references)

    def _settle(self, references: References) -> None:
        if not len(references):
            return
        min_ms = int(references[:, EXPIRATION].min())
        if min_ms <= self._clock_ms:
            due = references[:, EXPIRATION] <= self._clock_ms
            self._overdue.append(references.compress(due, axis=0))
            self._overdue_min_ms = min(self._overdue_min_ms, min_ms)
            references = references.compress(~due, axis=0)
        self._levels.place(references, self._clock_ms)

    def _compact_if_worth_while(self) -> None:
        if self._dead <= self._slab.live + _DEAD_SLACK:
            return
        parts = [*self._overdue, *self._levels.take_all(), self._staging.take_all()]
        self._overdue, self._overdue_min_ms = [], MAX_TIME_MS
        self.compactions += 1
        self._settle(self._still_pending(parts))

    def are_pending(self, handles: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these handles are pending: bool[n]. All must be handles that this wheel issued at some time."""
        return self._slab.are_pending(handles)

    def __len__(self) -> int:
        return self._slab.live

    @property
    def clock_ms(self) -> int:
        """The latest time that `advance` was given; before that, the start."""
        return self._clock_ms

    @property
    def next_expiration_ms(self) -> int | None:
        """A lower bound of the next expiration: how long a reaper may sleep. None when nothing is pending.

        A bound at or before the clock means: advance now. A later one may be of a coarse bucket or a cancelled entry:
        the advance then hands out nothing, and the bound moves on.
        """
        if not self._slab.live:
            return None
        bound_ms = self._staging.min_ms
        if self._overdue:
            bound_ms = min(bound_ms, self._overdue_min_ms)
        bucket_ms = self._levels.first_bucket_ms(self._clock_ms)
        return int(bound_ms if bucket_ms is None else min(bound_ms, bucket_ms))

    @property
    def staged(self) -> int:
        """The references that are not in a bucket yet, those to cancelled entries included."""
        return self._staging.size

    @property
    def dead_references(self) -> int:
        """The references to cancelled entries that are still kept."""
        return self._dead

    @property
    def capacity(self) -> int:
        """The number of slots: how long a caller's column must be that is indexed by `slots_of`."""
        return self._slab.capacity


def _refused_time(name: str, value_ms: object) -> InvalidArgumentError:
    can_be = f"a time is whole milliseconds from 0 to {MAX_TIME_MS} (2^48 − 1)"
    return InvalidArgumentError(f"{name} is {value_ms!r}; {can_be}")


def _whole(name: str, value: int) -> int:
    try:
        return index(value)
    except TypeError:
        raise _refused_time(name, value) from None


def _integers(name: str, values: npt.ArrayLike) -> np.ndarray[tuple[int], np.dtype[np.integer]]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        message = f"{name} is an array of {array.dtype} and shape {array.shape}, not a one-dimensional integer array"
        raise InvalidArgumentError(message)
    return array if array.size else array.astype(np.int64)
