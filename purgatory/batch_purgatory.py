"""Delayed operations by the array: found by time in a batch wheel, found by watch key in lists of handles.

It stands where Kafka has `DelayedOperationPurgatory`, for one thread and whole batches. An operation is a handle;
what it is, and whether it can complete, the caller keeps in columns indexed by `purgatory.slab.slots_of(handles)`.
As in Kafka every operation completes exactly once, by an event or by its time-out, and leaves the lists of its other
keys only when these are checked or purged.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from purgatory.batch_wheel import BatchTimingWheel
from purgatory.errors import InvalidBatchError, MissingWatchKeyError
from purgatory.radix import Int64s
from purgatory.watch_lists import WatchLists

Bools = npt.NDArray[np.bool_]
CanComplete = Callable[[Int64s], Bools]

PURGE_SLACK = 1 << 16


class BatchPurgatory:
    """Operations that wait for an event on one of their keys or for their time-out, whichever comes first.

    No lock, thread or clock: the caller serialises all calls and decides what time it is. Because of that nothing can
    happen between a caller's own look at a batch and `watch_many`: Kafka's second look is not needed.
    """

    def __init__(self, start_ms: int = 0, purge_slack: int = PURGE_SLACK) -> None:
        """Make an empty purgatory.

        Args:
            start_ms: where its clock stands.
            purge_slack: a purge comes once the watch lists hold this many entries more than twice what the last one
                kept, so that it costs O(1) an entry.
        """
        self._wheel = BatchTimingWheel(start_ms)
        self._lists = WatchLists()
        self._purge_slack = purge_slack
        self._kept_by_purge = 0

    def watch_many(self, expiration_ms: npt.ArrayLike, keys: npt.ArrayLike) -> Int64s:
        """Let n operations wait.

        Args:
            expiration_ms: int64[n], absolute; those at or before the clock expire at the next advance.
            keys: int64[n, k], the keys each is watched on; repeated ones in a row count once.

        Returns:
            int64[n], one handle for each.

        Raises:
            MissingWatchKeyError: k is 0. Nothing waits.
            InvalidBatchError: `keys` is no two-dimensional array of n rows of integers. Nothing waits.
            InvalidTimeError, WheelFullError: as `BatchTimingWheel.schedule_many`. Nothing waits.
        """
        expirations = np.asarray(expiration_ms)
        columns = np.asarray(keys)
        whole = columns.dtype.kind in "iu" or not columns.size
        if columns.ndim != 2 or columns.shape[:1] != expirations.shape[:1] or not whole:
            name, expected = "keys", f"a two-dimensional integer array with a row for each of {expirations.size} times"
            raise InvalidBatchError(name, str(columns.dtype), columns.shape, expected)
        if not columns.shape[1]:
            raise MissingWatchKeyError
        handles = self._wheel.schedule_many(expirations)
        self._lists.watch(handles, columns.astype(np.int64, copy=False))
        if self._lists.size > 2 * self._kept_by_purge + self._purge_slack:
            self._lists.purge(self._wheel.are_pending)
            self._kept_by_purge = self._lists.size
        return handles.copy()  # the lists keep the other one

    def complete_many(self, handles: npt.ArrayLike) -> Int64s:
        """Complete operations, whatever they wait for.

        Args:
            handles: int64[n]; stale, repeated and made-up ones complete nothing.

        Returns:
            int64[m], those that this call completed, each once. Do not write into the array.
        """
        return self._wheel.withdraw_many(handles)

    def check_and_complete(self, key: int, can_complete: CanComplete | None = None) -> Int64s:
        """Complete the operations watched on a key that can complete.

        Args:
            key: on which something happened.
            can_complete: asked once, with int64[n] handles of waiting operations, those of earlier batches first;
                bool[n]. None completes all.

        Returns:
            int64[m], those that this call completed.
        """
        watched = self._lists.take(key)
        if not watched.size:
            return watched
        if can_complete is None:
            return self._wheel.withdraw_many(watched)
        pending = self._wheel.are_pending(watched)
        if not pending.all():
            watched = watched.compress(pending)
        can = can_complete(watched)
        self._lists.put_back(key, watched.compress(~can))
        return self._wheel.withdraw_many(watched.compress(can))

    def advance(self, now_ms: int) -> tuple[Int64s, Int64s]:
        """Move the clock and expire what is due; answer and errors as `BatchTimingWheel.advance`."""
        return self._wheel.advance(now_ms)

    @property
    def watched(self) -> int:
        """Gauge PurgatorySize: watch-list entries; an operation on k keys counts k times, completed ones too."""
        return self._lists.size

    @property
    def watched_keys(self) -> int:
        """Number of keys that something is watched on."""
        return len(self._lists)

    @property
    def num_delayed(self) -> int:
        """Gauge NumDelayedOperations: operations that wait."""
        return len(self._wheel)

    @property
    def next_expiration_ms(self) -> int | None:
        """A lower bound of the next expiration, None when nothing waits: how long a caller may sleep."""
        return self._wheel.next_expiration_ms

    @property
    def capacity(self) -> int:
        """Number of slots: the length of a caller's column indexed by `purgatory.slab.slots_of(handles)`."""
        return self._wheel.capacity
