"""All sensors of an engine: finding and making them for usage, storing and restoring their buckets, dropping them.

A sensor is what a rate belongs to: a pair of tags, and in broker scope a broker. Entities with equal tags share it.
Sensors have one numbering for all quota types and both sides. So an entity needs only one look-up as long as all types
give it the same tags. Each type keeps its own samples under these numbers.

To which sensors the usage of an entity goes is kept for all entities that were seen lately (`EntityDirectory`). Buckets
are stored as a table, because they are the only state that stored usage does not give again.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Flags, Ids
from quota.entity import DEFAULT, QUOTA_TYPES
from quota.errors import InvalidUsage
from quota.rates import NEVER_MS, SampleWindows, TokenBuckets, TypeSensors
from quota.resolution import Resolution, Resolved, Side, recorded_keys
from quota.snapshot import QuotaSnapshot
from quota.tenants import DEMAND_SHARE, NO_TENANT, TenantLevels
from quota.throttle_time import debt_time_ms, throttle_time_ms
from quota.usage import (
    BLOCK_ROWS,
    DictionaryMemo,
    EntityNames,
    HashedNames,
    KeyIndex,
    NameColumn,
    NameReader,
    Pair,
    Seeds,
    names_where,
    some_of,
)

Key = tuple[Side, int]  # a side and the position of a quota type

KEYS: Final[tuple[Key, ...]] = tuple((side, quota_type) for side in Side for quota_type in range(len(QUOTA_TYPES)))
MIN_CAPACITY: Final = 64
_MAX_CHUNKS: Final = 256
_ALMOST_ONE: Final = 1.0 - 1e-9


class SensorNumbers:
    """The numbers of all sensors, and of each the names, the tags, and when usage was last recorded."""

    def __init__(self) -> None:
        self._index = KeyIndex()
        self._names: list[pa.Table] = []
        self.used_at_ms = np.zeros(0, np.int64)
        self.has_user = np.zeros(0, np.bool_)
        self.has_client_id = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._index)

    def add(
        self,
        keys: Pair,
        names: tuple[pa.Array, pa.Array, pa.Array],
        has_user: Flags,
        has_client_id: Flags,
        tenant: pa.Array,
    ) -> Ids:
        """The sensor of each key, by broker, user and client-id, int64[n]. One that does not exist is made.

        * `tenant`: The name of the tenant that has the sensor for itself: see `Resolved.apart`. Null for none.
        """
        ids, new = self._index.add(keys)
        if len(new):
            rows = pa.array(new)
            broker, user, client_id = (column.take(rows) for column in names)
            user, client_id = names_where(has_user[new], user), names_where(has_client_id[new], client_id)
            added = broker, user, client_id, tenant.take(rows)
            self._names.append(pa.table(dict(zip((*_SENSOR, "tenant"), added, strict=True))))
            if len(self._names) > _MAX_CHUNKS:
                self._names = [pa.concat_tables(self._names).combine_chunks()]
        if len(self._index) > len(self.used_at_ms):
            room = 0, max(2 * len(self._index), MIN_CAPACITY) - len(self.used_at_ms)
            self.used_at_ms, self.has_user = np.pad(self.used_at_ms, room), np.pad(self.has_user, room)
            self.has_client_id = np.pad(self.has_client_id, room)
        self.has_user[ids[new]] = has_user[new]
        self.has_client_id[ids[new]] = has_client_id[new]
        return ids

    @property
    def capacity(self) -> int:
        """The number of sensors for which there is room."""
        return self.used_at_ms.size

    def find_keys(self, keys: Pair) -> Ids:
        """The sensor of each key, int64[n]; −1 for none."""
        return self._index.find(keys)

    def keys(self, sensors: Ids) -> Pair:
        """The keys of sensors, each that of an entity in which a name that is not a tag is ""."""
        return self._index.keys(sensors)

    def names(self, sensors: Ids) -> pa.Table:
        """The columns broker_id, sensor_user, sensor_client_id, and tenant (null for most) of some sensors."""
        if not self._names:
            return pa.table(dict.fromkeys((*_SENSOR, "tenant"), pa.array([], pa.string())))
        self._names = [pa.concat_tables(self._names).combine_chunks()]
        return self._names[0].take(pa.array(sensors))

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept. The others get new numbers, in their order."""
        self._names = [self.names(np.flatnonzero(kept))]
        self._index.keep(kept)
        self.used_at_ms = self.used_at_ms[: len(kept)][kept]
        self.has_user = self.has_user[: len(kept)][kept]
        self.has_client_id = self.has_client_id[: len(kept)][kept]


