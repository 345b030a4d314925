"""Delayed operations in whole arrays: a batch wheel finds them by time, lists of handles find them by watch key.

It does the work of Kafka's `DelayedOperationPurgatory`, for one thread and whole batches. An operation is a handle. The
caller keeps what it is, and whether it can complete, in columns that are indexed by `slots_of(handles)`. As in Kafka
every operation completes exactly once, by an event or by its time-out, and leaves the lists of its other keys only when
these are checked or purged.
"""

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt

from purgatory.batch_wheel import BatchTimingWheel, Int64s
from purgatory.errors import InvalidArgumentError

_NOTHING: Int64s = np.empty(0, dtype=np.int64)


class WatchLists:
    """Handles by key, those of earlier batches first; `size` in all. Knows neither time nor which are still pending."""

    def __init__(self) -> None:
        self._chunks: dict[int, list[Int64s]] = {}
        self.size = 0

    def __len__(self) -> int:
        """The number of keys that have entries."""
        return len(self._chunks)

    def watch(self, handles: Int64s, keys: Int64s) -> None:
        """Append handles to the lists of their keys, int64[n, k]. A key repeated in a row counts once."""
        for number in range(keys.shape[1]):
            column, watchers = keys[:, number], handles
            repeated = (keys[:, :number] == column[:, np.newaxis]).any(axis=1)
            if repeated.any():
                column, watchers = column.compress(~repeated), watchers.compress(~repeated)
            if watchers.size:
                self.size += watchers.size
                for key, group in _grouped(watchers, column):
                    self._chunks.setdefault(key, []).append(group)

    def take(self, key: int) -> Int64s:
        """Remove the whole list of a key and return it."""
        chunks = self._chunks.pop(key, None)
        if chunks is None:
            return _NOTHING
        handles = np.concatenate(chunks) if len(chunks) > 1 else chunks[0]
        self.size -= handles.size
        return handles

    def put_back(self, key: int, handles: Int64s) -> None:
        """Give a key its list back after `take`. An empty list leaves the key without one."""
        if handles.size:
            self._chunks[key] = [handles]
            self.size += handles.size

    def purge(self, is_worth_keeping: Callable[[Int64s], npt.NDArray[np.bool_]]) -> None:
        """Remove the entries that are not worth keeping (asked once, for all), and the keys that then have none."""
        keys = list(self._chunks)
        sizes = [sum(chunk.size for chunk in chunks) for chunks in self._chunks.values()]
        entries = np.concatenate([_NOTHING, *chain.from_iterable(self._chunks.values())])
        kept = is_worth_keeping(entries)
        before_each = np.concatenate([[0], np.cumsum(kept)])[np.cumsum([0, *sizes])].tolist()
        entries = entries.compress(kept)
        self._chunks = {
            key: [entries[start:end].copy()]
            for key, start, end in zip(keys, before_each[:-1], before_each[1:], strict=True)
            if start < end
        }
        self.size = entries.size


def _grouped(handles: Int64s, column: Int64s) -> Iterator[tuple[int, Int64s]]:
    first = int(column[0])
    if (column == first).all():  # the whole batch has one key: no need to sort
        yield first, handles
        return
    order = np.argsort(column, kind="stable")
    by_key, ordered = handles.take(order), column.take(order)
    starts = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
    ends = [*starts[1:].tolist(), ordered.size]
    for key, start, end in zip(ordered.take(starts).tolist(), starts.tolist(), ends, strict=True):
        yield key, by_key[start:end]


Bools = npt.NDArray[np.bool_]
CanComplete = Callable[[Int64s], Bools]

PURGE_SLACK = 1 << 16


class BatchPurgatory:
    """Operations that wait for an event on one of their keys or for their time-out, whichever comes first.

    Thread rule: no lock, thread or clock inside. The caller serialises all calls and says what time it is. So nothing
    can happen between the caller's own check of a batch and `watch_many`, and Kafka's second check is not needed.
    """

    def __init__(self, start_ms: int = 0, purge_slack: int = PURGE_SLACK) -> None:
        """Make an empty purgatory, to be purged at `purge_slack` entries above twice what was kept last."""
        self._wheel = BatchTimingWheel(start_ms)
        self._lists = WatchLists()
        self._purge_slack = purge_slack
        self._kept_by_purge = 0

    def watch_many(self, expiration_ms: npt.ArrayLike, keys: npt.ArrayLike) -> Int64s:
        """Let n operations wait, each for its time-out and on its k keys, int64[n, k]. Returns a handle for each.

        Raises:
            InvalidArgumentError: `keys` is not a two-dimensional array of integers with n rows, or k is 0; or a time is
                refused. Times and errors are those of `BatchTimingWheel.schedule_many`. Nothing waits.
        """
        expirations = np.asarray(expiration_ms)
        columns = np.asarray(keys)
        whole = columns.dtype.kind in "iu" or not columns.size
        if columns.ndim != 2 or columns.shape[:1] != expirations.shape[:1] or not whole:
            wanted = f"a two-dimensional integer array with a row for each of {expirations.size} times"
            message = f"keys is an array of {columns.dtype} and shape {columns.shape}, not {wanted}"
            raise InvalidArgumentError(message)
        if not columns.shape[1]:
            message = "an operation has no watch key, so only its time-out could complete it"
            raise InvalidArgumentError(message)
        handles = self._wheel.schedule_many(expirations)
        self._lists.watch(handles, columns.astype(np.int64, copy=False))
        if self._lists.size > 2 * self._kept_by_purge + self._purge_slack:
            self._lists.purge(self._wheel.are_pending)
            self._kept_by_purge = self._lists.size
        return handles.copy()  # the lists keep the other one

    def complete_many(self, handles: npt.ArrayLike) -> Int64s:
        """Complete operations, whatever they wait for: see `BatchTimingWheel.withdraw_many`."""
        return self._wheel.withdraw_many(handles)

    def check_and_complete(self, key: int, can_complete: CanComplete | None = None) -> Int64s:
        """Something happened on a key: complete and return those of its operations that can (None: all)."""
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
        """Move the clock and expire what is due. Answer and errors are those of `BatchTimingWheel.advance`."""
        return self._wheel.advance(now_ms)

    @property
    def watched(self) -> int:
        """Gauge PurgatorySize: entries in all watch lists, completed ones included. One on k keys counts k times."""
        return self._lists.size

    @property
    def watched_keys(self) -> int:
        """The number of keys that have a watch list."""
        return len(self._lists)

    @property
    def num_delayed(self) -> int:
        """Gauge NumDelayedOperations: the operations that wait."""
        return len(self._wheel)

    @property
    def capacity(self) -> int:
        """The number of slots: how long a caller's column must be that is indexed by `slots_of`."""
        return self._wheel.capacity
