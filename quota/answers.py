"""Read-only answers about entities: what they owe now, and which quota applies to them."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quota.buckets import TokenBuckets
from quota.decisions import names_of
from quota.entity import QUOTA_TYPES
from quota.key_index import Ids
from quota.names import HashedNames
from quota.resolution import NO_QUOTA, Resolution, Resolved, Side
from quota.sensors import Key, SensorNumbers, TypeSensors
from quota.throttle_time import owed_time_ms
from quota.usage import EntityNames

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_KEYS: Final = [
    ("broker_id", pa.string()),
    ("user", pa.string()),
    ("client_id", pa.string()),
    ("quota_type", pa.string()),
]
OWED_SCHEMA: Final = pa.schema(
    [
        *_KEYS,
        ("observed", pa.float64()),
        ("bound", pa.float64()),
        ("window_ms", pa.int64()),
        ("tokens", pa.float64()),
        ("owed_ms", pa.int64()),
    ]
)
"""Columns of `QuotaEngine.evaluate`."""

LEVELS_SCHEMA: Final = pa.schema(
    [
        *_KEYS,
        ("level", pa.int64()),
        ("sensor_user", pa.string()),
        ("sensor_client_id", pa.string()),
        ("bound", pa.float64()),
        ("mode", pa.string()),
        ("violated", pa.bool_()),
    ]
)
"""Columns of `QuotaEngine.resolve`."""

_MODES: Final = ("enforce", "shadow", "exempt")


class Answers:
    """Answers from the engine's state at one time. Changes nothing. Not valid after the next `record`.

    Args:
        resolution: the quotas in force.
        numbers: all sensors.
        sensors: their samples and buckets, for each side and type that ever recorded.
        short_window_ms: W of a sensor that does not exist.
        full_buckets: stands for the buckets of a type that has none.
    """

    def __init__(
        self,
        resolution: Resolution,
        numbers: SensorNumbers,
        sensors: dict[Key, TypeSensors],
        short_window_ms: int,
        full_buckets: TokenBuckets,
    ) -> None:
        self._resolution = resolution
        self._numbers = numbers
        self._sensors = sensors
        self._short_window_ms = short_window_ms
        self._full_buckets = full_buckets

    def owed(self, names: EntityNames, hashes: HashedNames, now_ms: int, carry_debt: bool) -> pa.Table:
        """The answer of `QuotaEngine.evaluate`."""
        candidates = self._resolution.candidates(hashes)
        size = len(hashes)
        observed, bound, tokens = (np.empty((size, len(QUOTA_TYPES))) for _ in range(3))
        window_ms, owed_ms = (np.empty((size, len(QUOTA_TYPES)), np.int64) for _ in range(2))
        for quota_type in range(len(QUOTA_TYPES)):
            resolved = self._resolution.resolve(hashes, candidates, Side.ENFORCED, quota_type)
            ids = self._numbers.find(hashes, resolved.has_user, resolved.has_client_id)
            rate, span_ms = self.observed((Side.ENFORCED, quota_type), ids, now_ms)
            left = self.tokens(quota_type, ids, resolved.bound, now_ms) if carry_debt else np.zeros(size)
            observed[:, quota_type], bound[:, quota_type], tokens[:, quota_type] = rate, resolved.bound, left
            window_ms[:, quota_type] = span_ms
            owed_ms[:, quota_type] = owed_time_ms(rate, span_ms, left, resolved.bound)
        unbounded = np.isinf(bound.ravel())
        columns = [
            pa.array(observed.ravel()),
            pa.array(bound.ravel(), mask=unbounded),
            pa.array(window_ms.ravel()),
            pa.array(tokens.ravel(), mask=unbounded | (not carry_debt)),
            pa.array(owed_ms.ravel()),
        ]
        return pa.Table.from_arrays([*_key_columns(names), *columns], schema=OWED_SCHEMA)

    def levels(self, names: EntityNames, hashes: HashedNames, evaluated_at_ms: int | None) -> pa.Table:
        """The answer of `QuotaEngine.resolve`."""
        candidates = self._resolution.candidates(hashes)
        size = len(hashes)
        quota = np.empty((size, len(QUOTA_TYPES)), np.int64)
        bound = np.empty((size, len(QUOTA_TYPES)))
        has_user, has_client_id, violated = (np.empty((size, len(QUOTA_TYPES)), np.bool_) for _ in range(3))
        for quota_type in range(len(QUOTA_TYPES)):
            sides = [self._resolution.resolve(hashes, candidates, side, quota_type) for side in Side]
            above = [self._is_violated((side, quota_type), hashes, sides[side], evaluated_at_ms) for side in Side]
            enforced, shadow = sides
            in_shadow = (enforced.quota == NO_QUOTA) & self._resolution.is_shadow(shadow.quota)
            quota[:, quota_type] = np.where(in_shadow, shadow.quota, enforced.quota)
            bound[:, quota_type] = np.where(in_shadow, shadow.bound, enforced.bound)
            has_user[:, quota_type] = np.where(in_shadow, shadow.has_user, enforced.has_user)
            has_client_id[:, quota_type] = np.where(in_shadow, shadow.has_client_id, enforced.has_client_id)
            violated[:, quota_type] = np.where(in_shadow, above[Side.SHADOW], above[Side.ENFORCED])
        keys = _key_columns(names)
        none = quota.ravel() == NO_QUOTA
        blank = pa.scalar("")
        columns = [
            pa.array(self._resolution.levels_of(quota.ravel()), mask=none),
            pc.if_else(pa.array(has_user.ravel()), keys[1], blank),
            pc.if_else(pa.array(has_client_id.ravel()), keys[2], blank),
            pa.array(bound.ravel(), mask=np.isinf(bound.ravel())),
            pa.array(self._resolution.modes_of(quota.ravel()), pa.string(), mask=none),
            pa.array(violated.ravel()),
        ]
        return pa.Table.from_arrays([*keys, *columns], schema=LEVELS_SCHEMA)

    def observed(self, key: Key, ids: Ids, now_ms: int | Ints) -> tuple[Floats, Ints]:
        """O and W of sensors of one side and type, as `SampleWindows.observed`; 0 for one that never recorded."""
        sensors = self._sensors.get(key)
        if sensors is None:
            return np.zeros(len(ids)), np.full(len(ids), self._short_window_ms)
        return sensors.windows.observed(ids, now_ms)

    def tokens(self, quota_type: int, ids: Ids, bound: Floats, now_ms: int | Ints) -> Floats:
        """What buckets of one enforced type hold, as `TokenBuckets.tokens_at`; any number where there is no bound."""
        sensors = self._sensors.get((Side.ENFORCED, quota_type))
        buckets = self._full_buckets if sensors is None or sensors.buckets is None else sensors.buckets
        return buckets.tokens_at(ids, np.where(np.isfinite(bound), bound, 1.0), now_ms)

    def _is_violated(self, key: Key, hashes: HashedNames, resolved: Resolved, now_ms: int | None) -> NDArray[np.bool_]:
        if now_ms is None or key not in self._sensors:
            return np.zeros(len(hashes), np.bool_)
        ids = self._numbers.find(hashes, resolved.has_user, resolved.has_client_id)
        observed, _ = self.observed(key, ids, now_ms)
        return observed > resolved.bound


def _key_columns(names: EntityNames) -> list[pa.Array]:
    """Broker, user, client-id and quota type: one row per entity and type, in the order of the table."""
    types = len(QUOTA_TYPES)
    rows = np.repeat(np.arange(names.num_rows), types)
    return [*names.take(rows), names_of(QUOTA_TYPES, np.tile(np.arange(types), names.num_rows))]
