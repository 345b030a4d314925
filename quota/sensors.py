"""All sensors of an engine: finding and making them for usage, storing and restoring their buckets, dropping them.

A sensor is what a rate belongs to: a pair of tags, and in broker scope a broker. Entities with equal tags share it.
Sensors have one numbering for all quota types and both sides. So an entity needs only one look-up as long as all types
give it the same tags. Each type keeps its own samples under these numbers.

To which sensors the usage of an entity goes is kept for all entities that were seen lately (`EntityDirectory`). Buckets
are stored as a table, because they are the only state that stored usage does not give again. A batch of usage is summed
per sensor and sample window, recorded, and charged to the buckets, one quota type after the other (`record_piece`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Flags, Floats, Ids, Ints
from quota.decisions import names_of, names_where
from quota.entity import DEFAULT, QUOTA_TYPES
from quota.errors import InvalidUsage
from quota.rates import (
    MAX_DEBT_BURSTS,
    MAX_DEBT_BURSTS_OF_GAP,
    SampleWindows,
    Selection,
    TokenBuckets,
    amounts,
    at_places,
    saturated,
)
from quota.resolution import Resolution, Resolved, Side, recorded_keys
from quota.snapshot import QuotaSnapshot
from quota.usage import BLOCK_ROWS, DictionaryMemo, EntityNames, HashedNames, KeyIndex, NameReader, Pair, Seeds, Usage

Key = tuple[Side, int]  # a side and the position of a quota type

KEYS: Final[tuple[Key, ...]] = tuple((side, quota_type) for side in Side for quota_type in range(len(QUOTA_TYPES)))
MIN_CAPACITY: Final = 64
_MAX_CHUNKS: Final = 256


class TypeSensors:
    """Samples and buckets (None: no debt is carried) of each sensor, for one quota type on one side, and its quota.

    T, the level, whether a throttle holds the user, and (on the shadow side) whether it is a shadow row are of the last
    time that one of its entities was resolved: infinity, 0 and False for no quota. `is_resolved`: that was under the
    quotas in force.
    """

    def __init__(self, windows: SampleWindows, buckets: TokenBuckets | None) -> None:
        self.windows = windows
        self.buckets = buckets
        self.bound = np.zeros(0, np.float64)
        self.level = np.zeros(0, np.int64)
        self.is_shadow = np.zeros(0, np.bool_)
        self.holds_user = np.zeros(0, np.bool_)
        self.is_resolved = np.zeros(0, np.bool_)

    def grow(self, capacity: int) -> None:
        """Make room for this many sensors."""
        room = capacity - len(self.bound)
        if room <= 0:
            return
        self.bound = np.pad(self.bound, (0, room), constant_values=np.inf)
        self.level, self.is_shadow = np.pad(self.level, (0, room)), np.pad(self.is_shadow, (0, room))
        self.holds_user, self.is_resolved = np.pad(self.holds_user, (0, room)), np.pad(self.is_resolved, (0, room))
        self.windows.grow(capacity)
        if self.buckets is not None:
            self.buckets.grow(capacity)

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept, bool[n]. The others close the gaps in their order."""
        self.bound = self.bound[: len(kept)][kept]
        self.level = self.level[: len(kept)][kept]
        self.is_shadow = self.is_shadow[: len(kept)][kept]
        self.holds_user = self.holds_user[: len(kept)][kept]
        self.is_resolved = self.is_resolved[: len(kept)][kept]
        self.windows.keep(kept)
        if self.buckets is not None:
            self.buckets.keep(kept)


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

    def find(self, names: HashedNames, has_user: Flags, has_client_id: Flags) -> Ids:
        """The sensor of each entity, int64[n]; −1 if it does not exist yet."""
        return self._index.find(names.sensor_keys(has_user, has_client_id))

    def add(
        self, hashes: HashedNames, names: tuple[pa.Array, pa.Array, pa.Array], has_user: Flags, has_client_id: Flags
    ) -> Ids:
        """The sensor of each entity, by broker, user and client-id, int64[n]. One that does not exist is made."""
        ids, new = self._index.add(hashes.sensor_keys(has_user, has_client_id))
        if len(new):
            rows = pa.array(new)
            broker, user, client_id = (column.take(rows) for column in names)
            user, client_id = names_where(has_user[new], user), names_where(has_client_id[new], client_id)
            self._names.append(pa.table(dict(zip(_SENSOR, (broker, user, client_id), strict=True))))
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
        """The columns broker_id, sensor_user and sensor_client_id of some sensors."""
        if not self._names:
            return pa.table(dict.fromkeys(_SENSOR, pa.array([], pa.string())))
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
    ]
)
"""Columns of `QuotaEngine.buckets`. The tokens are as of `refilled_at_ms`."""


