"""How near every sensor is to its bound at the newest batch, by the engine that decides: the rows of the table `rates`.

A row is a sensor, or a client. A sensor has one row for each quota type and side, enforced or shadow. Its clients have
rows, too, with what each of them uses of it, unless the sensor is of one client alone. What clients without a bound
use is summed here from the usage of the batches: the engine has no sensor for it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Flags, Floats, Ids, Ints
from quota.decisions import rank_in
from quota.entity import QUOTA_TYPES, REQUEST
from quota.rates import PERCENT_PER_NS
from quota.usage import BLOCK_ROWS
from schemas.arrow import arrow_schema
from schemas.rows import RatesRow

MOST_ROWS: Final = 100_000
"""The most rows of all; whole sensors are left out, those with the smallest share first."""
MOST_CLIENTS: Final = 100
"""The most clients of a sensor that have rows: those that brokers hold longest, then those that use the most."""
MOST_UNBOUNDED: Final = 1_000
"""The most clients without a bound that have rows, for each quota type: those that use the most."""

_OF_BATCH: Final = ("cluster", "query_id", "batch_id", "time_epoch", "as_of_ms", "as_of")
COLUMNS: Final = pa.schema([(one.name, one.type) for one in arrow_schema(RatesRow) if one.name not in _OF_BATCH])
"""Columns of `CurrentRates.rows`: those of `RatesRow` that are not the same in all rows."""

_MEASURES: Final = (("produced_bytes",), ("fetched_bytes",), ("io_time_ns", "network_time_ns"))
_COUNTED: Final = ("produced_bytes", "fetched_bytes", "request_count")
_CLIENT: Final = ("broker_id", "user", "client_id")
_SENSOR: Final = ("broker_id", "quota_type", "level", "sensor_user", "sensor_client_id", "mode", "tenant")

RatesOf = Callable[[pa.Table, Flags], pa.Table]
"""`QuotaEngine.rates` of clients (broker_id, user, client_id), of both sides, with the clients to have in any case."""


@dataclass(frozen=True, slots=True)
class CurrentRates:
    """The rates at an instant.

    Attributes:
        rows: Of `COLUMNS`: sensors, the largest share first, then clients under a bound, then those without one.
        active_clients: How many pairs of user and client-id used anything in the windows of the rates.
        produced_bytes_per_second: What all clients produced, on average over these windows; likewise what they fetched,
            and the number of their requests.
    """

    rows: pa.Table
    active_clients: int
    produced_bytes_per_second: float
    fetched_bytes_per_second: float
    requests_per_second: float


TOTALS: Final = tuple(field.name for field in fields(CurrentRates) if field.name != "rows")


MINUTE_MS: Final = 60_000
_MOST_HELD: Final = 2_000
"""The most rows of a batch of which it is kept how long brokers held the client: the longest."""
_MOST_FOLLOWED: Final = 100_000
"""How many rows are kept of all batches: those that end last."""
_LONGEST_HOLD_MS: Final = 3_600_000
"""A broker's hold is followed for so long at most."""
_HELD_MS: Final = "broker_throttle_ms"
_START: Final = "sample_start_ms"
_END: Final = "end_ms"


