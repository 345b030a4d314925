"""Which quota holds for a `<user, client-id>`, and which sensor its usage belongs to.

**The rules.** A quota can be set at eight levels, from the most specific:

    1  user and client-id            4  default user and client-id            7  client-id
    2  user and default client-id    5  default user and default client-id    8  default client-id
    3  user                          6  default user

Kafka 4.4.0 resolves each quota type on its own, in three steps:

1. It looks at which levels have a quota of this type at all. If all of them name the same parts (only users, only
   client-ids, or only pairs), these parts are the tags of every sensor, whether its client has a quota or not. If no
   level has a quota of this type, the tag is the client-id alone.
2. Otherwise the first of the eight levels that has a quota for the entity gives the tags. If none has, the tag is the
   client-id.
3. The bound is looked up by the *tags*, not by the level of step 2. The two differ in one case: the tags of an empty
   client-id have no client-id, so a quota of the default client-id never bounds it.

Clients with equal tags share a sensor, and so a rate, a bucket and a bound.

**Two sides.** All this is done twice. The *enforced* side does not see shadow rows. The *shadow* side sees all rows and
has sensors of its own. Both see an `exempt` row, for every type, as a quota without a bound. A type that no enforced
row bounds records nothing. The shadow side of a type records nothing unless a shadow row bounds that type.

**An example.** Alice has 1 MB per second for all she does, but her client `etl` has a quota of its own. So `etl` leaves
the sensor that her other clients share. Bob has no quota. (Every third row of the answer is that of the first quota
type.)

>>> from quota.engine import QuotaEngine
>>> rows = [
...     {"user": "alice", "client_id": "", "producer_byte_rate": 1e6},
...     {"user": "alice", "client_id": "etl", "producer_byte_rate": 5e5},
... ]
>>> engine = QuotaEngine()
>>> engine.load_quotas(QuotaSnapshot.from_rows(rows, version=1))
>>> clients = pa.table({"user": ["alice", "alice", "alice", "bob"], "client_id": ["etl", "web", "app", "web"]})
>>> for row in engine.resolve(clients).to_pylist()[::3]:
...     print(row["user"], row["client_id"], row["level"], (row["sensor_user"], row["sensor_client_id"]), row["bound"])
alice etl 1 ('alice', 'etl') 500000.0
alice web 3 ('alice', '') 1000000.0
alice app 3 ('alice', '') 1000000.0
bob web None ('', 'web') None
"""

from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quota.arrays import Flags, Floats, Ids, Ints
from quota.entity import DEFAULT, KIND_OF_LEVEL, NAMES_OF_LEVEL, QUOTA_TYPES, Level, LevelKind
from quota.snapshot import Quota, QuotaSnapshot
from quota.tenants import MEMBER_LEVEL, NO_TENANT, Patterns, Tenant
from quota.usage import EntityNames, HashedNames, KeyIndex, NameColumn, Pair, Seeds, is_named

NO_QUOTA: Final = -1  # stands for "no quota" in an array of positions in `QuotaSnapshot.quotas`

_HIDDEN: Final = np.nan


