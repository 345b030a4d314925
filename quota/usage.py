"""Usage rows as the engine reads them: Arrow columns in, NumPy columns out. All is checked before a sensor changes."""

from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Flags, Ints
from quota.errors import InvalidUsage
from quota.names import DictionaryMemo, HashedNames, NameColumn, Seeds
from quota.rates import LARGEST_SUM

BLOCK_ROWS: Final = 1 << 15
"""The number of rows worked on at a time where many steps need the same rows: as many as a core's cache holds."""

BYTES: Final = ("produced_bytes", "fetched_bytes")
_TIMES: Final = ("io_time_ns", "network_time_ns")
COLUMNS: Final = ("sample_start_ms", "broker_id", "user", "client_id", *BYTES, *_TIMES, "last_event_ms")
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

    def hashed(self, seeds: Seeds) -> HashedNames:
        """The hashes of all these names."""
        return NameReader(self, seeds).read(0, self.num_rows)

    def take(self, rows: Ints) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Broker, user and client-id of some rows, as plain strings."""
        indices = pa.array(rows)
        broker = pa.repeat("", len(rows)) if self.broker_id is None else _plain(self.broker_id.take(indices))
        return broker, _plain(self.user.take(indices)), _plain(self.client_id.take(indices))


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
    """One batch of usage rows: indices of sample windows, last events, and a measure per quota type."""

    names: EntityNames
    window: Ints
    last_ms: Ints
    measures: tuple[Measure, Measure, Measure]

    def rows(self, start: int, stop: int) -> "Usage":
        """The rows from start to stop."""
        produced, fetched, time = (
            Measure(one.values[start:stop], None if one.present is None else one.present[start:stop])
            for one in self.measures
        )
        window, last_ms = self.window[start:stop], self.last_ms[start:stop]
        return Usage(self.names.rows(start, stop), window, last_ms, (produced, fetched, time))

    @classmethod
    def read(cls, table: pa.Table, has_brokers: bool, sample_window_ms: int, evaluated_at_ms: int | Ints) -> "Usage":
        """Read a usage table with `COLUMNS`, evaluated at an instant or each row at its own, and check it.

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
        return cls(EntityNames(table, has_brokers), window, last_ms, (produced, fetched, _both(io, network)))


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
