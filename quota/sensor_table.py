"""All sensors of an engine: finding and making them for usage, storing and restoring their buckets, dropping them."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from quota.buckets import TokenBuckets
from quota.directory import UNRESOLVED, EntityDirectory
from quota.key_index import Ids
from quota.names import DictionaryMemo, HashedNames, Seeds
from quota.rates import SampleWindows
from quota.resolution import Resolution, Resolved, Side
from quota.sensor_state import add_sensors, buckets_table, read_buckets
from quota.sensors import KEYS, Key, SensorNumbers, TypeSensors
from quota.snapshot import QuotaSnapshot
from quota.usage import BLOCK_ROWS, EntityNames

IDLE_MS: Final = 3_600_000
"""`expire_idle` drops a sensor that had no usage for longer than this. Kafka's value, one hour."""


class SensorTable:
    """The sensors of every side and quota type, and the quotas that say which usage goes to which sensor.

    Attributes:
        resolution: the quotas in force.
        recording: the sides and types that record under these quotas.
        numbers: all sensors, by number.
        by_key: samples, buckets and bounds of each side and type that records or ever recorded.
    """

    def __init__(self, num_samples: int, sample_window_ms: int, by_broker: bool, carry_debt: bool) -> None:
        self._num_samples = num_samples
        self._sample_window_ms = sample_window_ms
        self._by_broker = by_broker
        self._carry_debt = carry_debt
        self._newest = 0
        self._seeds = Seeds.draw()
        self._memo = DictionaryMemo()
        self._entities = EntityDirectory()
        self.resolution = Resolution(QuotaSnapshot(0, ()), self._seeds)
        self.recording: tuple[Key, ...] = ()
        self.numbers = SensorNumbers()
        self.by_key: dict[Key, TypeSensors] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """The memory of all sensors and known entities in bytes, spare room included."""
        samples = sum(sensors.nbytes for sensors in self.by_key.values())
        return samples + self.numbers.nbytes + self._entities.nbytes

    def load(self, snapshot: QuotaSnapshot) -> None:
        """Put quotas in force. Sensors stay as they are. Entities are resolved again when they are next looked up."""
        self.resolution = Resolution(snapshot, self._seeds)
        self.recording = tuple(key for key in KEYS if self.resolution.records(*key))
        self._entities.forget_sensors(self.recording)

    def advance(self, newest: int) -> None:
        """Make `newest` the newest sample window of all sensors."""
        self._newest = newest
        for sensors in self.by_key.values():
            sensors.windows.advance(newest)

    def begin_epoch(self, moved_ms: int, newest: int) -> None:
        """Empty all sample windows and make `newest` the newest one; all other times move by `moved_ms`."""
        self._newest = newest
        self.numbers.used_at_ms += moved_ms
        self._entities.move_clock(moved_ms)
        for sensors in self.by_key.values():
            sensors.windows.restart(newest)
            if sensors.buckets is not None:
                sensors.buckets.move_clock(moved_ms)

    def hashes(self, names: EntityNames) -> HashedNames:
        """The hashes of all names of a table."""
        return names.hashed(self._seeds).read(0, names.num_rows)

    def look_up(self, names: EntityNames, now_ms: int) -> tuple[Ids, dict[Key, Ids]]:
        """The entity of each row, and its sensor for each side and type that records. Missing sensors are made.

        As long as all sides and types agree, their sensors are one and the same array.
        """
        reader = names.hashed(self._seeds, self._memo)
        entities = np.empty(names.num_rows, np.int64)
        first, *others = self.recording
        of_row = {first: np.empty(names.num_rows, np.int64)}
        for start in range(0, names.num_rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, names.num_rows)
            hashes = reader.read(start, stop)
            found = self._entities.add(hashes)
            entities[start:stop] = found
            sensors = self._entities.sensors(first, found)
            unresolved = np.flatnonzero(sensors == UNRESOLVED)
            if len(unresolved):
                self._resolve(hashes.take(unresolved), names.take(unresolved + start), found[unresolved], now_ms)
                sensors = self._entities.sensors(first, found)
            of_row[first][start:stop] = sensors
            if not self._entities.agreed:
                for key in others:
                    if key not in of_row:
                        of_row[key] = of_row[first].copy()
                    of_row[key][start:stop] = self._entities.sensors(key, found)
        return entities, {key: of_row.get(key, of_row[first]) for key in self.recording}

    def sensors_of(self, key: Key, entities: Ids) -> Ids:
        """The sensor of each entity, by the numbers that `look_up` gave; `UNRESOLVED` if quotas were loaded since."""
        return self._entities.sensors(key, entities)

    def look_up_again(self, entities: Ids) -> dict[Key, Ids] | None:
        """As `look_up`, by the numbers it gave; None if some must be looked up by name: new ones, or after `load`.

        Args:
            entities: int64[n], n at least 1; −1 = not known.
        """
        first, *others = self.recording
        if entities.min() < 0:
            return None
        of_first = self._entities.sensors(first, entities)
        if of_first.min() == UNRESOLVED:
            return None
        if self._entities.agreed:
            return dict.fromkeys(self.recording, of_first)
        return {first: of_first, **{key: self._entities.sensors(key, entities) for key in others}}

    def _resolve(
        self, hashes: HashedNames, names: tuple[pa.Array, pa.Array, pa.Array], entities: Ids, now_ms: int
    ) -> None:
        """Find or make the sensors of entities that are not resolved yet under the quotas in force."""
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
                self._entities.agreed = self._entities.agreed and first is None
            first = first or (resolved, ids)
            self._entities.set_sensors(key, entities, ids)
            self.by_key[key].bound[ids] = resolved.bound
            self.by_key[key].quota[ids] = resolved.quota

    def _grow(self, keys: Iterable[Key]) -> None:
        """Give these sides and types, and all that ever recorded, room for all sensors."""
        for key in keys:
            if key not in self.by_key:
                self.by_key[key] = self._new_sensors(key)
        for sensors in self.by_key.values():
            sensors.grow(self.numbers.capacity)

    def _new_sensors(self, key: Key) -> TypeSensors:
        side, quota_type = key
        windows = SampleWindows(quota_type, self._num_samples, self._sample_window_ms, self._newest)
        keeps_debt = self._carry_debt and side is Side.ENFORCED
        return TypeSensors(windows, TokenBuckets(self._num_samples, self._sample_window_ms) if keeps_debt else None)

    def buckets(self) -> pa.Table:
        """The buckets that are not full at the end of the oldest sample window."""
        full_at_ms = max((self._newest - self._num_samples + 1) * self._sample_window_ms, 0)
        return buckets_table(self.by_key, self.numbers, self.resolution, self._seeds, self._by_broker, full_at_ms)

    def restore_buckets(self, table: pa.Table) -> None:
        """Set buckets to what `buckets` returned, and all others to full.

        Raises:
            InvalidUsage: a column is missing, a value is null, or a quota type is unknown.
        """
        rows_of_type = read_buckets(table)
        if not self._carry_debt:
            return
        ids = add_sensors(self.numbers, table, self._seeds, self._by_broker)
        tokens, refilled_at_ms = table["tokens"].to_numpy(), table["refilled_at_ms"].to_numpy()
        self.numbers.used_at_ms[ids] = np.maximum(self.numbers.used_at_ms[ids], refilled_at_ms)
        types = [(Side.ENFORCED, quota_type) for quota_type, rows in enumerate(rows_of_type) if len(rows)]
        self._grow((*self.recording, *types))
        for (_, quota_type), sensors in self.by_key.items():
            if sensors.buckets is not None:
                rows = rows_of_type[quota_type]
                sensors.buckets.restore(ids[rows], tokens[rows], refilled_at_ms[rows])

    def expire_idle(self, now_ms: int) -> int:
        """Drop the sensors that had no usage in the hour before an instant, and forget idle entities.

        Returns:
            How many sensors were dropped.
        """
        self._entities.forget_unseen(now_ms, IDLE_MS)
        kept = self.numbers.used_at_ms[: len(self.numbers)] >= now_ms - IDLE_MS
        dropped = int(len(kept) - kept.sum())
        if dropped:
            for sensors in self.by_key.values():
                sensors.keep(kept)
            self._entities.follow_sensors(kept)
            self.numbers.keep(kept)
        return dropped