class Side(IntEnum):
    """Which rows of the quota table a resolution sees."""

    ENFORCED = 0
    SHADOW = 1


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answers for n entities, for one quota type on one side.

    A part is a tag only if it is not empty. The row may be an exempt one, or `NO_QUOTA`: then T is infinity, but for a
    member of a tenant. Where `holds_user`, the sensor is held as a whole: a throttle holds the user, with all
    client-ids of that sensor.

    Attributes:
        level: 1 to 8, `MEMBER_LEVEL`, or 0 for no quota and no tenant.
        tenant: The position of the tenant of each; `NO_TENANT` for none.
        apart: What is added to the key of the sensor: a tenant has a sensor of its own for the clients of a user that
            have no quota of their own and that a pattern of client-ids puts into it. None: nothing.
    """

    has_user: Flags
    has_client_id: Flags
    quota: Ids
    level: Ids
    bound: Floats
    holds_user: Flags
    tenant: Ids
    apart: Pair | None = None

    def has_tags_of(self, other: "Resolved") -> bool:
        """True if both answers put all entities into the same sensors."""
        if self.apart is not None or other.apart is not None:
            return False
        same_user = np.array_equal(self.has_user, other.has_user)
        return same_user and np.array_equal(self.has_client_id, other.has_client_id)

    def sensor_keys(self, names: HashedNames) -> Pair:
        """The key of the sensor of each entity."""
        first, second = names.sensor_keys(self.has_user, self.has_client_id)
        return (first, second) if self.apart is None else (first + self.apart[0], second + self.apart[1])


MOST_EXCEPTED: Final = 1_000
"""The most client-ids that a throttle of a user excepts."""
MOST_EXCEPTED_BYTES: Final = 500_000
"""The most UTF-8 bytes that they have together."""


class ClientsApart:
    """The client-ids that are not in the sensor of their user, for one quota type: rows put them into another one.

    They are the exceptions of a throttle that holds the user. It holds clients one by one in place of that where a
    default client-id puts all names into sensors of their own, and where there are too many exceptions.
    """

    def __init__(self, snapshot: QuotaSnapshot, quota_type: int) -> None:
        """Read the rows that count on the enforced side: exempt ones, and those with a bound of the type."""
        of_user: dict[str, set[str]] = defaultdict(set)
        own, all_apart, of_none = set(), set(), set()
        for quota in snapshot.quotas:
            if quota.mode == "shadow" or (quota.mode == "enforce" and quota.bounds[quota_type] is None):
                continue
            if quota.level in {Level.USER_CLIENT, Level.DEFAULT_USER_CLIENT}:
                of_user[quota.user].add(quota.client_id)
            elif quota.level in {Level.USER_DEFAULT_CLIENT, Level.DEFAULT_USER_DEFAULT_CLIENT}:
                all_apart.add(quota.user)
            elif quota.level in {Level.USER, Level.DEFAULT_USER}:
                own.add(quota.user)
            else:
                of_none.add(quota.client_id)
        of_default, default_apart = of_user.pop(DEFAULT, set()), DEFAULT in all_apart
        self._own = own - {DEFAULT}
        tenants = [one for one in snapshot.tenants if not one.is_shadow and one.bounds[quota_type] is not None]
        self._in_tenants = Patterns(tenants, "users") if tenants and DEFAULT not in own else None
        common = None if default_apart or DEFAULT in of_none else _excepted(of_default | of_none)
        self._of_members = {
            user: None if user in all_apart or common is None else _excepted({*of_user[user], *common})
            for user in ({*of_user, *all_apart} - own - {DEFAULT} if self._in_tenants else ())
        }
        self._of_any_member = common
        self._of_default = None if default_apart else _excepted(of_default)
        self._of_user = {
            user: None
            if user in all_apart or (default_apart and user not in own)
            else _excepted(of_user[user] if user in own else of_user[user] | of_default)
            for user in {*of_user, *all_apart} - {DEFAULT}
        }

    def of(self, user: str, tenant: str | None = None) -> tuple[str, ...] | None:
        """The exceptions of a user, in order; None if its clients are held one by one.

        * `tenant`: Of which the sensor is a member; None for none. A member by a pattern of client-ids is held client
          by client.
        """
        is_in_tenant = self._in_tenants is not None and self._in_tenants.match(pa.array([user]))[0] != NO_TENANT
        if tenant is not None and self._in_tenants is not None and not is_in_tenant:
            return None
        if is_in_tenant and user not in self._own:
            return self._of_members.get(user, self._of_any_member)
        if user in self._of_user:
            return self._of_user[user]
        return () if user in self._own else self._of_default

    def one_by_one(self) -> tuple[list[str], list[str], bool]:
        """The users whose clients are held one by one, other users with rows, and whether it is so for all the rest."""
        named = [user for user, excepted in self._of_user.items() if excepted is None]
        return named, [*self._own.union(self._of_user).difference(named)], self._of_default is None

    def members_one_by_one(self) -> tuple[list[str], bool]:
        """The same of users in tenants whose clients without a quota of their own are one member."""
        return [user for user, excepted in self._of_members.items() if excepted is None], self._of_any_member is None


def held_one_by_one(snapshot: QuotaSnapshot) -> list[str]:
    """The users with an enforced quota of theirs (`DEFAULT`: all without one) whose clients are held one by one."""
    found = set()
    for quota_type in range(len(QUOTA_TYPES)):
        apart = ClientsApart(snapshot, quota_type)
        bounded = [one for one in snapshot.quotas if one.mode == "enforce" and one.bounds[quota_type] is not None]
        found |= {
            one.user for one in bounded if one.level in {Level.USER, Level.DEFAULT_USER} and apart.of(one.user) is None
        }
    return sorted(found)


def _excepted(client_ids: set[str]) -> tuple[str, ...] | None:
    few = len(client_ids) <= MOST_EXCEPTED
    few = few and sum(len(name.encode("utf-8", "surrogatepass")) for name in client_ids) <= MOST_EXCEPTED_BYTES
    return tuple(sorted(client_ids)) if few else None


OfLevels = dict[Level, Ids]
"""Per level the positions of the rows that name n entities at this level; `NO_QUOTA` where there is none."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is the same for all sides and quota types of n entities.

    Attributes:
        rows: The rows that name them.
        of_user: By side the tenant whose pattern the user matches, `NO_TENANT` for none; `of_client_id` likewise. Empty
            without tenants.
        brokers: The broker of each; None in cluster scope.
    """

    rows: OfLevels
    of_user: dict[Side, Ids]
    of_client_id: dict[Side, Ids]
    brokers: "pa.Array | None"


class Resolution:
    """A snapshot with an index, for looking up whole columns. Immutable. Keeps no sensor and no entity."""

    def __init__(self, snapshot: QuotaSnapshot, seeds: Seeds) -> None:
        """Index a snapshot. The seeds are those of the engine: names of rows and of entities are hashed alike."""
        self.snapshot = snapshot
        self._seeds = seeds
        quotas = snapshot.quotas
        self._level = np.array([*(quota.level for quota in quotas), 0], np.int64)
        self._mode = np.array([*(quota.mode for quota in quotas), None], np.object_)
        rows = [_bounds_of(quota) for quota in quotas]
        self._bounds = np.array(rows, np.float64).reshape(len(quotas), len(QUOTA_TYPES))
        self._index = {level: self._index_level(level) for level in Level}
        self._patterns = {side: _patterns_of(snapshot.tenants, side) for side in Side if snapshot.tenants}
        # The last place stands for `NO_TENANT`.
        tenants = snapshot.tenants
        self._in_shadow = np.array([*(one.is_shadow for one in tenants), False])
        self._has_bound = np.array([*([c is not None for c in one.bounds] for one in tenants), [False] * 3])
        members = [[np.inf if bound is None else bound for bound in one.member_bounds] for one in tenants]
        self._members = np.array([*members, [np.inf] * 3])
        self._words = NameColumn(pa.array([one.name for one in tenants], pa.string()), seeds).hash(0, len(tenants))
        keys = product(Side, range(len(QUOTA_TYPES)))
        self._view = {(side, quota_type): self._see(side, quota_type) for side, quota_type in keys}
        self._apart = [self._apart_for(quota_type) for quota_type in range(len(QUOTA_TYPES))]

    def modes_of(self, resolved: Resolved) -> NDArray[np.object_]:
        """The mode of each row, or of a member's tenant, object[n]; None for neither."""
        modes = self._mode[resolved.quota]
        modes[(resolved.tenant != NO_TENANT) & (resolved.quota == NO_QUOTA)] = "enforce"
        modes[self._in_shadow[resolved.tenant]] = "shadow"
        return modes

    def _see(self, side: Side, quota_type: int) -> tuple[Floats, LevelKind]:
        """What one side sees of one type: bounds (infinity: exempt, NaN: hidden), and the kinds of levels.

        The last bound stands for `NO_QUOTA`.
        """
        bound = self._bounds[:, quota_type].copy()
        if side is Side.ENFORCED:
            bound[self._mode[:-1] == "shadow"] = _HIDDEN
        kinds = LevelKind.NONE
        for level in np.unique(self._level[:-1][~np.isnan(bound)]).tolist():
            kinds |= KIND_OF_LEVEL[Level(level)]
        return np.append(bound, np.inf), kinds

    def _apart_for(self, quota_type: int) -> tuple[ClientsApart, KeyIndex, KeyIndex, bool, KeyIndex, bool]:
        """Whom a throttle of a user does not hold, and keys of the users that are held one by one, and that are not."""
        apart = ClientsApart(self.snapshot, quota_type)
        named, others, is_default = apart.one_by_one()
        members, is_every = apart.members_one_by_one()
        keys = self._index_users(named), self._index_users(others if is_default else []), is_default
        return apart, *keys, self._index_users(members), is_every

    def _index_users(self, users: list[str]) -> KeyIndex:
        index = KeyIndex()
        if users:
            hashed = NameColumn(pa.array(users, pa.string()), self._seeds).hash(0, len(users))
            index.add(hashed)
        return index

    def apart(self, quota_type: int) -> ClientsApart:
        """Whom throttles of users do not hold."""
        return self._apart[quota_type][0]

    def _index_level(self, level: Level) -> tuple[KeyIndex, Ids]:
        """Index the rows of a level by the names they give. Returns the index, and the row of each of its ids."""
        at = np.flatnonzero(self._level == level)
        rows = [self.snapshot.quotas[i] for i in at]
        # As part of a look-up key a default has no name: "".
        user, client_id = (
            NameColumn(pa.array(["" if name == DEFAULT else name for name in part], pa.string()), self._seeds)
            for part in ([row.user for row in rows], [row.client_id for row in rows])
        )
        names = HashedNames(self._seeds, user.hash(0, len(rows)), client_id.hash(0, len(rows)), None)
        index = KeyIndex()
        _, order = index.add(names.entity_keys())
        return index, at[order]

    def candidates(self, hashes: HashedNames, names: EntityNames) -> Candidates:
        """What names each entity. This part of the work is the same for all types and sides."""
        of_user, of_client_id = (
            {side: both[at].match(column) for side, both in self._patterns.items()}
            for at, column in enumerate((names.user, names.client_id))
        )
        return Candidates(self._rows_of(hashes), of_user, of_client_id, names.broker_id)

    def _rows_of(self, names: HashedNames) -> OfLevels:
        by_name = HashedNames(names.seeds, names.user, names.client_id, None)
        size = len(names)
        keys = {
            named: by_name.sensor_keys(*(np.full(size, part) for part in named))
            for named in set(NAMES_OF_LEVEL.values())
        }
        return {level: self._find(level, keys[named]) for level, named in NAMES_OF_LEVEL.items()}

    def _find(self, level: Level, keys: Pair) -> Ids:
        index, rows = self._index[level]
        if len(index) == 0:
            return np.full(len(keys[0]), NO_QUOTA, np.int64)
        ids = index.find(keys)
        return np.where(ids < 0, NO_QUOTA, rows[ids])

    def resolve(self, names: HashedNames, candidates: Candidates, side: Side, quota_type: int) -> Resolved:
        """Tags, row and bound of each entity, for one type, as one side sees it."""
        bound, all_kinds = self._view[side, quota_type]
        seen = self._seen(candidates.rows, bound)
        kinds = _tag_kinds(seen, all_kinds, len(names))
        user_named, client_id_named = is_named(names.user), is_named(names.client_id)
        has_user = (kinds != LevelKind.CLIENT) & user_named
        has_client_id = (kinds != LevelKind.USER) & client_id_named
        quota = self._quota_of_tags(seen, has_user, has_client_id)
        holds_user = has_user & ~has_client_id & ~self._held_one_by_one(names.user, quota_type)
        tenant = np.full(len(names), NO_TENANT, np.int64)
        found = Resolved(has_user, has_client_id, quota, self._level[quota], bound[quota], holds_user, tenant)
        return self._with_tenants(found, names, candidates, side, quota_type) if candidates.of_user else found

    def _with_tenants(
        self, found: Resolved, names: HashedNames, candidates: Candidates, side: Side, quota_type: int
    ) -> Resolved:
        """With the tenant of each: that of the sensor's user, or of the client-id where the sensor has both.

        The clients of a user without a quota of their own are a member, held as a user where all of them are in it.
        """
        of_user, of_client_id = candidates.of_user[side], candidates.of_client_id[side]
        without = (found.quota == NO_QUOTA) & is_named(names.user)
        is_named_by_user = of_user != NO_TENANT
        tenant = np.where(is_named_by_user, of_user, np.where(found.has_client_id | without, of_client_id, NO_TENANT))
        is_member = without | (np.isfinite(found.bound) & found.has_user)
        tenant[~(is_member & self._has_bound[tenant, quota_type])] = NO_TENANT
        without &= tenant != NO_TENANT
        *_, named, is_every = self._apart[quota_type]
        one_by_one = np.ones(len(names), np.bool_) if is_every else named.find(names.user) >= 0
        is_apart = without & ~is_named_by_user
        return Resolved(
            has_user=found.has_user | without,
            has_client_id=found.has_client_id & ~without,
            quota=found.quota,
            level=np.where(without, MEMBER_LEVEL, found.level),
            bound=np.where(without, self._members[tenant, quota_type], found.bound),
            holds_user=np.where(without, is_named_by_user & ~one_by_one, found.holds_user),
            tenant=tenant,
            apart=self.keys_apart(np.where(is_apart, tenant, NO_TENANT)) if is_apart.any() else None,
        )

    def keys_apart(self, tenant: Ids) -> Pair:
        """What the tenants, positions or `NO_TENANT`, add to the keys of sensors that only they have."""
        first, second = (np.append(half, np.uint64(0))[tenant] for half in self._words)
        return first, second

    def names_apart(self, resolved: Resolved) -> pa.Array:
        """The name of the tenant that has the sensor of each for itself; null for none."""
        if resolved.apart is None:
            return pa.nulls(len(resolved.quota), pa.string())
        is_apart = is_named(resolved.apart)
        names = np.array([*(one.name for one in self.snapshot.tenants), None], np.object_)
        return pa.array(names[np.where(is_apart, resolved.tenant, NO_TENANT)], pa.string())

    def members_apart(
        self, names: "pa.ChunkedArray", users: Resolved, side: Side, quota_type: int
    ) -> tuple[Ids, Floats]:
        """The tenants that have sensors for themselves, by their names, null for none; and T of each.

        * `users`: Of each the user: the tenant has none of its clients if it has a quota, or is in a tenant as a whole.
        """
        seen = {
            one.name: at for at, one in enumerate(self.snapshot.tenants) if side is Side.SHADOW or not one.is_shadow
        }
        tenant = np.array([seen.get(name, NO_TENANT) for name in names.to_pylist()], np.int64)
        tenant[~self._has_bound[tenant, quota_type] | (users.level != 0)] = NO_TENANT
        return tenant, self._members[tenant, quota_type]

    def _held_one_by_one(self, users: Pair, quota_type: int) -> Flags:
        _, named, others, is_default, *_ = self._apart[quota_type]
        found = named.find(users) >= 0
        return found | (others.find(users) < 0) if is_default else found

    def _seen(self, candidates: OfLevels, bound: Floats) -> OfLevels:
        """The candidates without hidden rows."""
        return {level: np.where(np.isnan(bound[rows]), NO_QUOTA, rows) for level, rows in candidates.items()}

    def _quota_of_tags(self, seen: OfLevels, user_tag: Flags, client_id_tag: Flags) -> Ids:
        """For each pair of tags the most specific row among the levels that name exactly these parts."""
        quota = np.full(len(user_tag), NO_QUOTA, np.int64)
        for level, kind in KIND_OF_LEVEL.items():
            tagged = (user_tag == (kind != LevelKind.CLIENT)) & (client_id_tag == (kind != LevelKind.USER))
            quota = np.where(tagged & (quota == NO_QUOTA), seen[level], quota)
        return quota

    def bound_of_tags(self, tags: HashedNames, side: Side, quota_type: int) -> Floats:
        """The bound of each sensor, found by its tags; infinity if it has none."""
        bound = self._view[side, quota_type][0]
        seen = self._seen(self._rows_of(tags), bound)
        return bound[self._quota_of_tags(seen, is_named(tags.user), is_named(tags.client_id))]


