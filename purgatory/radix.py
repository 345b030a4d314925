"""Bucket numbers and sort orders of the batch wheel.

Both use one property of NumPy: a stable `argsort` of 8- or 16-bit integers is a radix sort and takes a few ns per
element. That of 64-bit integers is not, and is 10 to 20 times slower.
"""

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
    the expiration there. (tokio's timer has the same rule: its windows are aligned, too.)

    Args:
        expiration_ms: int64[n], each in (clock_ms, MAX_TIME_MS].
        clock_ms: the wheel's clock.

    Returns:
        uint16[n].
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
    """The stable permutation that sorts expirations; None when they are already sorted.

    Args:
        expiration_ms: int64[n], values in [0, 2^63 − 1].
    """
    if bool((expiration_ms[1:] >= expiration_ms[:-1]).all()):
        return None
    offset_ms = expiration_ms - expiration_ms.min()
    span_ms = int(offset_ms.max())
    order = np.argsort(offset_ms.astype(np.uint8 if span_ms < 1 << 8 else np.uint16), kind="stable")
    for shift in range(16, span_ms.bit_length(), 16):  # least significant 16 bits first, each pass stable
        order = order[np.argsort((offset_ms[order] >> shift).astype(np.uint16), kind="stable")]
    return order