def of_sensors_with_parts(buckets: pa.Table) -> pa.Table:
    """The rows of sensors with a user or a client-id. The one without stands for clients without a quota: no bucket."""
    return buckets.filter((pc.field("sensor_user") != "") | (pc.field("sensor_client_id") != ""))


def sensor_entities(table: pa.Table, has_brokers: bool) -> EntityNames:
    """The sensors of a bucket table as entities. A part that is not a tag is an empty name."""
    columns = {"user": table["sensor_user"], "client_id": table["sensor_client_id"]}
    if has_brokers:
        columns["broker_id"] = table["broker_id"]
    return EntityNames(pa.table(columns), has_brokers)


def _rows_by_type(table: pa.Table) -> list[Ids]:
    """The row numbers of a bucket table per quota type; raises `InvalidUsage`."""
    for name in BUCKETS_SCHEMA.names:
        if name not in table.column_names:
            message = f"column '{name}' is not in the buckets; their columns are {', '.join(table.column_names)}"
            raise InvalidUsage(message)
        if table[name].null_count:
            message = f"column '{name}' has nulls in {table[name].null_count} rows"
            raise InvalidUsage(message)
    types = np.array(table["quota_type"].to_pylist(), np.object_)
    unknown = set(types) - set(QUOTA_TYPES)
    if unknown:
        message = f"unknown quota type '{min(unknown)}'; known are {', '.join(QUOTA_TYPES)}"
        raise InvalidUsage(message)
    return [np.flatnonzero(types == name) for name in QUOTA_TYPES]


IDLE_MS: Final = 3_600_000
"""`QuotaEngine.expire_idle` drops a sensor that had no usage for longer than this. Kafka's value, one hour."""


class SensorTable:
    """The sensors of every side and quota type, and the quotas that decide which usage goes to which sensor."""

    def __init__(self, num_samples: int, sample_window_ms: int, by_broker: bool, carry_debt: bool) -> None:
        self._num_samples = num_samples
        self._sample_window_ms = sample_window_ms
        self._by_broker = by_broker
        self._carry_debt = carry_debt
        self._newest = 0
        self.seeds = Seeds.draw()
        self._memo = DictionaryMemo()
        self.entities = EntityDirectory()
        self.resolution = Resolution(QuotaSnapshot(0, ()), self.seeds)
        self.recording: tuple[Key, ...] = ()
        self.numbers = SensorNumbers()
        self.by_key: dict[Key, TypeSensors] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def load(self, snapshot: QuotaSnapshot) -> None:
        """Put quotas in force. Sensors stay as they are. Entities are resolved again when they are next looked up."""
        self.resolution = Resolution(snapshot, self.seeds)
        recorded = recorded_keys(snapshot)
        self.recording = tuple(key for key in KEYS if key in recorded)
        self.entities.forget_sensors(self.recording)
        for sensors in self.by_key.values():
            sensors.is_resolved[:] = False

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
        for sensors in self.by_key.values():
            sensors.windows.restart(newest)
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
                if of_type.buckets is not None:
                    of_type.buckets.fill(ids)

    def look_up(self, names: EntityNames, now_ms: int) -> tuple[Ids, dict[Key, Ids]]:
        """The entity of each row, and its sensor (made if missing) per side and type: one array if all agree."""
        reader = NameReader(names, self.seeds, self._memo)
        entities = np.empty(names.num_rows, np.int64)
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
                self._resolve(hashes.take(unresolved), names.take(unresolved + start), found[unresolved], now_ms)
                sensors = self.entities.sensors(first, found)
            of_row[first][start:stop] = sensors
            if not self.entities.agreed:
                for key in others:
                    if key not in of_row:
                        of_row[key] = of_row[first].copy()
                    of_row[key][start:stop] = self.entities.sensors(key, found)
        return entities, {key: of_row.get(key, of_row[first]) for key in self.recording}

    def _resolve(
        self, hashes: HashedNames, names: tuple[pa.Array, pa.Array, pa.Array], entities: Ids, now_ms: int
    ) -> None:
        candidates = self.resolution.candidates(hashes)
        first: tuple[Resolved, Ids] | None = None
        for key in self.recording:
            resolved = self.resolution.resolve(hashes, candidates, *key)
            if first is not None and resolved.has_tags_of(first[0]):
                ids = first[1]
            else:
                ids = self.numbers.add(hashes, names, resolved.has_user, resolved.has_client_id)
                self._grow(self.recording)
                # Otherwise a sensor without usage so far would count as idle at once, and be resolved again and again.
                self.numbers.used_at_ms[ids] = now_ms
                self.entities.agreed = self.entities.agreed and first is None
            first = first or (resolved, ids)
            self.entities.of_key[key][entities] = ids
            self.by_key[key].bound[ids] = resolved.bound
            self.by_key[key].level[ids] = self.resolution.levels_of(resolved.quota)
            self.by_key[key].holds_user[ids] = resolved.holds_user
            self.by_key[key].is_resolved[ids] = True
            if key[0] is Side.SHADOW:
                self.by_key[key].is_shadow[ids] = self.resolution.is_shadow(resolved.quota)

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
        """The buckets that are not full at the end of the oldest sample window, and all that have no bound now."""
        full_at_ms = max((self._newest - self._num_samples + 1) * self._sample_window_ms, 0)
        parts = [BUCKETS_SCHEMA.empty_table()]
        for quota_type, name in enumerate(QUOTA_TYPES):
            of_type = self.by_key.get((Side.ENFORCED, quota_type))
            if of_type is None or of_type.buckets is None:
                continue
            ids = of_type.buckets.charged()
            names = self.numbers.names(ids)
            hashes = sensor_entities(names, self._by_broker).hashed(self.seeds)
            bound = self.resolution.bound_of_tags(hashes, Side.ENFORCED, quota_type)
            kept = np.flatnonzero(of_type.buckets.below_burst(ids, bound, full_at_ms))
            kind = names_of((name,), np.zeros(len(kept), np.int64))
            stored = (pa.array(column) for column in of_type.buckets.stored(ids[kept]))
            columns = [*names.take(pa.array(kept)).columns, kind, *stored]
            parts.append(pa.table(columns, schema=BUCKETS_SCHEMA))
        return pa.concat_tables(parts).combine_chunks()

    def restore_buckets(self, table: pa.Table) -> None:
        """See `QuotaEngine.restore_buckets`."""
        rows_of_type = _rows_by_type(table)
        if not self._carry_debt:
            return
        entities = sensor_entities(table, self._by_broker)
        names = entities.take(np.arange(entities.num_rows))
        tags = (pc.not_equal(part, "").to_numpy(zero_copy_only=False) for part in names[1:])
        ids = self.numbers.add(entities.hashed(self.seeds), names, *tags)
        tokens, refilled_at_ms = table["tokens"].to_numpy(), table["refilled_at_ms"].to_numpy()
        self.numbers.used_at_ms[ids] = np.maximum(self.numbers.used_at_ms[ids], refilled_at_ms)
        types = [(Side.ENFORCED, quota_type) for quota_type, rows in enumerate(rows_of_type) if len(rows)]
        self._grow((*self.recording, *types))
        for (_, quota_type), sensors in self.by_key.items():
            if sensors.buckets is not None:
                rows = rows_of_type[quota_type]
                sensors.buckets.restore(ids[rows], tokens[rows], refilled_at_ms[rows])

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


