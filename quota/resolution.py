"""Which quota holds for a `<user, client-id>`, and which sensor its usage belongs to.

Kafka 4.3.1's rules, per quota type on its own:

1. The levels that have a quota of the type decide how far to look. If all of them name the same parts (only users, only
   client-ids, or only pairs) these parts are the tags of everybody's sensor, with a quota or without. If none has one
   the tags are the client-id alone.
2. Otherwise the first of the eight levels that has a quota for the entity gives the tags; without one, the client-id.
3. The bound is looked up by the *tags*, not by the level of step 2. The two differ in one case: an empty client-id has
   tags without a client-id, so a quota on the default client-id never bounds it.

This is done twice, by two *sides*. The enforced side does not see shadow rows. The shadow side sees all rows and has
sensors of its own. An `exempt` row is seen by both for every type, as a quota without a bound. A type that no enforced
row bounds records nothing, and the shadow side of a type records nothing unless a shadow row bounds it.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quota.entity import DEFAULT, KIND_OF_LEVEL, QUOTA_TYPES, Level, LevelKind
from quota.key_index import Ids, KeyIndex
from quota.names import HashedNames, NameColumn, Pair, Seeds, is_named
from quota.snapshot import Quota, QuotaSnapshot

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NO_QUOTA: Final = -1
"""In an array of positions in `QuotaSnapshot.quotas`: none."""

_HIDDEN: Final = np.nan
_LEVELS_BY_TAGS: Final = {
    LevelKind.USER_CLIENT: (
        Level.USER_CLIENT,
        Level.USER_DEFAULT_CLIENT,
        Level.DEFAULT_USER_CLIENT,
        Level.DEFAULT_USER_DEFAULT_CLIENT,
    ),
    LevelKind.USER: (Level.USER, Level.DEFAULT_USER),
    LevelKind.CLIENT: (Level.CLIENT, Level.DEFAULT_CLIENT),
}


class Side(IntEnum):
    """Which rows a resolution sees."""

    ENFORCED = 0
    SHADOW = 1


@dataclass(frozen=True, slots=True)
class Resolved:
    """What holds for n entities, for one quota type on one side.

    Attributes:
        has_user: bool[n]; the user is one of the sensor's tags, and not empty.
        has_client_id: bool[n]; the client-id is one of the sensor's tags, and not empty.
        quota: int64[n]; position in the snapshot's quotas, `NO_QUOTA` without one. May be an exempt one.
        bound: float64[n]; infinity without a quota and for an exempt one.
    """

    has_user: Flags
    has_client_id: Flags
    quota: Ids
    bound: Floats

    def has_tags_of(self, other: "Resolved") -> bool:
        """True if both put all entities into the same sensors."""
        same_user = np.array_equal(self.has_user, other.has_user)
        return same_user and np.array_equal(self.has_client_id, other.has_client_id)


Candidates = dict[Level, Ids]
"""For each level the position of the row that names each of n entities there, `NO_QUOTA` without one."""


class Resolution:
    """A snapshot, indexed for look-ups by whole columns. Immutable; keeps no sensor and no entity."""

    def __init__(self, snapshot: QuotaSnapshot, seeds: Seeds) -> None:
        self.snapshot = snapshot
        self._seeds = seeds
        quotas = snapshot.quotas
        self._level = np.array([*(quota.level for quota in quotas), 0], np.int64)
        self._mode = np.array([*(quota.mode for quota in quotas), None], np.object_)
        rows = [_bounds_of(quota) for quota in quotas]
        self._bounds = np.array(rows, np.float64).reshape(len(quotas), len(QUOTA_TYPES))
        self._index = {level: self._index_level(level) for level in Level}
        self._bound: dict[tuple[Side, int], Floats] = {}
        self._kinds: dict[tuple[Side, int], LevelKind] = {}
        self._records: dict[tuple[Side, int], bool] = {}
        for side in Side:
            for quota_type in range(len(QUOTA_TYPES)):
                self._see(side, quota_type)

    def records(self, side: Side, quota_type: int) -> bool:
        """True if usage of the type goes to sensors of the side at all."""
        return self._records[side, quota_type]

    def levels_of(self, quota: Ids) -> Ids:
        """The level of each row, 0 for `NO_QUOTA`."""
        return self._level[quota]

    def modes_of(self, quota: Ids) -> NDArray[np.object_]:
        """The mode of each row, None for `NO_QUOTA`."""
        return self._mode[quota]

    def is_shadow(self, quota: Ids) -> Flags:
        """True for a shadow row."""
        shadow: Flags = self._mode[quota] == "shadow"
        return shadow

    def _see(self, side: Side, quota_type: int) -> None:
        """What one side sees of one type: the bound of each row, infinity for an exempt one, NaN for a hidden one."""
        is_shadow = self.is_shadow(np.arange(len(self.snapshot.quotas)))
        bound = self._bounds[:, quota_type].copy()
        if side is Side.ENFORCED:
            bound[is_shadow] = _HIDDEN
        kinds = LevelKind.NONE
        for level in np.unique(self._level[:-1][~np.isnan(bound)]).tolist():
            kinds |= KIND_OF_LEVEL[Level(level)]
        decides = np.isfinite(bound) & (is_shadow == (side is Side.SHADOW))
        self._bound[side, quota_type] = bound
        self._kinds[side, quota_type] = kinds
        self._records[side, quota_type] = bool(decides.any())

    def _index_level(self, level: Level) -> tuple[KeyIndex, Ids]:
        """The rows of a level by the key of the names they give: ids of the index, and the row of each id."""
        at = np.flatnonzero(self._level == level)
        rows = [self.snapshot.quotas[i] for i in at]
        names = HashedNames(
            self._seeds,
            NameColumn(pa.array([_given(row.user) for row in rows], pa.string()), self._seeds).hash(0, len(rows)),
            NameColumn(pa.array([_given(row.client_id) for row in rows], pa.string()), self._seeds).hash(0, len(rows)),
            None,
        )
        index = KeyIndex()
        _, order = index.add(names.entity_keys())
        return index, at[order]

    def candidates(self, names: HashedNames) -> Candidates:
        """The row that names each entity, level by level; the work that all types and sides share."""
        by_name = HashedNames(names.seeds, names.user, names.client_id, None)
        size = len(names)
        both, user, client_id, none = (
            by_name.sensor_keys(np.full(size, has_user), np.full(size, has_client_id))
            for has_user, has_client_id in ((True, True), (True, False), (False, True), (False, False))
        )
        keys = {
            Level.USER_CLIENT: both,
            Level.USER_DEFAULT_CLIENT: user,
            Level.USER: user,
            Level.DEFAULT_USER_CLIENT: client_id,
            Level.DEFAULT_USER_DEFAULT_CLIENT: none,
            Level.DEFAULT_USER: none,
            Level.CLIENT: client_id,
            Level.DEFAULT_CLIENT: none,
        }
        return {level: self._find(level, key) for level, key in keys.items()}

    def _find(self, level: Level, keys: Pair) -> Ids:
        index, rows = self._index[level]
        if len(index) == 0:
            return np.full(len(keys[0]), NO_QUOTA, np.int64)
        ids = index.find(keys)
        return np.where(ids < 0, NO_QUOTA, rows[ids])

    def resolve(self, names: HashedNames, candidates: Candidates, side: Side, quota_type: int) -> Resolved:
        """Tags, row and bound of each entity for one type, as seen by one side."""
        bound = np.append(self._bound[side, quota_type], np.inf)
        seen = self._seen(candidates, bound)
        kinds = self._tag_kinds(seen, side, quota_type, len(names))
        user_named, client_id_named = is_named(names.user), is_named(names.client_id)
        has_user = (kinds != LevelKind.CLIENT) & user_named
        has_client_id = (kinds != LevelKind.USER) & client_id_named
        quota = self._quota_of_tags(seen, has_user, has_client_id)
        return Resolved(has_user, has_client_id, quota, bound[quota])

    def _seen(self, candidates: Candidates, bound: Floats) -> Candidates:
        """The candidates without rows that are hidden from a side and type; `bound` ends with one for `NO_QUOTA`."""
        return {level: np.where(np.isnan(bound[rows]), NO_QUOTA, rows) for level, rows in candidates.items()}

    def _quota_of_tags(self, seen: Candidates, user_tag: Flags, client_id_tag: Flags) -> Ids:
        """The most specific row for each pair of tags, of those whose level names just these."""
        quota = np.full(len(user_tag), NO_QUOTA, np.int64)
        for kind, levels in _LEVELS_BY_TAGS.items():
            tagged = (user_tag == (kind != LevelKind.CLIENT)) & (client_id_tag == (kind != LevelKind.USER))
            for level in levels:
                quota = np.where(tagged & (quota == NO_QUOTA), seen[level], quota)
        return quota

    def bound_of_tags(self, tags: HashedNames, side: Side, quota_type: int) -> Floats:
        """The bound of each sensor, given by its tags; infinity without one, float64[n]."""
        bound = np.append(self._bound[side, quota_type], np.inf)
        seen = self._seen(self.candidates(tags), bound)
        return bound[self._quota_of_tags(seen, is_named(tags.user), is_named(tags.client_id))]

    def _tag_kinds(self, seen: Candidates, side: Side, quota_type: int, size: int) -> NDArray[np.int64]:
        """Which names the sensor of each entity is tagged with, as a `LevelKind`."""
        kinds = self._kinds[side, quota_type]
        if kinds.value.bit_count() <= 1:
            return np.full(size, kinds or LevelKind.CLIENT, np.int64)
        matched = np.zeros(size, np.int64)
        for level in Level:
            matched = np.where((matched == 0) & (seen[level] >= 0), KIND_OF_LEVEL[level], matched)
        return np.where(matched == 0, LevelKind.CLIENT, matched)


def _given(name: str) -> str:
    """The name as part of a look-up key: a default has no name."""
    return "" if name == DEFAULT else name


def _bounds_of(quota: Quota) -> tuple[float, ...]:
    """The bound of each type: infinity for an exempt row, NaN where there is none."""
    if quota.mode == "exempt":
        return (np.inf,) * len(QUOTA_TYPES)
    return tuple(_HIDDEN if bound is None else bound for bound in quota.bounds)
