"""Which handles are watched on a key: per key a list of arrays, one per batch, joined when the key is checked."""

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt

from purgatory.radix import Int64s

_NOTHING: Int64s = np.empty(0, dtype=np.int64)


class WatchLists:
    """Handles by key, those of earlier batches first. Knows no time, and does not know which handles are still pending.

    Attributes:
        size: the entries in all lists.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, list[Int64s]] = {}
        self.size = 0

    def __len__(self) -> int:
        """The number of keys that have entries."""
        return len(self._chunks)

    def watch(self, handles: Int64s, keys: Int64s) -> None:
        """Append handles to the lists of their keys.

        Args:
            handles: int64[n]; kept, not copied.
            keys: int64[n, k]; a key that is repeated in a row counts once.
        """
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
        """Remove the whole list of a key and return it: int64[m]."""
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
        """Remove the entries that are not worth keeping, and the keys that then have none.

        Args:
            is_worth_keeping: asked once, with all handles, int64[m]; answers bool[m].
        """
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
    """The handles of each key; inside a key in the order given."""
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
