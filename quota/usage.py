"""Usage rows as the engine reads them: Arrow columns in, NumPy columns out. All is checked before a sensor changes."""

from collections import deque
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quota.arrays import Flags, Ids, Ints
from quota.errors import InvalidUsage

# Names as 128-bit hashes, computed column by column, and a hash table from such keys to ids.
#
# The engine distinguishes names by two 64-bit hashes with seeds of its own, drawn when it is built. Among 10 million
# entities the chance that two are mistaken for each other is below 1e-24, and no client can provoke it.
# Both hashes read the UTF-8 bytes of an Arrow column, eight at a time. They use different operations and shifts, so two
# names that were made to collide in one hash do not collide in the other.

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


BLOCK_ROWS: Final = 1 << 15
"""The number of rows worked on at a time where many steps need the same rows: as many as a core's cache holds."""
LARGEST_SUM: Final = np.iinfo(np.int64).max

BYTES: Final = ("produced_bytes", "fetched_bytes")
_TIMES: Final = ("io_time_ns", "network_time_ns")
IN_GAP: Final = "in_gap"
COLUMNS: Final = ("sample_start_ms", "broker_id", "user", "client_id", *BYTES, *_TIMES, "last_event_ms", IN_GAP)
"""The columns that `QuotaEngine.record` reads."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What n rows used of one type: bytes or ns, and where it is not null (None: everywhere)."""

    values: Ints
    present: Flags | None


class EntityNames:
    """The name columns of a table, each in one chunk. In cluster scope every broker is ""."""

    def __init__(self, table: pa.Table, has_brokers: bool) -> None:
        self.num_rows = table.num_rows
        self.user = _names(table, "user")
        self.client_id = _names(table, "client_id")
        self.broker_id = _names(table, "broker_id") if has_brokers else None

    def rows(self, start: int, stop: int) -> "EntityNames":
        """The names of the rows from start to stop."""
        part = copy(self)
        part.num_rows = length = stop - start
        part.user, part.client_id = self.user.slice(start, length), self.client_id.slice(start, length)
        part.broker_id = None if self.broker_id is None else self.broker_id.slice(start, length)
        return part

    def some(self, rows: Ints) -> "EntityNames":
        """The names of some of the rows."""
        part, indices = copy(self), pa.array(rows)
        part.num_rows = len(rows)
        part.user, part.client_id = self.user.take(indices), self.client_id.take(indices)
        part.broker_id = None if self.broker_id is None else self.broker_id.take(indices)
        return part

    def hashed(self, seeds: Seeds) -> HashedNames:
        """The hashes of all these names."""
        return NameReader(self, seeds).read(0, self.num_rows)

    def take(self, rows: Ints) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Broker, user and client-id of some rows, as plain strings."""
        return self.some(rows).plain()

    def plain(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Broker, user and client-id as plain strings."""
        broker = pa.repeat("", self.num_rows) if self.broker_id is None else _plain(self.broker_id)
        return broker, _plain(self.user), _plain(self.client_id)


class NameReader:
    """Hashes of the names of a table, block by block. Dictionaries that the memo knows are not hashed again."""

    def __init__(self, names: EntityNames, seeds: Seeds, memo: DictionaryMemo | None = None) -> None:
        self._seeds = seeds
        self._user = NameColumn(names.user, seeds, memo)
        self._client_id = NameColumn(names.client_id, seeds, memo)
        self._broker = None if names.broker_id is None else NameColumn(names.broker_id, seeds, memo)

    def read(self, start: int, stop: int) -> HashedNames:
        """The hashes of the rows from start to stop."""
        broker = None if self._broker is None else self._broker.hash(start, stop)
        return HashedNames(self._seeds, self._user.hash(start, stop), self._client_id.hash(start, stop), broker)