UNRESOLVED: Final = -1  # in place of a sensor: not resolved yet under the quotas in force


class EntityDirectory:
    """The sensors of each known entity, kept. `agreed`: all sides and types put each one into the same sensor."""

    def __init__(self) -> None:
        self._index = KeyIndex()
        self.of_key: dict[Key, Ids] = {}
        self._seen = np.zeros(0, np.bool_)
        self._seen_since_ms = 0
        self.agreed = True

    def __len__(self) -> int:
        return len(self._index)

    def forget_sensors(self, keys: tuple[Key, ...]) -> None:
        """Forget all sensors. Every entity is resolved again, for these sides and types, when it is next looked up."""
        self.of_key = {key: np.full(len(self._seen), UNRESOLVED, np.int64) for key in keys}
        self.agreed = True

    def add(self, hashes: HashedNames) -> Ids:
        """The number of each entity. An unknown entity gets a new number."""
        ids, _ = self._index.add(hashes.entity_keys())
        if len(self._index) > len(self._seen):
            room = max(2 * len(self._index), MIN_CAPACITY) - len(self._seen)
            self._seen = np.pad(self._seen, (0, room))
            of_key = self.of_key.items()
            self.of_key = {key: np.pad(ids, (0, room), constant_values=UNRESOLVED) for key, ids in of_key}
        self._seen[ids] = True
        return ids

    def find(self, keys: Pair) -> Ids:
        """The number of each entity by its key (`HashedNames.entity_keys`); −1 for an unknown one."""
        return self._index.find(keys)

    def keys(self, entities: Ids) -> Pair:
        """The keys of entities, which stay the same while their numbers may change."""
        return self._index.keys(entities)

    def sensors(self, key: Key, entities: Ids) -> Ids:
        """The sensor of each entity, by its number; `UNRESOLVED` if it was not resolved since `forget_sensors`."""
        return self.of_key[key].take(entities, mode="clip")

    def move_clock(self, moved_ms: int) -> None:
        """Move all times by this much."""
        if self._seen_since_ms:
            self._seen_since_ms += moved_ms

    def forget_unseen(self, now_ms: int, idle_ms: int) -> None:
        """At most once in `idle_ms` forget the entities that were not looked up since the last time."""
        if now_ms - self._seen_since_ms <= idle_ms:
            return
        kept = self._seen[: len(self)]
        if self._seen_since_ms and not kept.all():
            self._index.keep(kept)
            self.of_key = {key: ids[: len(kept)][kept] for key, ids in self.of_key.items()}
        self._seen = np.zeros(len(self), np.bool_)
        self.of_key = {key: ids[: len(self)] for key, ids in self.of_key.items()}
        self._seen_since_ms = now_ms

    def follow_sensors(self, kept: Flags) -> None:
        """Use the new numbers of the sensors that were kept. The entities of the others are resolved again."""
        renumbered = np.append(np.where(kept, np.cumsum(kept) - 1, UNRESOLVED), UNRESOLVED)
        self.of_key = {key: renumbered[ids] for key, ids in self.of_key.items()}
        lost = np.zeros(len(self._seen), np.bool_)
        for ids in self.of_key.values():
            lost |= ids == UNRESOLVED
        for ids in self.of_key.values():
            ids[lost] = UNRESOLVED


