"""Names as 128-bit hashes, computed column by column, and a hash table from such keys to ids.

The engine distinguishes names by two 64-bit hashes with seeds of its own, drawn when it is built. Among 10 million
entities the chance that two are mistaken for each other is below 1e-24, and no client can provoke it.
Both hashes read the UTF-8 bytes of an Arrow column, eight at a time. They use different operations and shifts, so two
names that were made to collide in one hash do not collide in the other.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quota.arrays import Flags, Ids, Ints

Words = NDArray[np.uint64]
Pair = tuple[Words, Words]  # the two hashes of n names, uint64[n] each


def some_of(pair: Pair, rows: Ids | Flags) -> Pair:
    """The hashes of some of the names."""
    return pair[0][rows], pair[1][rows]


_WORD: Final = 8
_SHIFT_1: Final = np.uint64(32)
_SHIFT_2: Final = np.uint64(29)
_EMPTY: Final = np.uint64(0)  # both hashes of "", for all seeds: there is nothing to multiply
_LOW_BYTES: Final = np.array([(1 << (8 * n)) - 1 for n in range(_WORD + 1)], np.uint64)
"""Mask of the first n bytes of a little-endian word."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """Odd 64-bit factors, one per hash: for the length of a name, for its words, and for each name of an entity."""

    length: Pair
    word: Pair
    user: Pair
    client_id: Pair
    broker_id: Pair

    @classmethod
    def draw(cls) -> "Seeds":
        """Draw new factors from the operating system's entropy."""
        factors = np.random.default_rng().integers(0, 1 << 64, (5, 2), np.uint64) | np.uint64(1)
        return cls(*(tuple(row) for row in factors))


class DictionaryMemo:
    """The hashes of the latest four dictionaries. Slices of one table share a dictionary: it is hashed only once."""

    def __init__(self) -> None:
        # The arrays are kept too, so that their memory cannot be used for others.
        self._kept: deque[tuple[pa.Array, Pair]] = deque(maxlen=4)

    def find(self, dictionary: pa.Array) -> Pair | None:
        """The hashes of this very array (not of an equal one); None if they are not kept."""
        return next((hashes for kept, hashes in self._kept if _is_same(kept, dictionary)), None)

    def keep(self, dictionary: pa.Array, hashes: Pair) -> None:
        """Keep the hashes."""
        self._kept.append((dictionary, hashes))


def _is_same(one: pa.Array, other: pa.Array) -> bool:
    if len(one) != len(other) or one.offset != other.offset:
        return False
    pairs = zip(one.buffers(), other.buffers(), strict=True)
    return all((a and a.address) == (b and b.address) for a, b in pairs)


class NameColumn:
    """One Arrow column of names (strings or a dictionary; null is ""), read as hashes. It must outlive this object."""

    def __init__(self, column: pa.Array, seeds: Seeds, memo: DictionaryMemo | None = None) -> None:
        self._seeds = seeds
        self._codes: Ints | NDArray[np.int32] | None = None
        if pa.types.is_dictionary(column.type):
            self._read_dictionary(column, memo or DictionaryMemo())
        else:
            self._read(column)

    def _read_dictionary(self, column: pa.Array, memo: DictionaryMemo) -> None:
        indices, dictionary = column.indices, column.dictionary
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(len(dictionary))
        self._codes = indices.to_numpy(zero_copy_only=False)
        known = memo.find(dictionary)
        if known is None:
            # The last place stands for null.
            values = pa.concat_arrays([dictionary.cast(pa.large_string()), pa.array([""], pa.large_string())])
            self._read(values)
            known = self._hash(0, len(values))
            memo.keep(dictionary, known)
        self._of_code = known

    def _read(self, column: pa.Array) -> None:
        if column.null_count:
            column = column.fill_null("")
        offset_type = np.int64 if pa.types.is_large_string(column.type) else np.int32
        _, offsets, data = column.buffers()
        size = np.dtype(offset_type).itemsize
        if len(column) == 0 or offsets is None:
            self._offsets = np.zeros(len(column) + 1, np.int64)
        else:
            self._offsets = np.frombuffer(offsets, offset_type, len(column) + 1, column.offset * size)
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)

    def hash(self, start: int, stop: int) -> Pair:
        """Both hashes of the names in the rows from start to stop."""
        if self._codes is None:
            return self._hash(start, stop)
        codes = self._codes[start:stop]
        return self._of_code[0][codes], self._of_code[1][codes]

    def _hash(self, start: int, stop: int) -> Pair:
        """Mix the length of each name, and then its words, into two states.

        The words begin at bytes 0, 8, 16, … The last word is the last eight bytes, which may overlap the word before. A
        name of fewer than eight bytes is one word, filled up with 0.
        """
        bounds = self._offsets[start : stop + 1].astype(np.int64)
        at, length = bounds[:-1], np.diff(bounds)
        data = self._data
        if bounds[-1] + _WORD > len(data):
            data = np.concatenate((data[bounds[0] : bounds[-1]], np.zeros(_WORD, np.uint8)))
            at = at - bounds[0]
        # A view in which every byte position begins a word: they overlap, are not aligned, and nothing is copied.
        words = np.ndarray((len(data) - _WORD + 1,), np.uint64, data, strides=(1,))
        hash_1, hash_2 = (length.astype(np.uint64) * factor for factor in self._seeds.length)
        shortest, longest = (int(length.min()), int(length.max())) if len(length) else (0, 0)
        word = words[at]
        if shortest < _WORD:
            word &= _LOW_BYTES[np.minimum(length, _WORD)]
        self._mix(hash_1, hash_2, word)
        for position in range(_WORD, longest, _WORD):
            if shortest > position:
                self._mix(hash_1, hash_2, words[at + np.minimum(length - _WORD, position)])
                continue
            rows = np.flatnonzero(length > position)
            part_1, part_2 = hash_1[rows], hash_2[rows]
            self._mix(part_1, part_2, words[at[rows] + np.minimum(length[rows] - _WORD, position)])
            hash_1[rows], hash_2[rows] = part_1, part_2
        return hash_1, hash_2

    def _mix(self, state_1: Words, state_2: Words, word: Words) -> None:
        factor_1, factor_2 = self._seeds.word
        state_1 ^= word
        state_1 *= factor_1
        state_1 ^= state_1 >> _SHIFT_1
        state_2 += word
        state_2 *= factor_2
        state_2 ^= state_2 >> _SHIFT_2


