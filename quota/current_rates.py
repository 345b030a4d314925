"""The current rate under each quota (how near the clients are to their bounds), and two gauges of Kafka's brokers.

The rates are those of the engine, at one instant. A quota of a default has a sensor for each client it holds for; then
the sensor that is nearest to the bound is shown. A shadow quota is seen as the shadow resolution sees it: as if it, and
every other shadow quota, were enforced.

The gauges are the mean throttle time and the exempt request time. Kafka 4.3.1 takes both over two samples of 30 s, the
defaults of its metrics; the windows of the quotas do not matter. `throttle-time` is per sensor (`ClientQuotaManager`):
the mean of all throttle times above 0; no value without one. `exempt-request-time` is per broker
(`ClientRequestQuotaManager`): a rate, in percent of one thread.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES, Level, entity_at
from quota.snapshot import QuotaSnapshot

_RESOLVED: Final = ("mode", "user", "client_id", "level", "quota_type", "sensor_user", "sensor_client_id", "broker_id")


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


def mean_span_seconds(at_ms: int, oldest_ms: int, num_samples: int, sample_window_ms: int) -> float:
    """Over how many seconds the sums of all windows of a rate are averaged: as long as for a full rate at least.

    So a cluster that has just begun does not seem busier than it is.

    Args:
        oldest_ms: The begin of the oldest of these windows.

    >>> mean_span_seconds(20_500, 10_000, 11, 1_000), mean_span_seconds(20_500, 20_000, 11, 1_000)
    (10.5, 10.0)
    """
    return max(at_ms - oldest_ms, (num_samples - 1) * sample_window_ms, 1) / 1000


def rates_of(
    engine: QuotaEngine,
    clients: pa.Table,
    at_ms: int,
    levels: Callable[[], pa.Table] | None = None,
    owners: Mapping[tuple[str, str], str | None] = MappingProxyType({}),
) -> list[SensorRate]:
    """The rate of every sensor of some clients that has usage under an enforced bound, in the order of the clients.

    Args:
        engine: Has recorded the usage.
        clients: As `QuotaEngine.evaluate` takes them.
        at_ms: The instant, not before any event.
        levels: Returns `engine.resolve(clients)`, for callers that keep it.
        owners: Who is responsible, by user and client-id of the row of `quotas`.
    """
    rates = engine.evaluate(clients, at_ms)
    observed, bound = (np.asarray(rates[name].to_numpy(), np.float64) for name in ("observed", "bound"))
    places = np.flatnonzero((observed > 0) & (bound > 0))
    if not len(places):
        return []
    resolved = engine.resolve(clients) if levels is None else levels()
    # Not by pa.array, which imports pandas to look at its values.
    rows = resolved.take(pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places.astype(np.int64))]))
    columns = zip(*(rows[name].to_pylist() for name in _RESOLVED), strict=True)
    first: dict[tuple[Any, ...], tuple[int, str, str]] = {}
    clients_of: Counter[tuple[Any, ...]] = Counter()
    for place, (mode, user, client_id, *sensor) in zip(places.tolist(), columns, strict=True):
        if mode == "enforce":
            key = tuple(sensor)
            # Clients of one sensor share its rate.
            first.setdefault(key, (place, user, client_id))
            clients_of[key] += 1
    return [
        SensorRate(
            *(quota_type, user, client_id, sensor_user, sensor_client_id, broker_id, clients_of[key]),
            observed=float(observed[place]),
            bound=float(bound[place]),
            level=level,
            mode="enforce",
            entity=entity,
            owner=owners.get(entity),
        )
        for key, (place, user, client_id) in first.items()
        for level, quota_type, sensor_user, sensor_client_id, broker_id in [key]
        # What the level names of a client, its sensor names, too.
        for entity in [entity_at(Level(level), sensor_user, sensor_client_id)]
    ]


def shadow_rates(rates: Iterable[SensorRate], shadow: Container[tuple[str, str]]) -> list[SensorRate]:
    """Of the rates of an engine with shadow quotas enforced those under one, by the entities of shadow quotas."""
    return [replace(rate, mode="shadow") for rate in rates if rate.entity in shadow]


def sensor_rates(
    snapshot: QuotaSnapshot, usage: pa.Table, at_ms: int, new_engine: Callable[[], QuotaEngine]
) -> list[SensorRate]:
    """The rate of every sensor with usage at an instant, not before any event, in no order.

    `usage` is what was used in the windows of the rates, as `QuotaEngine.record` takes it.
    """
    enforced = _rates(snapshot, usage, at_ms, new_engine())
    shadow = {(quota.user, quota.client_id) for quota in snapshot.quotas if quota.mode == "shadow"}
    if not shadow:
        return enforced
    seen = _rates(snapshot.with_shadow_enforced(), usage, at_ms, new_engine())
    return enforced + shadow_rates(seen, shadow)


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


def _rates(snapshot: QuotaSnapshot, usage: pa.Table, at_ms: int, engine: QuotaEngine) -> list[SensorRate]:
    engine.load_quotas(snapshot)
    engine.record(usage, at_ms)
    names = ["user", "client_id", *(["broker_id"] if engine.scope == "broker" else [])]
    return rates_of(engine, usage.group_by(names, use_threads=False).aggregate([]), at_ms)


def bounds_of(row: Mapping[str, Any]) -> dict[QuotaKey, float]:
    """The bounds of a row of the quota table; empty for one without bounds."""
    return {QuotaKey(row["user"], row["client_id"], name): row[name] for name in QUOTA_TYPES if row[name] is not None}


SPAN_MS: Final = 60_000  # two samples of 30 s

SENSOR: Final = ("broker_id", "quota_type", "sensor_user", "sensor_client_id", "mode")

_NS_PER_MS: Final = 1_000_000


def throttle_times(decisions: pa.Table, now_ms: int) -> pa.Table:
    """The mean (`throttle_time_avg_ms`), maximum and number (`throttles`) of throttle times above 0, longest first.

    Of each sensor over the last minute: a decision that is exactly a minute old no longer counts. `decisions` has the
    columns of `SENSOR`, `throttle_time_ms` (capped, as a broker records it) and `evaluated_at_ms`.
    """
    in_span = _in_span(decisions["evaluated_at_ms"], now_ms)
    kept = decisions.filter(pc.and_(in_span, pc.greater(decisions["throttle_time_ms"], 0)))
    names = {"mean": "throttle_time_avg_ms", "max": "throttle_time_max_ms", "count": "throttles"}
    grouped = kept.group_by(list(SENSOR), use_threads=False)
    means = grouped.aggregate([("throttle_time_ms", function) for function in names])
    renamed = means.rename_columns({f"throttle_time_ms_{function}": name for function, name in names.items()})
    return renamed.sort_by([("throttle_time_avg_ms", "descending"), *((name, "ascending") for name in SENSOR)])


def _in_span(at_ms: pa.ChunkedArray, now_ms: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater(at_ms, now_ms - SPAN_MS), pc.less_equal(at_ms, now_ms))


def exempt_request_percentage(usage: pa.Table, now_ms: int) -> float:
    """Exempt request time of the last minute, in percent of one thread, by `last_event_ms` and `exempt_time_ns`."""
    total_ns = pc.sum(usage["exempt_time_ns"].filter(_in_span(usage["last_event_ms"], now_ms))).as_py() or 0
    return float(100.0 * total_ns / (SPAN_MS * _NS_PER_MS))
