"""The current rate under each quota: how near the clients are to their bounds.

The rates are those of the engine, at one instant. A quota of a default has a sensor for each client it holds for; then
the sensor that is nearest to the bound is shown. A shadow quota is seen as the shadow resolution sees it: as if it, and
every other shadow quota, were enforced.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, Final, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Floats, Ids
from quota.engine import QuotaEngine
from quota.entity import NAMES_OF_LEVEL, QUOTA_TYPES, Level, entity_at
from quota.snapshot import QuotaSnapshot
from quota.usage import BLOCK_ROWS

_SENSOR: Final = ("level", "quota_type", "sensor_user", "sensor_client_id", "broker_id")


class QuotaKey(NamedTuple):
    """One bound: the entity as in the quota table, and the quota type."""

    user: str
    client_id: str
    quota_type: str


@dataclass(frozen=True, slots=True)
class SensorRate:
    """The rate of one sensor under the quota that holds for it.

    Attributes:
        user: A client of the sensor, with `client_id`: the first one in the order asked.
        sensor_user: The user, if it is a tag of the sensor, else ""; likewise the client-id.
        broker_id: "" in cluster scope.
        clients: How many of the clients that were asked about share the sensor.
        observed: O, above 0, in the unit of T, the bound.
        entity: User and client-id of the row of `quotas`; `owner` is that row's, where it was looked up.
    """

    quota_type: str
    user: str
    client_id: str
    sensor_user: str
    sensor_client_id: str
    broker_id: str
    clients: int
    observed: float
    bound: float
    level: int
    mode: str
    entity: tuple[str, str]
    owner: str | None = None

    @property
    def used(self) -> float:
        """O / T; above 1 the quota is violated."""
        return self.observed / self.bound

    @property
    def quota(self) -> QuotaKey:
        """The bound."""
        return QuotaKey(*self.entity, self.quota_type)


class SensorRates(Sequence[SensorRate]):
    """The rates of sensors as columns: an element is made when it is asked for. Immutable.

    A dashboard looks each second at a hundred thousand of them, and shows fifty.

    Args:
        rows: A row for each, with the attributes of `SensorRate` as columns; `entity` as `entity_user` and
            `entity_client_id`, and without `owner`.
        owners: Who is responsible, by user and client-id of the row of `quotas`.
    """

    def __init__(self, rows: pa.Table, owners: Mapping[tuple[str, str], str | None] = MappingProxyType({})) -> None:
        self._rows = rows
        self._owners = owners
        self.used: Floats = np.asarray(rows["observed"].to_numpy() / rows["bound"].to_numpy(), np.float64)
        """float64[n]: O / T of each, above 0."""

    @classmethod
    def of(cls, rates: Iterable[SensorRate]) -> "SensorRates":
        """These rates, with their owners."""
        listed = list(rates)
        columns = {name: [getattr(one, name) for one in listed] for name in _ATTRIBUTES}
        entities = {name: [one.entity[part] for one in listed] for part, name in enumerate(_ENTITY)}
        rows = pa.table({**columns, **entities}, schema=_SCHEMA)
        return cls(rows, {one.entity: one.owner for one in listed})

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    @overload
    def __getitem__(self, at: int) -> SensorRate: ...

    @overload
    def __getitem__(self, at: slice) -> "SensorRates": ...

    def __getitem__(self, at: int | slice) -> "SensorRate | SensorRates":
        if isinstance(at, slice):
            return self._taken(np.arange(len(self))[at])
        return next(iter(self._taken(np.array([range(len(self))[at]]))))

    def __iter__(self) -> Iterator[SensorRate]:
        for batch in self._rows.to_batches(_ROWS_AT_ONCE):
            columns = (batch.column(name).to_pylist() for name in (*_ATTRIBUTES, *_ENTITY))
            for *values, user, client_id in zip(*columns, strict=True):
                attributes = dict(zip(_ATTRIBUTES, values, strict=True))
                yield SensorRate(**attributes, entity=(user, client_id), owner=self._owners.get((user, client_id)))

    def places_where(self, **wanted: str | int) -> Ids:
        """Where those with these values in columns of `rows` are, in order: int64[m]."""
        found = reduce(pc.and_, (pc.equal(self._rows[name], value) for name, value in wanted.items()))
        return np.flatnonzero(found.to_numpy())

    def where(self, **wanted: str | int) -> "SensorRates":
        """Those with these values, in the same order."""
        return self._taken(self.places_where(**wanted))

    def first_of_quotas(self) -> "SensorRates":
        """The first one under each quota, in the same order."""
        return self._taken(_groups(self._rows, (*_ENTITY, "quota_type"))[0])

    def used_by_client(self) -> pa.Table:
        """user, client_id and `used` of the first one of each client, in the same order."""
        rows = self._rows.select(["user", "client_id"]).append_column("used", pa.array(self.used))
        return rows.take(pa.array(_groups(rows, ("user", "client_id"))[0]))

    def nearest_first(self, *others: "SensorRates") -> "SensorRates":
        """These and others, the one that is nearest to its bound first; equal ones by client, then by type."""
        rows = pa.concat_tables([self._rows, *(one._rows for one in others)])
        used = SensorRates(rows, self._owners)
        keys = [("used", "descending"), *((name, "ascending") for name in ("user", "client_id", "quota_type"))]
        return used._taken(pc.sort_indices(rows.append_column("used", pa.array(used.used)), keys).to_numpy())

    def in_shadow(self, entities: Iterable[tuple[str, str]]) -> "SensorRates":
        """Of the rates of an engine with shadow quotas enforced those under one, by the entities of shadow quotas."""
        # With its length the first name cannot be taken for a part of the second one.
        shadow = pa.array([f"{len(user.encode())}/{user}/{client_id}" for user, client_id in entities], pa.string())
        users, client_ids = (self._rows[name] for name in _ENTITY)
        names = pc.binary_join_element_wise(pc.binary_length(users).cast(pa.string()), users, client_ids, "/")
        found = self._taken(np.flatnonzero(pc.is_in(names, shadow).to_numpy()))
        at, mode = self._rows.schema.get_field_index("mode"), pa.repeat("shadow", len(found))
        return SensorRates(found._rows.set_column(at, "mode", mode), self._owners)

    def _taken(self, places: Ids) -> "SensorRates":
        return SensorRates(self._rows.take(pa.array(places)), self._owners)


_ROWS_AT_ONCE: Final = 1_024
_ATTRIBUTES: Final = (
    *("quota_type", "user", "client_id", "sensor_user", "sensor_client_id", "broker_id"),
    *("clients", "observed", "bound", "level", "mode"),
)
_ENTITY: Final = ("entity_user", "entity_client_id")
_TYPES: Final = {"clients": pa.int64(), "observed": pa.float64(), "bound": pa.float64(), "level": pa.int64()}
_SCHEMA: Final = pa.schema([(name, _TYPES.get(name, pa.string())) for name in (*_ATTRIBUTES, *_ENTITY)])


def _groups(rows: pa.Table, names: Sequence[str]) -> tuple[Ids, Ids]:
    """The place of the first row of each combination of values, in order, and how many rows have it: int64[groups]."""
    numbered = rows.select(list(names)).append_column("place", pa.array(np.arange(rows.num_rows)))
    groups = numbered.group_by(list(names), use_threads=False).aggregate([("place", "min"), ("place", "count")])
    first, count = (groups[name].to_numpy() for name in ("place_min", "place_count"))
    order = np.argsort(first)
    return first[order], count[order]


def mean_span_seconds(at_ms: int, oldest_ms: int, num_samples: int, sample_window_ms: int) -> float:
    """Over how many seconds the sums of all windows of a rate are averaged: as long as for a full rate at least.

    So a cluster that has just begun does not seem busier than it is. The oldest of these windows begins at `oldest_ms`.

    >>> mean_span_seconds(20_500, 10_000, 11, 1_000), mean_span_seconds(20_500, 20_000, 11, 1_000)
    (10.5, 10.0)
    """
    return max(at_ms - oldest_ms, (num_samples - 1) * sample_window_ms, 1) / 1000


def rates_of(
    engine: QuotaEngine,
    clients: pa.Table,
    at_ms: int,
    owners: Mapping[tuple[str, str], str | None] = MappingProxyType({}),
) -> SensorRates:
    """The rate of every sensor of some clients that has usage under an enforced bound, in the order of the clients.

    The engine has recorded the usage. Owners are by user and client-id of the row of `quotas`.
    """
    # Of many clients some after the others: all at once they would take several times the memory of the result.
    begins = range(0, max(clients.num_rows, 1), BLOCK_ROWS)
    found = pa.concat_tables([engine.rates(clients.slice(begin, BLOCK_ROWS), at_ms) for begin in begins])
    # Clients of one sensor share its rate.
    first, clients_of = _groups(found, _SENSOR)
    rows = found.take(pa.array(first))
    columns = {name: rows[name] for name in rows.column_names}
    columns |= {"clients": pa.array(clients_of), "mode": pa.repeat("enforce", rows.num_rows)}
    # What the level names of a client, its sensor names, too.
    for part, (name, tag) in enumerate(zip(_ENTITY, ("sensor_user", "sensor_client_id"), strict=True)):
        others = [None if NAMES_OF_LEVEL[level][part] else entity_at(level, "", "")[part] for level in Level]
        columns[name] = pc.coalesce(pa.array([None, *others], pa.string()).take(rows["level"]), rows[tag])
    return SensorRates(pa.table({name: columns[name] for name in _SCHEMA.names}).cast(_SCHEMA), owners)


def sensor_rates(
    snapshot: QuotaSnapshot, usage: pa.Table, at_ms: int, new_engine: Callable[[], QuotaEngine]
) -> list[SensorRate]:
    """The rate of every sensor with usage at an instant, not before any event, in no order.

    `usage` is what was used in the windows of the rates, as `QuotaEngine.record` takes it.
    """
    enforced = _rates(snapshot, usage, at_ms, new_engine())
    shadow = {(quota.user, quota.client_id) for quota in snapshot.quotas if quota.mode == "shadow"}
    if not shadow:
        return [*enforced]
    seen = _rates(snapshot.with_shadow_enforced(), usage, at_ms, new_engine())
    return [*enforced, *seen.in_shadow(shadow)]


def current_rates(
    snapshot: QuotaSnapshot, usage: pa.Table, at_ms: int, new_engine: Callable[[], QuotaEngine]
) -> dict[QuotaKey, list[SensorRate]]:
    """The sensors of each quota with usage, the nearest to its bound first. For the arguments see `sensor_rates`."""
    sensors: defaultdict[QuotaKey, list[SensorRate]] = defaultdict(list)
    found = sensor_rates(snapshot, usage, at_ms, new_engine)
    found.sort(key=lambda one: (one.used, one.broker_id, one.sensor_user, one.sensor_client_id), reverse=True)
    for rate in found:
        sensors[rate.quota].append(rate)
    return dict(sensors)


def _rates(snapshot: QuotaSnapshot, usage: pa.Table, at_ms: int, engine: QuotaEngine) -> SensorRates:
    engine.load_quotas(snapshot)
    engine.record(usage, at_ms)
    names = ["user", "client_id", *(["broker_id"] if engine.scope == "broker" else [])]
    return rates_of(engine, usage.group_by(names, use_threads=False).aggregate([]), at_ms)


def bounds_of(row: Mapping[str, Any]) -> dict[QuotaKey, float]:
    """The bounds of a row of the quota table; empty for one without bounds."""
    return {QuotaKey(row["user"], row["client_id"], name): row[name] for name in QUOTA_TYPES if row[name] is not None}