_SENSOR: Final = ("broker_id", "sensor_user", "sensor_client_id")
BUCKETS_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in (*_SENSOR, "quota_type")),
        ("tokens", pa.float64()),
        ("refilled_at_ms", pa.int64()),
        ("demanded_at_ms", pa.int64()),
        ("tenant", pa.string()),
        ("tenant_level", pa.float64()),
        ("mode", pa.string()),
    ]
)
"""Columns of `QuotaEngine.buckets`: see `schemas.rows.SensorStateRow`. The tokens are as of `refilled_at_ms`."""
_MAY_BE_NULL: Final = frozenset({"tokens", "demanded_at_ms", "tenant", "tenant_level"})
_SIDES: Final = {"enforce": Side.ENFORCED, "shadow": Side.SHADOW}


def of_sensors_with_parts(buckets: pa.Table) -> pa.Table:
    """The rows of tenants, and of sensors with a part. One without stands for clients without a quota: no bucket."""
    has_part = (pc.field("sensor_user") != "") | (pc.field("sensor_client_id") != "")
    return buckets.filter(has_part | pc.field("tenant").is_valid())


def sensor_entities(table: pa.Table, has_brokers: bool) -> EntityNames:
    """The sensors of a bucket table as entities. A part that is not a tag is an empty name."""
    columns = {"user": table["sensor_user"], "client_id": table["sensor_client_id"]}
    if has_brokers:
        columns["broker_id"] = table["broker_id"]
    return EntityNames(pa.table(columns), has_brokers)


def _rows_by_key(table: pa.Table) -> dict[Key, Ids]:
    """The row numbers of a bucket table per side and quota type; raises `InvalidUsage`."""
    for name in BUCKETS_SCHEMA.names:
        if name not in table.column_names:
            message = f"column '{name}' is not in the buckets; their columns are {', '.join(table.column_names)}"
            raise InvalidUsage(message)
        if name not in _MAY_BE_NULL and table[name].null_count:
            message = f"column '{name}' has nulls in {table[name].null_count} rows"
            raise InvalidUsage(message)
    types = np.array(table["quota_type"].to_pylist(), np.object_)
    unknown = set(types) - set(QUOTA_TYPES)
    if unknown:
        message = f"unknown quota type '{min(unknown)}'; known are {', '.join(QUOTA_TYPES)}"
        raise InvalidUsage(message)
    modes = np.array(table["mode"].to_pylist(), np.object_)
    return {
        (side, at): np.flatnonzero((types == name) & (modes == mode))
        for mode, side in _SIDES.items()
        for at, name in enumerate(QUOTA_TYPES)
    }


IDLE_MS: Final = 3_600_000
"""`QuotaEngine.expire_idle` drops a sensor that had no usage for longer than this. Kafka's value, one hour."""


