"""Where new entries wait, in the order of submission, until there are enough for a radix pass.

Array calls add chunks. Scalar calls add to an open tail, which the next array call closes. So both can be mixed, and
the order of submission is kept.
"""

import numpy as np

from purgatory.radix import EXPIRATION, HANDLE, MAX_TIME_MS, Int64s, References

_NOTHING_STAGED_MS = MAX_TIME_MS + 1


class Staging:
    """References that are not in a bucket yet.

    Attributes:
        size: how many, those to cancelled entries included.
        tail_ms: expirations of the latest scalar entries, newest last.
        min_ms: a lower bound of all staged expirations; MAX_TIME_MS + 1 when there are none.
    """

    def __init__(self) -> None:
        self._chunks: list[tuple[Int64s, Int64s]] = []
        self.tail_ms: list[int] = []
        self._tail_handles: list[int] = []
        self._chunks_size = 0
        self.min_ms = _NOTHING_STAGED_MS

    @property
    def size(self) -> int:
        """The number of references that are staged."""
        return self._chunks_size + len(self.tail_ms)

    def append(self, expiration_ms: int, handle: int) -> None:
        """Stage one entry."""
        self.tail_ms.append(expiration_ms)
        self._tail_handles.append(handle)
        if expiration_ms < self.min_ms:  # noqa: PLR1730 - min() would cost a tenth of a scalar schedule
            self.min_ms = expiration_ms

    def extend(self, expiration_ms: Int64s, handles: Int64s, min_ms: int) -> None:
        """Stage a batch, int64[n] each. The arrays are kept, not copied."""
        if self.tail_ms:
            self._close_tail()
        self._chunks.append((expiration_ms, handles))
        self._chunks_size += handles.size
        self.min_ms = min(self.min_ms, min_ms)

    def _close_tail(self) -> None:
        expiration_ms = np.array(self.tail_ms, dtype=np.int64)
        handles = np.array(self._tail_handles, dtype=np.int64)
        self._chunks.append((expiration_ms, handles))
        self._chunks_size += handles.size
        self.tail_ms, self._tail_handles = [], []

    def take_all(self) -> References:
        """Empty the staging and return what was in it, in the order of submission."""
        if self.tail_ms:
            self._close_tail()
        references = np.empty((self._chunks_size, 2), dtype=np.int64)
        start = 0
        for expiration_ms, handles in self._chunks:
            end = start + handles.size
            references[start:end, EXPIRATION] = expiration_ms
            references[start:end, HANDLE] = handles
            start = end
        self._chunks, self._chunks_size = [], 0
        self.min_ms = _NOTHING_STAGED_MS
        return references