def recorded_keys(snapshot: QuotaSnapshot) -> frozenset[tuple[Side, int]]:
    """The sides and quota types that record usage at all: those that a row, or a tenant, of the side bounds."""
    of_tenants = frozenset(
        (Side.SHADOW if tenant.is_shadow else Side.ENFORCED, quota_type)
        for tenant in snapshot.tenants
        for quota_type, bound in enumerate(tenant.bounds)
        if bound is not None
    )
    return of_tenants | frozenset(
        (Side.SHADOW if quota.mode == "shadow" else Side.ENFORCED, quota_type)
        for quota in snapshot.quotas
        if quota.mode != "exempt"
        for quota_type, bound in enumerate(quota.bounds)
        if bound is not None
    )


def _patterns_of(tenants: tuple[Tenant, ...], side: Side) -> tuple[Patterns, Patterns]:
    """The patterns of users and of client-ids that one side sees."""
    seen = {at: one for at, one in enumerate(tenants) if side is Side.SHADOW or not one.is_shadow}
    return Patterns(seen, "users"), Patterns(seen, "client_ids")


def _tag_kinds(seen: OfLevels, kinds: LevelKind, size: int) -> Ints:
    """Which parts are the tags of each entity's sensor, as a `LevelKind`; `kinds` are those of all levels in use."""
    if kinds.value.bit_count() <= 1:
        return np.full(size, kinds or LevelKind.CLIENT, np.int64)
    matched = np.zeros(size, np.int64)
    for level in Level:
        matched = np.where((matched == 0) & (seen[level] >= 0), KIND_OF_LEVEL[level], matched)
    return np.where(matched == 0, LevelKind.CLIENT, matched)


def _bounds_of(quota: Quota) -> tuple[float, ...]:
    """The bound of each type: infinity for an exempt row, NaN if the row has none of this type."""
    if quota.mode == "exempt":
        return (np.inf,) * len(QUOTA_TYPES)
    return tuple(_HIDDEN if bound is None else bound for bound in quota.bounds)
