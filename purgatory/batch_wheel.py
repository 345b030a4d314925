"""A timing wheel that schedules, cancels and releases whole arrays of entries at once.

It does the work of Kafka's `SystemTimer` without an object per task. Four parts share it:

* The **slab** has one slot per pending entry. A handle names an entry and its slot.
* The **staging** holds what was scheduled lately, as it came. A schedule only appends.
* The **levels** hold the rest (both in this module): six levels of 256 buckets each. A bucket is a list of
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

**The levels.** Write times in base 256, so that each has six digits. Compare an expiration x with the clock. The
highest digit in which they differ says the level, and the digit of x there says the bucket:

    level 0   256 buckets of      1 ms        level 3   256 buckets of  4.66 h
    level 1   256 buckets of    256 ms        level 4   256 buckets of 49.7 days
    level 2   256 buckets of  65.536 s        level 5   256 buckets of 34.8 years

For example with the clock at 1 000 (digits 3, 232): 1 001 is 3, 233 and differs in the last digit, so it is in bucket
233 of level 0. 2 000 is 7, 208 and differs in the digit before, so it is in bucket 7 of level 1, with everything from
1 792 to 2 047. When the clock comes to 1 792 that bucket is emptied and its entries go to level 0.

Windows are aligned to multiples of their span, so at any time all entries of one millisecond are in the same bucket.
That gives first in, first out inside a millisecond. The windows of Kafka's wheel slide with the clock and do not.

A bucket is a list of reference arrays in the order of submission. References to cancelled entries stay until they are
drained or compacted. The slab knows which ones are pending.

**Speed.** Bucket numbers and sort orders use one property of NumPy: a stable `argsort` of 8- or 16-bit integers is a
radix sort and takes a few ns per element. That of 64-bit integers is not, and is 10 to 20 times slower.

**The slab.** A handle is `sequence · 2^25 + slot`. `owner[slot]` holds the handle of the entry that is in the slot, or
a negative number when the slot is free. An entry is pending exactly when `owner[slot of the handle] == handle`. So one
indexed read tells a pending handle from a stale or invented one, and the slot of a cancelled entry can be used again at
once.
"""

from dataclasses import dataclass, field
from itertools import count
from operator import index

import numpy as np
import numpy.typing as npt

from purgatory.errors import InvalidArgumentError, WheelFullError

Int64s = npt.NDArray[np.int64]
Uint16s = npt.NDArray[np.uint16]

References = npt.NDArray[np.int64]
"""int64[n, 2], one row per entry: expiration in milliseconds, handle. A row keeps both in one cache line."""

EXPIRATION, HANDLE = 0, 1
NO_REFERENCES: References = np.empty((0, 2), dtype=np.int64)

DIGIT_BITS = 8
BUCKETS_PER_LEVEL = 1 << DIGIT_BITS
LEVELS = 6
MAX_TIME_MS = (1 << (DIGIT_BITS * LEVELS)) - 1
"""The last millisecond that a wheel can hold, 2^48 − 1: 8 900 years. An instant of today needs 41 bits."""

_DIGIT_MASK = BUCKETS_PER_LEVEL - 1


def bucket_keys(expiration_ms: Int64s, clock_ms: int) -> Uint16s:
    """The bucket number of every expiration, seen from the clock: level · 256 + digit.

    The level is the position of the highest base-256 digit in which expiration and clock differ. The digit is that of
    the expiration there. (tokio's timer has the same rule.) Each expiration must be in (clock_ms, MAX_TIME_MS].
    """
    differing = expiration_ms ^ clock_ms
    top_level = (int(differing.max()).bit_length() - 1) // DIGIT_BITS
    keys = (expiration_ms & _DIGIT_MASK).astype(np.uint16)
    for level in range(1, top_level + 1):
        keys_there = (expiration_ms >> (level * DIGIT_BITS)).astype(np.uint16)
        keys_there &= _DIGIT_MASK
        keys_there |= level << DIGIT_BITS
        np.copyto(keys, keys_there, where=differing >= 1 << (level * DIGIT_BITS))
    return keys


def expiration_order(expiration_ms: Int64s) -> npt.NDArray[np.intp] | None:
    """The stable permutation that sorts expirations, from 0 to 2^63 − 1; None when they are already sorted."""
    if bool((expiration_ms[1:] >= expiration_ms[:-1]).all()):
        return None
    offset_ms = expiration_ms - expiration_ms.min()
    span_ms = int(offset_ms.max())
    order = np.argsort(offset_ms.astype(np.uint8 if span_ms < 1 << 8 else np.uint16), kind="stable")
    for shift in range(16, span_ms.bit_length(), 16):  # least significant 16 bits first, each pass stable
        order = order[np.argsort((offset_ms[order] >> shift).astype(np.uint16), kind="stable")]
    return order


_NOTHING_STAGED_MS = MAX_TIME_MS + 1