Rows = slice | Ids

_EXACT_IN_FLOAT: Final = 1 << 53
_FEW: Final = 64
_ALL: Final = slice(None)


class SensorGroups:
    """Rows grouped by sensor. Each of the `count` sensors, ascending or a slice of all, has a place from 0 on."""

    def __init__(self, of_row: Ids, num_sensors: int) -> None:
        is_small = len(of_row) * _FEW < num_sensors
        if is_small:  # a window of late usage, of which there may be thousands
            ids, places_of_rows = np.unique(of_row, return_inverse=True)
        else:
            present = np.zeros(num_sensors, np.bool_)
            present[of_row] = True
            ids, places_of_rows = present.nonzero()[0], of_row
        self.count = len(ids)
        self.sensors: Selection = ids
        self._place = places_of_rows
        if self.count == num_sensors:
            self.sensors = slice(0, num_sensors)
        elif not is_small:
            places = np.empty(num_sensors, np.int64)
            places[ids] = np.arange(self.count)
            self._place = places[of_row]
        self._each_once = self.count == len(of_row)

    def sums(self, values: Ints) -> Ints:
        """The sum of the values of each sensor's rows, int64[m], at most 2^63 − 1."""
        if self._each_once:
            sums = np.empty(self.count, np.int64)
            sums[self._place] = values
            return sums
        if int(values.max()) * len(values) < _EXACT_IN_FLOAT:
            return np.bincount(self._place, values, self.count).astype(np.int64)
        sums = np.zeros(self.count, np.int64)
        np.add.at(sums, self._place, values)
        return saturated(sums, np.bincount(self._place, values, self.count).astype(np.float64))

    def newest(self, times_ms: Ints) -> Ints:
        """The latest time of each sensor's rows, int64[m]."""
        newest = np.zeros(self.count, np.int64)
        if self._each_once:
            newest[self._place] = times_ms
        else:
            np.maximum.at(newest, self._place, times_ms)
        return newest

    def blocks(self) -> Iterator[tuple[Selection, slice]]:
        """The sensors in pieces that fit into a core's cache, each with its places."""
        for start in range(0, self.count, BLOCK_ROWS):
            places = slice(start, min(start + BLOCK_ROWS, self.count))
            yield (places if isinstance(self.sensors, slice) else self.sensors[places]), places


