"""Six aligned levels of 256 buckets each: where references to pending entries wait for their time.

Write times in base 256, so that each has six digits. Compare an expiration x with the clock. The highest digit in which
they differ says the level, and the digit of x there says the bucket:

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

**The staging.** New entries wait here, in the order of submission, until there are enough for a radix pass.

**Speed.** Bucket numbers and sort orders use one property of NumPy: a stable `argsort` of 8- or 16-bit integers is a
radix sort and takes a few ns per element. That of 64-bit integers is not, and is 10 to 20 times slower.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

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