@dataclass(frozen=True, slots=True)
class Usage:
    """One batch of usage rows: indices of sample windows, last events, and a measure per quota type.

    `in_gap`: the usage of a time in which no throttle could be published; None for no row.
    """

    names: EntityNames
    window: Ints
    last_ms: Ints
    measures: tuple[Measure, Measure, Measure]
    in_gap: Flags | None = None

    def rows(self, start: int, stop: int) -> "Usage":
        """The rows from start to stop."""
        produced, fetched, time = (
            Measure(one.values[start:stop], None if one.present is None else one.present[start:stop])
            for one in self.measures
        )
        window, last_ms = self.window[start:stop], self.last_ms[start:stop]
        in_gap = None if self.in_gap is None else self.in_gap[start:stop]
        return Usage(self.names.rows(start, stop), window, last_ms, (produced, fetched, time), in_gap)

    @classmethod
    def read(cls, table: pa.Table, has_brokers: bool, sample_window_ms: int, evaluated_at_ms: int | Ints) -> "Usage":
        """Read a usage table with `COLUMNS`, evaluated at an instant or each row at its own, and check it.

        A table without `in_gap`, or with null there, has no usage of a gap.

        Raises:
            InvalidUsage: A column or a value is wrong, or an event is after its evaluation.
        """
        start_ms = _integers(table, "sample_start_ms").values
        last_ms = _integers(table, "last_event_ms").values
        window = _windows(start_ms, last_ms, sample_window_ms)
        ahead_ms = last_ms - evaluated_at_ms
        if len(last_ms) and ahead_ms.max() > 0:
            latest_ms = last_ms[ahead_ms.argmax()]
            evaluation_ms = latest_ms - ahead_ms.max()
            message = f"an event (last_event_ms {latest_ms}) is after the evaluation at {evaluation_ms}"
            raise InvalidUsage(message)
        produced, fetched = (_measure(table, name) for name in BYTES)
        io, network = (_measure(table, name) for name in _TIMES)
        in_gap = None
        if IN_GAP in table.schema.names:
            flags = _column(table, IN_GAP)
            if not (pa.types.is_boolean(flags.type) or pa.types.is_null(flags.type)):
                message = f"column '{IN_GAP}' has the type {flags.type}, not bool"
                raise InvalidUsage(message)
            if flags.null_count < len(flags) and pc.any(flags).as_py():
                in_gap = flags.fill_null(False).to_numpy(zero_copy_only=False)
        return cls(EntityNames(table, has_brokers), window, last_ms, (produced, fetched, _both(io, network)), in_gap)


def _windows(start_ms: Ints, last_ms: Ints, sample_window_ms: int) -> Ints:
    """The index of each row's sample window. Checks that it is one, and that it contains the row's last event."""
    if len(start_ms) and start_ms.min() == start_ms.max():
        window, offset_ms = divmod(int(start_ms[0]), sample_window_ms)
        first_ms, end_ms = int(start_ms[0]), int(start_ms[0]) + sample_window_ms
        if offset_ms == 0 and last_ms.min() >= first_ms and last_ms.max() < end_ms:
            return np.broadcast_to(np.int64(window), len(start_ms))
    windows = start_ms // sample_window_ms
    bad = np.flatnonzero(windows * sample_window_ms != start_ms)
    if len(bad):
        message = f"sample_start_ms {start_ms[bad[0]]} is not a multiple of the sample window of {sample_window_ms} ms"
        raise InvalidUsage(message)
    bad = np.flatnonzero(last_ms // sample_window_ms != windows)
    if len(bad):
        message = f"last_event_ms {last_ms[bad[0]]} is outside its sample window, which begins at {start_ms[bad[0]]}"
        raise InvalidUsage(message)
    return windows


def _both(io: Measure, network: Measure) -> Measure:
    """Request time: the sum over both kinds of threads. Null only if both are null."""
    present = None if io.present is None or network.present is None else io.present | network.present
    both: Ints = io.values + network.values
    return Measure(np.where(both < 0, LARGEST_SUM, both) if len(both) and both.min() < 0 else both, present)


def _column(table: pa.Table, name: str) -> pa.Array:
    at = table.schema.get_field_index(name)
    if at < 0:
        fault = "twice" if name in table.schema.names else "not"
        message = f"column '{name}' is {fault} in the table; its columns are {', '.join(table.schema.names)}"
        raise InvalidUsage(message)
    column = table.column(at)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _names(table: pa.Table, name: str) -> pa.Array:
    column = _column(table, name)
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        message = f"column '{name}' has the type {column.type}, not string"
        raise InvalidUsage(message)
    return column


def _integers(table: pa.Table, name: str) -> Measure:
    measure = _measure(table, name)
    if measure.present is not None:
        message = f"column '{name}' has nulls in {int((~measure.present).sum())} rows"
        raise InvalidUsage(message)
    return measure


def _measure(table: pa.Table, name: str) -> Measure:
    column = _column(table, name)
    if pa.types.is_null(column.type):
        return Measure(np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_))
    if not pa.types.is_integer(column.type):
        message = f"column '{name}' has the type {column.type}, not an integer type"
        raise InvalidUsage(message)
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    present = None
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False)
        column = column.fill_null(0)
    values: Ints = column.to_numpy(zero_copy_only=False)
    if len(values) and values.min() < 0:
        message = f"column '{name}' has a negative value, {values.min()}"
        raise InvalidUsage(message)
    return Measure(values, present)


def _plain(column: pa.Array) -> pa.Array:
    plain = column if column.type == pa.string() else column.cast(pa.string())
    return pc.fill_null(plain, "") if plain.null_count else plain


# Columns of names.


def names_of(words: tuple[str, ...], codes: Ints) -> pa.Array:
    """A string column: the words at these positions of a short list."""
    return pa.array(words).take(pa.array(codes))


def names_where(condition: Flags, names: pa.Array) -> pa.Array:
    """The name where the condition is true, "" elsewhere."""
    return names if condition.all() else pc.if_else(pa.array(condition), names, pa.scalar(""))


def null_where(condition: Flags, names: pa.Array) -> pa.Array:
    """Null where the condition is true, the name elsewhere."""
    return pc.if_else(pa.array(condition), pa.scalar(None, pa.string()), names) if condition.any() else names
