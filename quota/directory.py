"""A cache: to which sensor the usage of an entity goes, for all entities that were seen lately."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.key_index import Ids, KeyIndex
from quota.names import HashedNames
from quota.sensors import MIN_CAPACITY, Key

UNRESOLVED: Final = -1
"""In place of a sensor: not resolved yet under the quotas in force."""


class EntityDirectory:
    """The sensors of each known entity, for each side and type: the answers of the resolution, kept.

    Attributes:
        agreed: True while all sides and types in use put each entity into the same sensor.
    """

    def __init__(self) -> None:
        self._index = KeyIndex()
        self._sensors: dict[Key, Ids] = {}
        self._seen = np.zeros(0, np.bool_)
        self._seen_since_ms = 0
        self.agreed = True

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """The memory of keys and sensors, in bytes."""
        return self._index.nbytes + self._seen.nbytes + sum(ids.nbytes for ids in self._sensors.values())

    def forget_sensors(self, keys: tuple[Key, ...]) -> None:
        """Forget all sensors. Every entity is resolved again, for these sides and types, when it is next looked up."""
        self._sensors = {key: np.full(len(self._seen), UNRESOLVED, np.int64) for key in keys}
        self.agreed = True

    def add(self, hashes: HashedNames) -> Ids:
        """The number of each entity. An unknown entity gets a new number."""
        ids, _ = self._index.add(hashes.entity_keys())
        if len(self._index) > len(self._seen):
            room = max(2 * len(self._index), MIN_CAPACITY) - len(self._seen)
            self._seen = np.pad(self._seen, (0, room))
            self._sensors = {
                key: np.pad(ids_of, (0, room), constant_values=UNRESOLVED) for key, ids_of in self._sensors.items()
            }
        self._seen[ids] = True
        return ids

    def sensors(self, key: Key, entities: Ids) -> Ids:
        """The sensor of each entity; `UNRESOLVED` if it was not resolved since `forget_sensors`."""
        return self._sensors[key].take(entities, mode="clip")

    def set_sensors(self, key: Key, entities: Ids, sensors: Ids) -> None:
        """Keep the answers of the resolution."""
        self._sensors[key][entities] = sensors

    def move_clock(self, moved_ms: int) -> None:
        """Move all times by this much."""
        if self._seen_since_ms:
            self._seen_since_ms += moved_ms

    def forget_unseen(self, now_ms: int, idle_ms: int) -> None:
        """Forget entities that were not looked up for a time between one and two times `idle_ms`.

        Does something at most once in `idle_ms`: then it forgets what was not looked up since the last time.
        """
        if now_ms - self._seen_since_ms <= idle_ms:
            return
        kept = self._seen[: len(self)]
        if self._seen_since_ms and not kept.all():
            self._index.keep(kept)
            self._sensors = {key: ids[: len(kept)][kept] for key, ids in self._sensors.items()}
        self._seen = np.zeros(len(self), np.bool_)
        self._sensors = {key: ids[: len(self)] for key, ids in self._sensors.items()}
        self._seen_since_ms = now_ms

    def follow_sensors(self, kept: NDArray[np.bool_]) -> None:
        """Use the new numbers of the sensors after some were dropped.

        Args:
            kept: bool[n]; False for a dropped sensor. The entities of dropped sensors are resolved again.
        """
        renumbered = np.append(np.where(kept, np.cumsum(kept) - 1, UNRESOLVED), UNRESOLVED)
        self._sensors = {key: renumbered[ids] for key, ids in self._sensors.items()}
        lost = np.zeros(len(self._seen), np.bool_)
        for ids in self._sensors.values():
            lost |= ids == UNRESOLVED
        for ids in self._sensors.values():
            ids[lost] = UNRESOLVED
