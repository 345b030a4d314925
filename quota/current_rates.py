"""The current rate under each quota: how near the clients are to their bounds.

The rates are those of the engine, at one instant. A quota of a default has a sensor for each client it holds for; then
the sensor that is nearest to the bound is shown. A shadow quota is seen as the shadow resolution sees it: as if it, and
every other shadow quota, were enforced.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES, Level, entity_at
from quota.snapshot import QuotaSnapshot


class QuotaKey(NamedTuple):
    """One bound: the entity as in the quota table, and the quota type."""

    user: str
    client_id: str
    quota_type: str


@dataclass(frozen=True, slots=True)
class CurrentRate:
    """The rate of the sensor that is nearest to a bound.

    Attributes:
        observed: O, in the unit of the bound.
        used: O / T; above 1.0 the quota is violated.
        broker_id: the sensor's broker; "" in cluster scope.
        sensor_user: the user, if it is a tag of the sensor, else "".
        sensor_client_id: the client-id, likewise.
        sensors: how many sensors of this quota had usage in the windows of the rate, at least 1.
    """

    observed: float
    used: float
    broker_id: str
    sensor_user: str
    sensor_client_id: str
    sensors: int


@dataclass(frozen=True, slots=True)
class SensorRate:
    """The rate of one sensor under the quota that holds for it.

    Attributes:
        quota: the bound.
        broker_id: the sensor's broker; "" in cluster scope.
        user: the user, if it is a tag of the sensor, else "".
        client_id: the client-id, likewise.
        observed: O, in the unit of the bound; above 0.
        bound: T.
    """

    quota: QuotaKey
    broker_id: str
    user: str
    client_id: str
    observed: float
    bound: float

    @property
    def used(self) -> float:
        """O / T; above 1.0 the quota is violated."""
        return self.observed / self.bound


def sensor_rates(
    snapshot: QuotaSnapshot, usage: pa.Table, at_ms: int, new_engine: Callable[[], QuotaEngine]
) -> list[SensorRate]:
    """The rate of every sensor with usage at an instant, in no order.

    Args:
        snapshot: the quotas in force.
        usage: what was used in the windows of the rates, with the columns of `QuotaEngine.record`; may have more.
        at_ms: the instant, not before any event.
        new_engine: makes an engine that has recorded nothing.
    """
    enforced = _rates(snapshot, usage, at_ms, new_engine())
    shadow = {(quota.user, quota.client_id) for quota in snapshot.quotas if quota.mode == "shadow"}
    if not shadow:
        return enforced
    seen = _rates(snapshot.with_shadow_enforced(), usage, at_ms, new_engine())
    return enforced + [rate for rate in seen if (rate.quota.user, rate.quota.client_id) in shadow]


def current_rates(
    snapshot: QuotaSnapshot, usage: pa.Table, at_ms: int, new_engine: Callable[[], QuotaEngine]
) -> dict[QuotaKey, CurrentRate]:
    """The rate under each quota at an instant; a quota without usage is not in the answer.

    The arguments are those of `sensor_rates`.
    """
    sensors: dict[QuotaKey, list[SensorRate]] = defaultdict(list)
    for rate in sensor_rates(snapshot, usage, at_ms, new_engine):
        sensors[rate.quota].append(rate)
    return {quota: _nearest(rates) for quota, rates in sensors.items()}


def _rates(snapshot: QuotaSnapshot, usage: pa.Table, at_ms: int, engine: QuotaEngine) -> list[SensorRate]:
    engine.load_quotas(snapshot)
    engine.record(usage, at_ms)
    names = ["user", "client_id", *(["broker_id"] if engine.scope == "broker" else [])]
    clients = usage.group_by(names, use_threads=False).aggregate([])
    levels, owed = engine.resolve(clients).to_pylist(), engine.evaluate(clients, at_ms).to_pylist()
    found = {}
    for level, rate in zip(levels, owed, strict=True):
        if level["mode"] == "enforce" and rate["observed"] > 0:
            entity = entity_at(Level(level["level"]), level["user"], level["client_id"])
            sensor = level["broker_id"], level["sensor_user"], level["sensor_client_id"]
            quota = QuotaKey(*entity, level["quota_type"])
            # Clients of one sensor share its rate.
            found[quota, sensor] = SensorRate(quota, *sensor, rate["observed"], level["bound"])
    return list(found.values())


def _nearest(rates: Sequence[SensorRate]) -> CurrentRate:
    found = max(rates, key=lambda rate: (rate.used, rate.broker_id, rate.user, rate.client_id))
    return CurrentRate(found.observed, found.used, found.broker_id, found.user, found.client_id, len(rates))


def bounds_of(row: Mapping[str, Any]) -> dict[QuotaKey, float]:
    """The bounds of a row of the quota table; empty for one without bounds."""
    return {QuotaKey(row["user"], row["client_id"], name): row[name] for name in QUOTA_TYPES if row[name] is not None}