class RecentUsage:
    """The usage of the batches that rates are made of: all rows of the last N + 1 sample windows. For one thread.

    Of the last minute it also knows how long the brokers themselves held clients.
    """

    def __init__(self, num_samples: int, sample_window_ms: int, by_broker: bool) -> None:
        self._num_samples = num_samples
        self._sample_window_ms = sample_window_ms
        self._by_broker = by_broker
        self._batches: deque[tuple[int, pa.Table]] = deque()
        self._broker_holds: pa.Table | None = None

    def add(self, usage: pa.Table, evaluated_at_ms: int) -> None:
        """Take the usage of the next batch, and forget what no window of it has."""
        kept_ms = (self._num_samples + 1) * self._sample_window_ms
        while self._batches and self._batches[0][0] <= evaluated_at_ms - kept_ms:
            self._batches.popleft()
        if usage.num_rows:
            names = [name for name in (*_CLIENT, *_USED) if name in usage.column_names]
            self._batches.append((evaluated_at_ms, usage.select(names)))
        holds = [self._broker_holds] if self._broker_holds else []
        if _HELD_MS in usage.column_names and (held := usage.filter(pc.field(_HELD_MS) > 0)).num_rows:
            most = pc.select_k_unstable(held, _MOST_HELD, [(_HELD_MS, "descending")])
            holds.append(_holds_of(held.take(most)))
        if holds:
            every = _until_served(pa.concat_tables(holds), usage)
            every = every.filter(pc.field(_END) > evaluated_at_ms - MINUTE_MS)
            if every.num_rows > _MOST_FOLLOWED:
                every = every.take(pc.select_k_unstable(every, _MOST_FOLLOWED, [(_END, "descending")]))
            self._broker_holds = every.combine_chunks()

    def copy(self) -> "RecentUsage":
        """What it holds now, for another thread."""
        found = RecentUsage(self._num_samples, self._sample_window_ms, self._by_broker)
        found._batches, found._broker_holds = self._batches.copy(), self._broker_holds
        return found

    def clear(self) -> None:
        """Forget all of it: a time epoch begins."""
        self._batches.clear()
        self._broker_holds = None

    def at(self, now_ms: int) -> "ClientUsage":
        """What each client used in the windows that a rate can have at an instant."""
        parts = [usage for _, usage in self._batches]
        usage = pa.concat_tables(parts, promote_options="default") if parts else _NO_USAGE
        used = ClientUsage.of(usage, now_ms, self._num_samples, self._sample_window_ms, self._by_broker)
        return used.held_by_brokers(self._broker_holds, now_ms, self._by_broker) if self._broker_holds else used


def _holds_of(usage: pa.Table) -> pa.Table:
    """The holds of brokers that rows of usage tell of: client, begin and end.

    A broker says how long a hold lasts when it begins. Those of one row are taken to follow one another.
    """
    held_ms = pc.min_element_wise(usage[_HELD_MS], _LONGEST_HOLD_MS)
    return usage.select([*_CLIENT, _START]).append_column(_END, pc.add(usage[_START], held_ms))


def _until_served(holds: pa.Table, usage: pa.Table) -> pa.Table:
    """The holds, of which one of more than a minute ends when its broker takes bytes of the client, or sends it some.

    Many connections that share a client-id are held at the same time, and their sum is longer than any of them.
    """
    begin, end = holds[_START].to_numpy(), holds[_END].to_numpy()
    if not np.any(end > begin + MINUTE_MS):
        return holds
    (of_hold, of_row), first = _numbered([holds, usage], _CLIENT)
    is_served = sum(_amounts(usage, name) for name in ("produced_bytes", "fetched_bytes")) > 0
    served_ms = np.zeros(len(first), np.int64)
    np.maximum.at(served_ms, of_row[is_served], usage[_START].to_numpy()[is_served])
    again_ms = served_ms[of_hold]
    end = np.where(again_ms > begin, np.minimum(end, np.maximum(again_ms, begin + MINUTE_MS)), end)
    return holds.set_column(holds.column_names.index(_END), _END, pa.array(end))


_NO_USAGE: Final = pa.table({name: pa.array([], pa.string()) for name in _CLIENT})
_USED: Final = ("sample_start_ms", "request_count", *(name for names in _MEASURES for name in names))