class Staging:
    """References that are not in a bucket yet: `size`, those to cancelled entries included.

    `min_ms` is a lower bound of all staged expirations.
    """

    def __init__(self) -> None:
        self._chunks: list[tuple[Int64s, Int64s]] = []
        self.size = 0
        self.min_ms = _NOTHING_STAGED_MS

    def extend(self, expiration_ms: Int64s, handles: Int64s, min_ms: int) -> None:
        """Stage a batch. The arrays are kept, not copied."""
        self._chunks.append((expiration_ms, handles))
        self.size += handles.size
        self.min_ms = min(self.min_ms, min_ms)

    def take_all(self) -> References:
        """Empty the staging and return what was in it, in the order of submission."""
        references = np.empty((self.size, 2), dtype=np.int64)
        start = 0
        for expiration_ms, handles in self._chunks:
            end = start + handles.size
            references[start:end, EXPIRATION] = expiration_ms
            references[start:end, HANDLE] = handles
            start = end
        self._chunks, self.size = [], 0
        self.min_ms = _NOTHING_STAGED_MS
        return references


_PART_MAX = 40_000  # entries per pass; larger temporary arrays are mapped, and page-faulted, anew each time
_CHUNKS_MAX = 128
_FIRST_COPIED_KEY = 2 * BUCKETS_PER_LEVEL


@dataclass(slots=True)
class Drained:
    """What a move of the clock takes out of the levels.

    `due` is by ascending bucket, and `in_order` if all of it came from level 0. `boundary` has the references of the
    one bucket that contains the new clock: some are due.
    """

    due: list[References] = field(default_factory=list)
    in_order: bool = True
    boundary: list[References] = field(default_factory=list)


class Levels:
    """The buckets, and one bit per bucket that says whether it is occupied. Has no clock: the caller passes it."""

    def __init__(self) -> None:
        self._buckets: list[list[References]] = [[] for _ in range(LEVELS * BUCKETS_PER_LEVEL)]
        self._occupied = [0] * LEVELS

    def place(self, references: References, clock_ms: int) -> None:
        """Put references, in submission order and later than the clock, into their buckets. One radix pass."""
        n = len(references)
        parts = -(-n // _PART_MAX)
        for part in range(parts):
            here = references[part * n // parts : (part + 1) * n // parts]
            self._place_part(bucket_keys(here[:, EXPIRATION], clock_ms), here)

    def _place_part(self, keys: Uint16s, references: References) -> None:
        by_bucket = references.take(np.argsort(keys, kind="stable"), axis=0)
        counts = np.bincount(keys)
        filled = np.flatnonzero(counts)
        start = 0
        for key, end in zip(filled.tolist(), np.cumsum(counts[filled]).tolist(), strict=True):
            chunk = by_bucket[start:end]
            start = end
            if key >= _FIRST_COPIED_KEY:
                chunk = chunk.copy()  # a view would keep the whole batch in memory for more than 65 s
            bucket = self._buckets[key]
            if not bucket:
                self._occupied[key >> DIGIT_BITS] |= 1 << (key & (BUCKETS_PER_LEVEL - 1))
            elif len(bucket) == _CHUNKS_MAX:  # after many tiny batches: an array object is larger than a few handles
                bucket[:] = [np.concatenate(bucket)]
            bucket.append(chunk)

    def drain(self, from_ms: int, to_ms: int) -> Drained:
        """Take out every bucket that the clock passes on its way, and the one it stops in.

        Let h be the highest digit that changes. All buckets of the levels below h are due. On level h the buckets
        before the new digit are due, and the bucket at the new digit is the boundary (on level 0 it is due as well).
        Higher levels are not touched. This takes at most 256 · (h + 1) steps, however far the clock jumps.
        """
        drained = Drained()
        top = ((from_ms ^ to_ms).bit_length() - 1) // DIGIT_BITS
        digit = (to_ms >> (top * DIGIT_BITS)) & (BUCKETS_PER_LEVEL - 1)
        for level in range(top):
            self._take(level, self._occupied[level], drained.due)
            drained.in_order = drained.in_order and (level == 0 or not self._occupied[level])
            self._occupied[level] = 0
        passed = self._occupied[top] & ((1 << digit) - 1)
        self._take(top, passed, drained.due)
        stop = self._occupied[top] & (1 << digit)
        self._take(top, stop, drained.boundary if top else drained.due)
        drained.in_order = drained.in_order and (top == 0 or not passed)
        self._occupied[top] &= ~(passed | stop)
        return drained

    def _take(self, level: int, mask: int, into: list[References]) -> None:
        base = level * BUCKETS_PER_LEVEL - 1
        while mask:
            lowest = mask & -mask
            mask ^= lowest
            key = base + lowest.bit_length()
            into += self._buckets[key]
            self._buckets[key] = []

    def first_bucket_ms(self, clock_ms: int) -> int | None:
        """The start of the first occupied bucket, which is later than the clock; None when all are empty."""
        for level, occupied in enumerate(self._occupied):
            if occupied:
                shift = level * DIGIT_BITS
                digit = (occupied & -occupied).bit_length() - 1
                window_start_ms = clock_ms >> (shift + DIGIT_BITS) << (shift + DIGIT_BITS)
                return window_start_ms | digit << shift
        return None

    def take_all(self) -> list[References]:
        """Empty every bucket. Inside one millisecond the order of submission is kept."""
        references: list[References] = []
        for level, occupied in enumerate(self._occupied):
            self._take(level, occupied, references)
            self._occupied[level] = 0
        return references


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