class SensorTable:
    """The sensors of every side and quota type, and the quotas that decide which usage goes to which sensor."""

    def __init__(self, num_samples: int, sample_window_ms: int, by_broker: bool, carry_debt: bool) -> None:
        self._num_samples = num_samples
        self._sample_window_ms = sample_window_ms
        self._by_broker = by_broker
        self._carry_debt = carry_debt
        self._span_ms = num_samples * sample_window_ms
        self._newest = 0
        self.seeds = Seeds.draw()
        self._memo = DictionaryMemo()
        self.entities = EntityDirectory()
        self.resolution = Resolution(QuotaSnapshot(0, ()), self.seeds)
        self.recording: tuple[Key, ...] = ()
        self.numbers = SensorNumbers()
        self.by_key: dict[Key, TypeSensors] = {}
        self.tenants = TenantLevels()

    def __len__(self) -> int:
        return len(self.numbers)

    def load(self, snapshot: QuotaSnapshot) -> None:
        """Put quotas in force. Sensors stay as they are. Entities are resolved again when they are next looked up."""
        self.resolution = Resolution(snapshot, self.seeds)
        self.tenants.load(snapshot.tenants)
        recorded = recorded_keys(snapshot)
        self.recording = tuple(key for key in KEYS if key in recorded)
        self.entities.forget_sensors(self.recording)
        for sensors in self.by_key.values():
            sensors.is_resolved[:] = False
        if snapshot.tenants:
            self._grow(self.recording)
        self._settle(0)

    def _settle(self, known: int) -> None:
        """Find the tenants of the sensors from this one on, for all sides and types, by their tags.

        So a member counts for λ also while it sends no usage, and in any process that has the sensor.
        """
        ids = np.arange(known, len(self))
        if not self.resolution.snapshot.tenants:
            for of_type in self.by_key.values():
                of_type.tenant[ids] = NO_TENANT
            return
        names, keys = self.numbers.names(ids), self.numbers.keys(ids)
        entities = sensor_entities(names, self._by_broker)
        hashes, is_apart = entities.hashed(self.seeds), names["tenant"].is_valid().to_numpy()
        candidates = self.resolution.candidates(hashes, entities)
        for key, of_type in self.by_key.items():
            if key not in self.recording:
                of_type.tenant[ids] = NO_TENANT
                continue
            resolved = self.resolution.resolve(hashes, candidates, *key)
            own_keys = resolved.sensor_keys(hashes)
            is_own = ~is_apart & (own_keys[0] == keys[0]) & (own_keys[1] == keys[1])
            tenant, bound = self.resolution.members_apart(names["tenant"], resolved, *key)
            tenant, own = np.where(is_own, resolved.tenant, tenant), np.where(is_own, resolved.bound, bound)
            of_type.tenant[ids] = self.tenants.numbers(tenant, candidates.brokers)
            is_member = tenant != NO_TENANT
            of_type.own[ids[is_member]] = own[is_member]
            in_force = self.tenants.bounds(key, of_type.tenant[ids], own)
            of_type.bound[ids[is_member]] = in_force[is_member]

    def advance(self, newest: int) -> None:
        """Make `newest` the newest sample window of all sensors."""
        self._newest = newest
        for sensors in self.by_key.values():
            sensors.windows.advance(newest)

    def begin_epoch(self, moved_ms: int, newest: int) -> None:
        """Empty all sample windows and make `newest` the newest one; all other times move by `moved_ms`."""
        self._newest = newest
        self.numbers.used_at_ms += moved_ms
        self.entities.move_clock(moved_ms)
        self.tenants.move_clock(moved_ms)
        for sensors in self.by_key.values():
            sensors.windows.restart(newest)
            sensors.demanded_at_ms += moved_ms
            if sensors.buckets is not None:
                sensors.buckets.move_clock(moved_ms)

    def forgive(self, sensors: Iterable[tuple[str, str]]) -> None:
        """See `QuotaEngine.forgive`."""
        names = self.numbers.names(np.arange(len(self)))
        for user, client_id in sensors:
            is_meant = pc.equal(names["sensor_client_id"], client_id)
            if client_id == DEFAULT:
                is_meant = pc.not_equal(names["sensor_client_id"], "")
            ids = np.flatnonzero(pc.and_(is_meant, pc.equal(names["sensor_user"], user)).to_numpy())
            for of_type in self.by_key.values():
                of_type.windows.empty(ids)
                of_type.demanded_at_ms[ids] = NEVER_MS
                if of_type.buckets is not None:
                    of_type.buckets.fill(ids)

    def look_up(self, names: EntityNames, now_ms: int) -> tuple[Ids, dict[Key, Ids]]:
        """The entity of each row, and its sensor (made if missing) per side and type: one array if all agree."""
        reader = NameReader(names, self.seeds, self._memo)
        entities, known = np.empty(names.num_rows, np.int64), len(self)
        first, *others = self.recording
        of_row = {first: np.empty(names.num_rows, np.int64)}
        for start in range(0, names.num_rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, names.num_rows)
            hashes = reader.read(start, stop)
            found = self.entities.add(hashes)
            entities[start:stop] = found
            sensors = self.entities.sensors(first, found)
            unresolved = np.flatnonzero(sensors == UNRESOLVED)
            if len(unresolved):
                self._resolve(hashes.take(unresolved), names.some(unresolved + start), found[unresolved], now_ms)
                sensors = self.entities.sensors(first, found)
            of_row[first][start:stop] = sensors
            if not self.entities.agreed:
                for key in others:
                    if key not in of_row:
                        of_row[key] = of_row[first].copy()
                    of_row[key][start:stop] = self.entities.sensors(key, found)
        if self.resolution.snapshot.tenants and len(self) > known:
            self._settle(known)
        return entities, {key: of_row.get(key, of_row[first]) for key in self.recording}

    def _resolve(self, hashes: HashedNames, names: EntityNames, entities: Ids, now_ms: int) -> None:
        candidates, parts = self.resolution.candidates(hashes, names), names.plain()
        first: tuple[Resolved, Ids] | None = None
        for key in self.recording:
            resolved = self.resolution.resolve(hashes, candidates, *key)
            if first is not None and resolved.has_tags_of(first[0]):
                ids = first[1]
            else:
                tags = resolved.has_user, resolved.has_client_id, self.resolution.names_apart(resolved)
                ids = self.numbers.add(resolved.sensor_keys(hashes), parts, *tags)
                self._grow(self.recording)
                # Otherwise a sensor without usage so far would count as idle at once, and be resolved again and again.
                self.numbers.used_at_ms[ids] = now_ms
                self.entities.agreed = self.entities.agreed and first is None
            first = first or (resolved, ids)
            self.entities.of_key[key][entities] = ids
            of_type, tenant = self.by_key[key], self.tenants.numbers(resolved.tenant, candidates.brokers)
            of_type.bound[ids] = self.tenants.bounds(key, tenant, resolved.bound)
            of_type.own[ids], of_type.level[ids], of_type.tenant[ids] = resolved.bound, resolved.level, tenant
            of_type.holds_user[ids], of_type.is_resolved[ids] = resolved.holds_user, True
            if key[0] is Side.SHADOW:
                of_type.is_shadow[ids] = self.resolution.modes_of(resolved) == "shadow"

    def move_levels(self, key: Key, used: Ids, now_ms: int) -> None:
        """Move λ of the tenants of which sensors have usage in a batch, after it was recorded: see `quota.tenants`."""
        of_type = self.by_key[key]
        is_moved = np.zeros(len(self.tenants.names), np.bool_)
        is_moved[of_type.tenant[used]] = True
        is_moved[NO_TENANT] = False
        if not is_moved.any():
            return
        members = self._unsettled(key, np.flatnonzero(is_moved[of_type.tenant[: len(self)]]), now_ms)
        tenant, bound, own = of_type.tenant[members], of_type.bound[members], of_type.own[members]
        observed, window_ms = of_type.windows.observed(members, now_ms)
        wants_more = observed >= DEMAND_SHARE * bound
        if of_type.buckets is not None:
            wants_more |= of_type.buckets.tokens_at(members, bound, now_ms) < 0
        demanded_at_ms = np.minimum(of_type.demanded_at_ms[members], now_ms)
        demanded_at_ms[wants_more] = now_ms
        is_recent = now_ms - demanded_at_ms < self._span_ms
        self.tenants.move(key, tenant, np.where(is_recent, np.inf, observed), own, now_ms)
        bound = of_type.bound[members] = self.tenants.bounds(key, tenant, own)
        # While it owes it is held, and nothing may be heard of it. By N · w no sample window counts.
        owed_ms = np.minimum(throttle_time_ms(observed, bound, window_ms), self._span_ms)
        if of_type.buckets is not None:
            tokens = of_type.buckets.tokens_at(members, bound, now_ms)
            owed_ms = np.maximum(owed_ms, debt_time_ms(tokens, bound))
        of_type.demanded_at_ms[members] = demanded_at_ms + np.where(wants_more, owed_ms, 0)

    def _unsettled(self, key: Key, members: Ids, now_ms: int) -> Ids:
        """Without the members of tenants that are at rest and stay there: most tenants end here.

        All that they can have used fits into the tenant's bound, and none of them can be near its own.
        """
        of_type = self.by_key[key]
        tenant, at_most = of_type.tenant[members], of_type.windows.at_most(members, now_ms)
        may_want = at_most >= DEMAND_SHARE * of_type.bound[members]
        may_want |= now_ms - of_type.demanded_at_ms[members] < self._span_ms
        if of_type.buckets is not None:
            may_want |= of_type.buckets.may_owe(members)
        every = np.arange(len(self.tenants.names))
        is_settled = np.isinf(self.tenants.levels(key, every))
        is_settled &= np.bincount(tenant, at_most, len(every)) < self.tenants.bounds_of_type(key[1]) * _ALMOST_ONE
        is_settled[tenant[may_want]] = False
        self.tenants.rest(key, np.unique(tenant[is_settled[tenant]]))
        return members[~is_settled[tenant]]

    def _grow(self, keys: Iterable[Key]) -> None:
        span = self._num_samples, self._sample_window_ms
        for side, quota_type in keys:
            if (side, quota_type) not in self.by_key:
                buckets = TokenBuckets(*span) if self._carry_debt and side is Side.ENFORCED else None
                windows = SampleWindows(quota_type, *span, self._newest)
                self.by_key[side, quota_type] = TypeSensors(windows, buckets)
        for sensors in self.by_key.values():
            sensors.grow(self.numbers.capacity)

    def buckets(self) -> pa.Table:
        """The buckets that are not full at the end of the oldest sample window, and all that have no bound now.

        Also the members of tenants that wanted more lately, and the tenants that are not at rest.
        """
        since_ms = max((self._newest - self._num_samples + 1) * self._sample_window_ms, 0)
        parts = [BUCKETS_SCHEMA.empty_table()]
        for mode, side in _SIDES.items():
            for quota_type in range(len(QUOTA_TYPES)):
                if (side, quota_type) in self.by_key:
                    parts += [self._stored((side, quota_type), mode, since_ms)]
        return pa.concat_tables(parts).combine_chunks()

    def _stored(self, key: Key, mode: str, since_ms: int) -> pa.Table:
        of_type, name = self.by_key[key], QUOTA_TYPES[key[1]]
        demanded_at_ms = of_type.demanded_at_ms[: len(self)]
        wanted_after_ms = since_ms - self._sample_window_ms  # N · w before the newest sample window began
        is_kept = demanded_at_ms > wanted_after_ms
        if of_type.buckets is not None:
            ids = of_type.buckets.charged()
            hashes = sensor_entities(self.numbers.names(ids), self._by_broker).hashed(self.seeds)
            bound = self.resolution.bound_of_tags(hashes, *key)
            bound = np.where(of_type.tenant[ids] == NO_TENANT, bound, of_type.bound[ids])
            is_kept[ids[of_type.buckets.below_burst(ids, bound, since_ms)]] = True
        ids = np.flatnonzero(is_kept)
        tokens, refilled_at_ms = of_type.bucket_of(ids)
        recent_ms, names = demanded_at_ms[ids], self.numbers.names(ids)
        sensors = (
            pa.table(
                {
                    **{part: names[part] for part in (*_SENSOR, "tenant")},
                    "quota_type": pa.repeat(name, len(ids)),
                    "tokens": pa.array(tokens, mask=np.isinf(tokens)),
                    "refilled_at_ms": pa.array(refilled_at_ms),
                    "demanded_at_ms": pa.array(recent_ms, mask=recent_ms <= wanted_after_ms),
                    "tenant_level": pa.nulls(len(ids), pa.float64()),
                    "mode": pa.repeat(mode, len(ids)),
                },
            )
            .select(BUCKETS_SCHEMA.names)
            .cast(BUCKETS_SCHEMA)
        )
        empty = {"sensor_user": "", "sensor_client_id": "", "quota_type": name, "mode": mode}
        tenant_rows = [
            {**empty, "broker_id": broker, "tenant": tenant, "tenant_level": level, "refilled_at_ms": at_ms}
            for tenant, broker, level, at_ms in self.tenants.stored(key)
        ]
        return pa.concat_tables([sensors, pa.Table.from_pylist(tenant_rows, BUCKETS_SCHEMA)])

    def restore_buckets(self, table: pa.Table) -> None:
        """See `QuotaEngine.restore_buckets`."""
        rows_of_key = _rows_by_key(table)
        is_tenant = table["tenant_level"].is_valid().to_numpy()
        levels = table.select(["tenant", "broker_id", "tenant_level", "refilled_at_ms"])
        self.tenants.restore(
            {
                key: zip(*levels.take(pa.array(rows[is_tenant[rows]])).to_pydict().values(), strict=True)
                for key, rows in rows_of_key.items()
            }
        )
        known = len(self)
        ids = self._restored_sensors(table)
        tokens = pc.fill_null(table["tokens"], np.inf).to_numpy()
        refilled_at_ms = table["refilled_at_ms"].to_numpy()
        demanded_at_ms = pc.fill_null(table["demanded_at_ms"], NEVER_MS).to_numpy()
        rows_of_key = {key: rows[~is_tenant[rows]] for key, rows in rows_of_key.items()}
        self._grow((*self.recording, *(key for key, rows in rows_of_key.items() if len(rows))))
        self._settle(known)
        for key, of_type in self.by_key.items():
            rows = rows_of_key[key]
            of_type.demanded_at_ms[:] = NEVER_MS
            of_type.demanded_at_ms[ids[rows]] = demanded_at_ms[rows]
            of_type.bound[:] = self.tenants.bounds(key, of_type.tenant, of_type.own)
            if of_type.buckets is not None:
                of_type.buckets.restore(ids[rows], tokens[rows], refilled_at_ms[rows])

    def _restored_sensors(self, table: pa.Table) -> Ids:
        """The sensor of each row of a bucket table; for the row of a tenant any number."""
        entities = sensor_entities(table, self._by_broker)
        names = entities.take(np.arange(entities.num_rows))
        has_user, has_client_id = (pc.not_equal(part, "").to_numpy(zero_copy_only=False) for part in names[1:])
        keys = entities.hashed(self.seeds).sensor_keys(has_user, has_client_id)
        tenant = table["tenant"].combine_chunks()
        of_tenants = NameColumn(tenant, self.seeds).hash(0, table.num_rows)
        keys = keys[0] + of_tenants[0], keys[1] + of_tenants[1]
        is_sensor = np.flatnonzero(has_user | has_client_id)
        ids = np.zeros(table.num_rows, np.int64)
        broker, user, client_id, tenant = (part.take(pa.array(is_sensor)) for part in (*names, tenant))
        tags = has_user[is_sensor], has_client_id[is_sensor], tenant
        ids[is_sensor] = self.numbers.add(some_of(keys, is_sensor), (broker, user, client_id), *tags)
        seen_ms = pc.max_element_wise(table["refilled_at_ms"], table["demanded_at_ms"])
        at_ms = seen_ms.to_numpy()[is_sensor]
        self.numbers.used_at_ms[ids[is_sensor]] = np.maximum(self.numbers.used_at_ms[ids[is_sensor]], at_ms)
        return ids

    def expire_idle(self, now_ms: int, idle_ms: int) -> int:
        """See `QuotaEngine.expire_idle`; idle entities are forgotten too."""
        self.entities.forget_unseen(now_ms, idle_ms)
        kept = self.numbers.used_at_ms[: len(self.numbers)] >= now_ms - idle_ms
        dropped = int(len(kept) - kept.sum())
        if dropped:
            for sensors in self.by_key.values():
                sensors.keep(kept)
            self.entities.follow_sensors(kept)
            self.numbers.keep(kept)
        return dropped