@dataclass(slots=True)
class WindowRows:
    """The rows of a batch that lie in the sample window of an index, all of them usage of a gap, or none.

    Attributes:
        is_late: The window is before those that the rates know.
        is_behind: It is before the newest two: its usage was reported by a broker or a meter that is behind.
        in_gap: See `quota.usage.Usage`.
    """

    window: int
    is_late: bool
    is_behind: bool
    in_gap: bool
    rows: Rows
    _groups: dict[tuple[int, int], SensorGroups] = field(default_factory=dict)
    _newest: dict[tuple[int, int], Ints] = field(default_factory=dict)

    def group(self, usage: Usage, quota_type: int, of_row: Ids, num_sensors: int) -> tuple[SensorGroups, Ints, Ints]:
        """Groups, sums and newest event times of rows with usage of a type. Types without nulls share a grouping."""
        measure = usage.measures[quota_type]
        rows = self.rows
        key = (id(of_row), -1)
        if measure.present is not None:
            rows = measure.present.nonzero()[0] if isinstance(rows, slice) else rows[measure.present[rows]]
            key = (id(of_row), quota_type)
        if key not in self._groups:
            self._groups[key] = SensorGroups(of_row[rows], num_sensors)
            self._newest[key] = self._groups[key].newest(usage.last_ms[rows])
        group = self._groups[key]
        return group, group.sums(measure.values[rows]) if group.count else np.zeros(0, np.int64), self._newest[key]


def split_by_window(usage: Usage, newest: int, num_samples: int) -> list[WindowRows]:
    """The rows of a batch, at least one, by sample window, oldest first; in each the usage of a gap first."""
    oldest, recent, first = newest - num_samples, newest - 1, int(usage.window[0])
    if usage.in_gap is None and (usage.window.strides == (0,) or bool((usage.window == first).all())):
        return [WindowRows(first, first < oldest, first < recent, False, _ALL)]
    begin = int(usage.window.min())
    place = (usage.window - begin) * 2 + 1
    if usage.in_gap is not None:
        place -= usage.in_gap
    order = np.argsort(place.astype(np.min_scalar_type(int(place.max()))), kind="stable")
    in_order = place[order]
    begins = np.flatnonzero(np.diff(in_order, prepend=-1))
    windows, of_gap = begin + in_order[begins] // 2, in_order[begins] % 2 == 0
    flags = (flag.tolist() for flag in (windows, windows < oldest, windows < recent, of_gap))
    return [WindowRows(*piece) for piece in zip(*flags, np.split(order, begins[1:]), strict=True)]


def record_piece(
    sensors: TypeSensors,
    piece: WindowRows,
    group: SensorGroups,
    sums: Ints,
    newest_ms: Ints,
    quota_type: int,
    refill_to_ms: int,
) -> None:
    """Put one window's usage of one type into samples (unless late) and buckets (unless unbounded)."""
    most_bursts = MAX_DEBT_BURSTS_OF_GAP if piece.in_gap else MAX_DEBT_BURSTS
    for selection, places in group.blocks():
        if not piece.is_late:
            sensors.windows.add(selection, piece.window, sums[places], newest_ms[places])
        if sensors.buckets is None:
            continue
        bound = sensors.bound[selection]
        charge = amounts(sums[places], quota_type)
        charged = selection
        bounded = np.isfinite(bound)
        if not bounded.all():
            chosen = np.flatnonzero(bounded)
            charged, bound, charge = at_places(selection, chosen), bound[chosen], charge[chosen]
        sensors.buckets.charge(charged, charge, bound, refill_to_ms, most_bursts)


def sensors_of(groups: list[SensorGroups], num_sensors: int) -> Ids:
    """The sensors of these groups, each once, ascending."""
    present = np.zeros(num_sensors, np.bool_)
    for group in groups:
        present[group.sensors] = True
    return present.nonzero()[0]


def violated_sensors(
    sensors: TypeSensors, groups: list[SensorGroups], num_sensors: int, now_ms: int
) -> tuple[Ids, Floats, Ints]:
    """The sensors of these groups whose rate is above their bound, each once, and O and W of each."""
    if len(groups) == 1:
        blocks = [selection for selection, _ in groups[0].blocks()]
    else:
        ids = sensors_of(groups, num_sensors)
        blocks = [ids[start : start + BLOCK_ROWS] for start in range(0, len(ids), BLOCK_ROWS)]
    found = [(np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(0, np.int64))]
    for selection in blocks:
        at, observed, window_ms = sensors.windows.violated(selection, sensors.bound[selection], now_ms)
        if len(at):
            found.append((at_places(selection, at), observed, window_ms))
    if len(found) <= 2:
        return found[-1]
    ids, observed, window_ms = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return ids, observed, window_ms