@dataclass(frozen=True, slots=True)
class HashedNames:
    """Users and client-ids of n rows as hashes; in broker scope the brokers too."""

    seeds: Seeds
    user: Pair
    client_id: Pair
    broker_id: Pair | None

    def __len__(self) -> int:
        return len(self.user[0])

    def take(self, rows: Ints) -> "HashedNames":
        """The hashes of some of the rows."""
        broker = None if self.broker_id is None else some_of(self.broker_id, rows)
        return HashedNames(self.seeds, some_of(self.user, rows), some_of(self.client_id, rows), broker)

    def entity_keys(self) -> Pair:
        """One 128-bit key per row, of broker, user and client-id together."""
        return self._keys(self.user, self.client_id)

    def sensor_keys(self, has_user: Flags, has_client_id: Flags) -> Pair:
        """The key of each row's sensor: that of an entity in which a name that is not a tag is ""."""
        user_1, user_2 = (np.where(has_user, half, _EMPTY) for half in self.user)
        client_id_1, client_id_2 = (np.where(has_client_id, half, _EMPTY) for half in self.client_id)
        return self._keys((user_1, user_2), (client_id_1, client_id_2))

    def _keys(self, user: Pair, client_id: Pair) -> Pair:
        first, second = (
            user[side] * self.seeds.user[side] + client_id[side] * self.seeds.client_id[side] for side in (0, 1)
        )
        if self.broker_id is not None:
            first += self.broker_id[0] * self.seeds.broker_id[0]
            second += self.broker_id[1] * self.seeds.broker_id[1]
        return first, second


def is_named(name: Pair) -> Flags:
    """True where the hashed name is not ""."""
    named: Flags = (name[0] | name[1]) != _EMPTY
    return named


_MIN_SLOTS_LOG2: Final = 6
_BOTH_HALVES: Final = np.complex128  # two 64-bit words that are read together. Never used as a number.


class KeyIndex:
    """Ids 0, 1, 2, … for 128-bit keys, in the order in which they were first added; searched and filled by columns.

    Open addressing with linear probing. The table is at most a quarter full, so almost every look-up ends at the first
    slot. A slot holds an id + 1, or 0 if it is free. The top bits of the first half of a key give its first slot.
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

    def find(self, keys: Pair) -> Ids:
        """The id of each key, int64[n]; −1 for a key that was never added."""
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

    def _probe(self, at: Ids, first: Words, second: Words) -> tuple[Ids, Flags]:
        ids = self._slots.take(at, mode="clip").astype(np.int64)
        ids -= 1
        keys = self._keys.take(ids, mode="clip").view(np.uint64)
        hit = keys[0::2] == first
        hit &= keys[1::2] == second
        empty = ids < 0
        hit |= empty
        return ids, hit

    def add(self, keys: Pair) -> tuple[Ids, Ids]:
        """The id of each key, and per new id, in their order, a row whose key it is."""
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

    def keys(self, ids: Ids) -> Pair:
        """The key of each id."""
        halves = self._keys[ids].view(np.uint64)
        return halves[0::2], halves[1::2]

    def keep(self, kept: Flags) -> None:
        """Forget the ids that are not kept, bool[n]. The others get new numbers, in their order."""
        halves = self._keys[: self._count][kept].view(np.uint64)
        self._clear()
        self._insert((halves[0::2], halves[1::2]))

    def _insert(self, keys: Pair) -> None:
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