@dataclass(frozen=True, slots=True)
class ClientUsage:
    """n clients and what each used.

    Attributes:
        clients: broker_id, user, client_id; each once.
        by_window: float64[types, n, windows + 1]: what was used in a window and all later ones, in bytes or ns.
        first_window: The index of the oldest one.
        counted: What all of them produced and fetched, and their requests.
        span_ms: From the oldest of these windows with usage until now, at least N - 1 windows: so a cluster that has
            just begun does not seem busier than it is.
        active_clients: How many pairs of user and client-id have usage.
        broker_held_share: float64[n], see `held_by_brokers`; 0 for a client that was not held.
    """

    clients: pa.Table
    by_window: Floats
    first_window: int
    sample_window_ms: int
    counted: tuple[float, float, float]
    span_ms: int
    active_clients: int
    broker_held_share: Floats

    @classmethod
    def of(
        cls, usage: pa.Table, now_ms: int, num_samples: int, sample_window_ms: int, by_broker: bool
    ) -> "ClientUsage":
        """Sum rows of `usage` that were evaluated until an instant, in the windows that a rate can have then."""
        first = now_ms // sample_window_ms - num_samples
        if usage.num_rows:
            usage = usage.filter(pc.field("sample_start_ms") >= first * sample_window_ms)
        if not usage.num_rows:
            nothing, no_rates = np.zeros((len(_MEASURES), 0, 1)), (0.0, 0.0, 0.0)
            return cls(_NO_USAGE, nothing, first, sample_window_ms, no_rates, 1, 0, np.zeros(0))
        names = _CLIENT if by_broker else _CLIENT[1:]
        of_row, rows = _numbered([usage], names)
        windows = usage["sample_start_ms"].to_numpy() // sample_window_ms - first
        num_windows = num_samples + 1
        cells = of_row[0] * num_windows + windows
        sums = []
        for measure in _MEASURES:
            amounts = sum(_amounts(usage, name) for name in measure)
            of_cells = np.bincount(cells, amounts, len(rows) * num_windows).reshape(len(rows), num_windows)
            later = np.cumsum(of_cells[:, ::-1], axis=1)[:, ::-1]
            sums.append(np.concatenate([later, np.zeros((len(rows), 1))], axis=1))
        clients = usage.select(names).take(pa.array(rows))
        if not by_broker:
            clients = clients.add_column(0, "broker_id", pa.repeat("", len(rows)))
        # A sample that began N windows ago or earlier counts in few rates, and not in these sums.
        counted = usage.filter(pc.field("sample_start_ms") > now_ms - num_samples * sample_window_ms)
        oldest_ms = pc.min(counted["sample_start_ms"]).as_py() or now_ms
        span_ms = max(now_ms - oldest_ms, (num_samples - 1) * sample_window_ms, 1)
        produced, fetched, requests = (float(_amounts(counted, name).sum()) for name in _COUNTED)
        counted_rates = produced, fetched, requests
        active = len(_numbered([clients], _CLIENT[1:])[1])
        not_held = np.zeros(clients.num_rows)
        return cls(clients, np.stack(sums), first, sample_window_ms, counted_rates, span_ms, active, not_held)

    def held_by_brokers(self, holds: pa.Table, now_ms: int, by_broker: bool) -> "ClientUsage":
        """With the part of the last minute for which each client was held, by the broker that held it longest.

        A hold counts for what has passed of it. A client that has been silent since it was held is a client here, too.

        * `holds`: Of `_holds_of`. With several connections a broker holds a client longer than time passes: the part is
            1 at most.
        """
        of_broker, first = _numbered([holds], _CLIENT)
        begin_ms = np.maximum(holds[_START].to_numpy(), now_ms - MINUTE_MS)
        passed_ms = np.maximum(np.minimum(holds[_END].to_numpy(), now_ms) - begin_ms, 0)
        of_brokers_ms = np.bincount(of_broker[0], passed_ms, len(first))
        held, names = holds.select(_CLIENT).take(pa.array(first)), _CLIENT if by_broker else _CLIENT[1:]
        (_, of_row), of_each = _numbered([self.clients, held], names)
        longest_ms = np.zeros(len(of_each))
        np.maximum.at(longest_ms, of_row, of_brokers_ms)
        known = self.clients.num_rows  # each of them once, so their numbers come first
        silent = held.take(pa.array(of_each[known:] - known))
        if not by_broker:
            silent = silent.set_column(0, "broker_id", pa.repeat("", silent.num_rows))
        by_window = np.pad(self.by_window, ((0, 0), (0, silent.num_rows), (0, 0)))
        share = np.minimum(longest_ms / MINUTE_MS, 1.0)
        clients = pa.concat_tables([self.clients.select(_CLIENT), silent]).unify_dictionaries().combine_chunks()
        return replace(self, clients=clients, by_window=by_window, broker_held_share=share)

    def rates(self, types: Ints, clients: Ids, now_ms: int, window_ms: Ints) -> Floats:
        """What each of some clients uses of a type, over the W of a sensor: float64[m], in the unit of the bound."""
        oldest = -((window_ms - now_ms) // self.sample_window_ms) - self.first_window
        sums = self.by_window[types, clients, np.clip(oldest, 0, self.by_window.shape[2] - 1)]
        return sums * np.where(types == REQUEST, PERCENT_PER_NS, 1.0) / (np.maximum(window_ms, 1) / 1000.0)


def current_rates(used: ClientUsage, now_ms: int, rates_of: RatesOf, held: pa.Table) -> CurrentRates:
    """The rates at an instant.

    Args:
        used: Of `RecentUsage.at`.
        rates_of: Asked for some clients at a time, so that what it locks is free between.
        held: The throttles in force: columns of `_CLIENT`, quota_type, and `until_ms`, the end by wall clock. Without a
            client-id they hold the user's sensor.
    """
    begins = range(0, max(used.clients.num_rows, 1), BLOCK_ROWS)
    parts = []
    is_held = used.broker_held_share > 0
    for begin in begins:
        found = rates_of(used.clients.slice(begin, BLOCK_ROWS), is_held[begin : begin + BLOCK_ROWS])
        entity = pa.array(found["entity"].to_numpy() + begin)
        parts.append(found.set_column(0, "entity", entity))
    bounded = pa.concat_tables(parts).combine_chunks()
    rows = _bounded_rows(bounded, used, now_ms, held)
    unbounded = _unbounded_rows(bounded, used, now_ms).slice(0, MOST_ROWS - rows.num_rows)
    produced, fetched, requests = (amount / (used.span_ms / 1000) for amount in used.counted)
    return CurrentRates(pa.concat_tables([rows, unbounded]), used.active_clients, produced, fetched, requests)


def _bounded_rows(found: pa.Table, used: ClientUsage, now_ms: int, held: pa.Table) -> pa.Table:
    """Sensors, the largest share first, then their clients; as many whole sensors as there is room for."""
    own_rate = used.rates(_types(found), found["entity"].to_numpy(), now_ms, found["window_ms"].to_numpy())
    held_share = used.broker_held_share[found["entity"].to_numpy()]
    shown = (own_rate > 0) | (held_share > 0)
    found, own_rate, held_share = found.filter(pa.array(shown)), own_rate[shown], held_share[shown]
    (sensor,), first = _numbered([found], _SENSOR)
    tags = [pc.not_equal(found[name], "") for name in ("sensor_user", "sensor_client_id")]
    is_pair = _flags(pc.and_(*tags))
    until_ms = _held_until_ms(found, held)
    of_sensor_ms = np.zeros(len(first), np.int64)
    np.maximum.at(of_sensor_ms, sensor, until_ms)
    of_sensor_share = np.zeros(len(first))
    np.maximum.at(of_sensor_share, sensor, held_share)
    share = found["observed"].to_numpy() / found["bound"].to_numpy()

    by_share = np.argsort(-share[first], kind="stable")
    shown = ~is_pair & (rank_in(sensor, -held_share, -own_rate) < MOST_CLIENTS)
    rows_of = 1 + np.bincount(sensor, shown, len(first)).astype(np.int64)
    by_share = by_share[np.cumsum(rows_of[by_share]) <= MOST_ROWS]

    at = first[by_share]
    sensors = {name: found[name].take(pa.array(at)) for name in found.column_names}
    for name, is_tag in zip(("user", "client_id"), tags, strict=True):
        sensors[name] = pc.if_else(is_tag.take(pa.array(at)), sensors[f"sensor_{name}"], pa.scalar(None, pa.string()))
    sensors |= {
        "share": pa.array(share[at]),
        "own_rate": pa.array(own_rate[at], mask=~is_pair[at]),
        "clients": pa.array(np.bincount(sensor, minlength=len(first))[by_share]),
        "held_until_ms": _or_null(of_sensor_ms[by_share]),
        "broker_held_share": _or_null(of_sensor_share[by_share]),
    }
    is_kept = np.zeros(len(first), np.bool_)
    is_kept[by_share] = True
    at = np.flatnonzero(shown & is_kept[sensor])
    clients = {name: found[name].take(pa.array(at)) for name in found.column_names}
    clients |= {
        "share": pa.array(share[at]),
        "own_rate": pa.array(own_rate[at]),
        "held_until_ms": _or_null(until_ms[at]),
        "broker_held_share": _or_null(held_share[at]),
    }
    return pa.concat_tables([_rows(sensors, len(by_share)), _rows(clients, len(at))])


def _unbounded_rows(found: pa.Table, used: ClientUsage, now_ms: int) -> pa.Table:
    """The clients of each quota type that use the most of it without a bound, whether enforced or in shadow."""
    parts = []
    types, entity = _types(found), found["entity"].to_numpy()
    every = np.arange(used.clients.num_rows)
    for quota_type, name in enumerate(QUOTA_TYPES):
        span_ms = np.full(len(every), used.span_ms)
        rate = used.rates(np.full(len(every), quota_type), every, now_ms, span_ms)
        rate[entity[types == quota_type]] = 0.0
        at = np.argsort(-rate, kind="stable")[:MOST_UNBOUNDED]
        at = at[rate[at] > 0]
        columns = {of: used.clients[of].take(pa.array(at)) for of in _CLIENT}
        columns |= {"observed": pa.array(rate[at]), "own_rate": pa.array(rate[at]), "window_ms": pa.array(span_ms[at])}
        columns["broker_held_share"] = _or_null(used.broker_held_share[at])
        parts.append(_rows(columns | {"quota_type": pa.repeat(name, len(at))}, len(at)))
    return pa.concat_tables(parts)


def _held_until_ms(found: pa.Table, held: pa.Table) -> Ints:
    """Until when each client is held for the quota type of its row, int64[n]; 0 for not held, or in shadow mode.

    It is held with its user if the row's sensor is the user's: an excepted client has another one.
    """
    at = found.column_names.index("client_id")
    of_users = found.set_column(at, "client_id", pa.nulls(found.num_rows, pa.string()))
    (of_found, of_user, of_held), first = _numbered([found, of_users, held], (*_CLIENT, "quota_type"))
    until_ms = np.zeros(len(first), np.int64)
    until_ms[of_held] = held["until_ms"].to_numpy()
    is_users = _flags(pc.and_(pc.not_equal(found["sensor_user"], ""), pc.equal(found["sensor_client_id"], "")))
    is_enforced = _flags(pc.equal(found["mode"], "enforce"))
    latest_ms = np.maximum(until_ms[of_found], np.where(is_users, until_ms[of_user], 0))
    return np.where(is_enforced, latest_ms, 0)


def _rows(columns: dict[str, "pa.Array | pa.ChunkedArray"], num_rows: int) -> pa.Table:
    """A table of `COLUMNS`; those that are missing are null, others are left out."""
    found = {field.name: columns.get(field.name, pa.nulls(num_rows, field.type)) for field in COLUMNS}
    return pa.table(found).cast(COLUMNS)


def _numbered(tables: Sequence[pa.Table], names: Sequence[str]) -> tuple[list[Ids], Ids]:
    """Equal numbers for equal values of some columns, over all tables: of each its rows', and the first row of each.

    Numbers are in the order in which the values first appear. First rows count through all tables.
    """
    ends = np.cumsum([table.num_rows for table in tables])
    numbers = np.zeros(ends[-1], np.int64)
    for name in names:
        columns = [table[name] for table in tables]
        values = pa.chunked_array([chunk for one in columns for chunk in one.chunks], columns[0].type)
        codes = _codes(values.combine_chunks())
        numbers = _codes(pa.array(numbers * (codes.max(initial=0) + 1) + codes))
    highest = np.maximum.accumulate(numbers)
    first = np.flatnonzero(np.diff(highest, prepend=-1))
    return np.split(numbers, ends[:-1]), first


def _codes(values: pa.Array) -> Ids:
    """A number for each value, null too, in the order in which they first appear."""
    return np.asarray(values.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False), np.int64)


def _types(found: pa.Table) -> Ids:
    return np.asarray(pc.index_in(found["quota_type"], pa.array(QUOTA_TYPES)).to_numpy(), np.int64)


def _amounts(usage: pa.Table, name: str) -> Floats:
    if name not in usage.column_names:
        return np.zeros(usage.num_rows)
    return np.asarray(pc.fill_null(usage[name], 0).to_numpy(), np.float64)


def _flags(column: "pa.ChunkedArray") -> Flags:
    return np.asarray(column.to_numpy(), np.bool_)


def _or_null(values: Ints | Floats) -> pa.Array:
    return pa.array(values, mask=values == 0)
