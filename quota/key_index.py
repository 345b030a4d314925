"""A hash table from 128-bit keys to the ids 0, 1, 2, … that is searched and filled by whole columns."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.names import Pair, Words

Ids = NDArray[np.int64]

_MIN_SLOTS_LOG2: Final = 6
_BOTH_HALVES: Final = np.complex128
"""Two 64-bit words that are read together. Never used as a number."""


class KeyIndex:
    """Ids 0, 1, 2, … for keys, in the order in which they were first added.

    Open addressing with linear probing. The table is at most a quarter full, so almost every look-up ends at the first
    slot. A slot holds an id + 1, or 0 if it is free. The top bits of the first half of a key say which slot is first.

    No lock: one caller at a time.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._log2 = _MIN_SLOTS_LOG2
        self._slots = np.zeros(1 << self._log2, np.int32)
        self._keys = np.zeros(1 << (self._log2 - 2), _BOTH_HALVES)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The memory of the table and its keys, in bytes."""
        return self._slots.nbytes + self._keys.nbytes

    def find(self, keys: Pair) -> Ids:
        """The id of each key, int64[n]; −1 for a key that was never added. Keys may be repeated."""
        first, second = keys
        at = (first >> np.uint64(64 - self._log2)).view(np.int64)
        ids, settled = self._probe(at, first, second)
        if settled.all():
            return ids
        rows = np.flatnonzero(~settled)
        mask = (1 << self._log2) - 1
        at, first, second = at[rows], first[rows], second[rows]
        while len(rows):
            at = (at + 1) & mask
            found, settled = self._probe(at, first, second)
            ids[rows] = found
            left = ~settled
            rows, at, first, second = rows[left], at[left], first[left], second[left]
        return ids

    def _probe(self, at: Ids, first: Words, second: Words) -> tuple[Ids, NDArray[np.bool_]]:
        ids = self._slots.take(at, mode="clip").astype(np.int64)
        ids -= 1
        keys = self._keys.take(ids, mode="clip").view(np.uint64)
        hit = keys[0::2] == first
        hit &= keys[1::2] == second
        empty = ids < 0
        hit |= empty
        return ids, hit

    def add(self, keys: Pair) -> tuple[Ids, Ids]:
        """The id of each key. New keys get the next ids; their order among each other is not specified.

        Args:
            keys: both halves of n keys; they may be repeated.

        Returns:
            The ids, int64[n], and one row per new id, in the order of these ids: a row whose key is the new one.
        """
        ids = self.find(keys)
        new_rows = []
        unknown = np.flatnonzero(ids < 0)
        while len(unknown):
            _, where = np.unique(keys[0][unknown], return_index=True)
            rows = unknown[where]
            self._insert((keys[0][rows], keys[1][rows]))
            new_rows.append(rows)
            ids[unknown] = self.find((keys[0][unknown], keys[1][unknown]))
            # Left over are keys whose first half equals that of another new key. Each takes one more round.
            unknown = unknown[ids[unknown] < 0]
        return ids, np.concatenate(new_rows) if new_rows else np.zeros(0, np.int64)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget the ids that are not kept, bool[n]. The others get new numbers, in their order."""
        halves = self._keys[: self._count][kept].view(np.uint64)
        self._clear()
        self._insert((halves[0::2], halves[1::2]))

    def _insert(self, keys: Pair) -> None:
        """Insert keys that are all new and all different."""
        before, after = self._count, self._count + len(keys[0])
        if after > len(self._keys):
            while after > 1 << (self._log2 - 2):
                self._log2 += 1
            self._keys = np.pad(self._keys, (0, (1 << (self._log2 - 2)) - len(self._keys)))
            self._slots = np.zeros(1 << self._log2, np.int32)
            self._place(np.arange(before, dtype=np.int64))
        halves = self._keys[before:after].view(np.uint64)
        halves[0::2], halves[1::2] = keys
        self._count = after
        self._place(np.arange(before, after, dtype=np.int64))

    def _place(self, ids: Ids) -> None:
        """Find a free slot for each id. Of several that want one slot, one gets it; the others try the next slot."""
        at = (self._keys[ids].view(np.uint64)[0::2] >> np.uint64(64 - self._log2)).view(np.int64)
        slot = (ids + 1).astype(np.int32)
        mask = (1 << self._log2) - 1
        while len(at):
            free = self._slots[at] == 0
            self._slots[at[free]] = slot[free]
            left = self._slots[at] != slot
            at, slot = (at[left] + 1) & mask, slot[left]
