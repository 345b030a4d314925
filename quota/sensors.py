"""Sensors: what a rate belongs to.

A sensor is a pair of tags, and in broker scope a broker. Entities with equal tags share it. Sensors have one numbering
for all quota types and both sides. So an entity needs only one look-up as long as all types give it the same tags. Each
type keeps its own samples under these numbers.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quota.buckets import TokenBuckets
from quota.entity import QUOTA_TYPES
from quota.key_index import Ids, KeyIndex
from quota.names import HashedNames
from quota.rates import SampleWindows
from quota.resolution import NO_QUOTA, Side

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Key = tuple[Side, int]
"""A side and the position of a quota type."""

KEYS: Final[tuple[Key, ...]] = tuple((side, quota_type) for side in Side for quota_type in range(len(QUOTA_TYPES)))
MIN_CAPACITY: Final = 64
_MAX_CHUNKS: Final = 256


class TypeSensors:
    """Samples, buckets and bounds of all sensors, for one quota type on one side.

    Attributes:
        windows: the sample windows.
        buckets: the token buckets; None if no debt is carried: on the shadow side, or if that is switched off.
        bound: T of each sensor, float64, from the last time that one of its entities was resolved; infinity for none.
        quota: the row that the bound comes from, int64; `NO_QUOTA` for none.
    """

    def __init__(self, windows: SampleWindows, buckets: TokenBuckets | None) -> None:
        self.windows = windows
        self.buckets = buckets
        self.bound = np.zeros(0, np.float64)
        self.quota = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """The memory of all columns, in bytes."""
        buckets = 0 if self.buckets is None else self.buckets.nbytes
        return self.windows.nbytes + buckets + self.bound.nbytes + self.quota.nbytes

    def grow(self, capacity: int) -> None:
        """Make room for this many sensors."""
        room = capacity - len(self.bound)
        if room <= 0:
            return
        self.bound = np.pad(self.bound, (0, room), constant_values=np.inf)
        self.quota = np.pad(self.quota, (0, room), constant_values=NO_QUOTA)
        self.windows.grow(capacity)
        if self.buckets is not None:
            self.buckets.grow(capacity)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget the sensors that are not kept, bool[n]. The others close the gaps in their order."""
        self.bound = self.bound[: len(kept)][kept]
        self.quota = self.quota[: len(kept)][kept]
        self.windows.keep(kept)
        if self.buckets is not None:
            self.buckets.keep(kept)


class SensorNumbers:
    """The numbers of all sensors, and the names of each.

    Attributes:
        used_at_ms: when usage was last recorded to each sensor, int64.
        has_user: True if the user is one of the sensor's tags, bool.
        has_client_id: True if the client-id is one of the sensor's tags, bool.
    """

    def __init__(self) -> None:
        self._index = KeyIndex()
        self._names: list[pa.Table] = []
        self.used_at_ms = np.zeros(0, np.int64)
        self.has_user = np.zeros(0, np.bool_)
        self.has_client_id = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """The memory of keys and names, in bytes."""
        return self._index.nbytes + self.used_at_ms.nbytes + sum(int(chunk.nbytes) for chunk in self._names)

    def find(self, names: HashedNames, has_user: NDArray[np.bool_], has_client_id: NDArray[np.bool_]) -> Ids:
        """The sensor of each entity, int64[n]; −1 if it does not exist yet."""
        return self._index.find(names.sensor_keys(has_user, has_client_id))

    def add(
        self,
        hashes: HashedNames,
        names: tuple[pa.Array, pa.Array, pa.Array],
        has_user: NDArray[np.bool_],
        has_client_id: NDArray[np.bool_],
    ) -> Ids:
        """The sensor of each entity, int64[n]. One that does not exist is made.

        Args:
            hashes: the hashed names of n entities.
            names: broker, user and client-id of the same entities.
            has_user: True if the user is one of the tags, bool[n].
            has_client_id: True if the client-id is one of the tags, bool[n].
        """
        ids, new = self._index.add(hashes.sensor_keys(has_user, has_client_id))
        if len(new):
            rows = pa.array(new)
            broker, user, client_id = (column.take(rows) for column in names)
            sensor_user = pc.if_else(pa.array(has_user[new]), user, "")
            sensor_client_id = pc.if_else(pa.array(has_client_id[new]), client_id, "")
            columns = {"broker_id": broker, "sensor_user": sensor_user, "sensor_client_id": sensor_client_id}
            self._names.append(pa.table(columns))
            if len(self._names) > _MAX_CHUNKS:
                self._names = [pa.concat_tables(self._names).combine_chunks()]
        if len(self._index) > len(self.used_at_ms):
            room = max(2 * len(self._index), MIN_CAPACITY) - len(self.used_at_ms)
            self.used_at_ms = np.pad(self.used_at_ms, (0, room))
            self.has_user = np.pad(self.has_user, (0, room))
            self.has_client_id = np.pad(self.has_client_id, (0, room))
        self.has_user[ids[new]] = has_user[new]
        self.has_client_id[ids[new]] = has_client_id[new]
        return ids

    @property
    def capacity(self) -> int:
        """The number of sensors for which there is room."""
        return self.used_at_ms.size

    def names(self, sensors: Ids) -> pa.Table:
        """The columns broker_id, sensor_user and sensor_client_id of some sensors."""
        if not self._names:
            empty = pa.array([], pa.string())
            return pa.table({"broker_id": empty, "sensor_user": empty, "sensor_client_id": empty})
        self._names = [pa.concat_tables(self._names).combine_chunks()]
        return self._names[0].take(pa.array(sensors))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget the sensors that are not kept, bool[n]. The others get new numbers, in their order."""
        self._names = [self.names(np.flatnonzero(kept))]
        self._index.keep(kept)
        self.used_at_ms = self.used_at_ms[: len(kept)][kept]
        self.has_user = self.has_user[: len(kept)][kept]
        self.has_client_id = self.has_client_id[: len(kept)][kept]
