"""Which quotas the brokers themselves must hold, so that they enforce the quota table.

An *entry* is one value at one quota entity and type, the same on every broker.

* A row that names a user, a client-id or a pair has one sensor, whoever its clients are. In cluster scope its entry is
  the level (`quota.broker_levels.levels`), from T / n to T.
* A row of a default has as many sensors as there are clients without a row of their own. They all stand under one
  value, so it stays at T. A sensor that is over T on all brokers together can get an entry of its own, see below.
* In broker scope (mirror mode) every entry is T.
* A shadow row has no entry. In shadow mode, of the whole table, there are no entries.
* Kafka has no exempt rows. An exempt row needs an entry only where a less specific row would hold without it; then it
  is a bound that no client reaches.

What was on the brokers before kquota wrote there is put back when an entry goes: `quota.broker_levels.sync`.

>>> rows = [
...     {"user": "alice", "client_id": "", "producer_byte_rate": 3e6},
...     {"user": "<default>", "client_id": "", "producer_byte_rate": 1e6},
...     {"user": "bob", "client_id": "", "mode": "exempt"},
... ]
>>> for entry in broker_entries(QuotaSnapshot.from_rows(rows, version=1)):
...     print(entry.key.user, entry.key.quota_type, f"{entry.bound:g}", entry.kind)
alice producer_byte_rate 3e+06 level
<default> producer_byte_rate 1e+06 bound
bob producer_byte_rate 1e+18 unbounded

**Entries of their own for sensors of a default.** Such an entry has the sensor's tags as its entity. It must change no
other client's quota, and hides only rows of less specific levels. An entry of a pair concerns that client alone. One of
a client-id hides the default client-id alone, which made the sensor. An entry of a user hides the rows of the default
user with a client-id: a client of that user that has one of these as its quota would fall under the new entry. Then
the entry is not written, and the sensor is reported. Whether other sensors have entries makes no difference.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from quota.arrays import Floats
from quota.entity import DEFAULT, KIND_OF_LEVEL, LEVELS_OF_DEFAULTS, QUOTA_TYPES, REQUEST, Level, LevelKind, entity_at
from quota.snapshot import Bounds, Quota, QuotaSnapshot
from quota.tenants import NO_TENANT, Patterns

UNREACHED: Final = 1e18
"""The bound of an exempt row, bytes per second or percent: the largest power of ten that Kafka takes for a LONG."""


class EntryKey(NamedTuple):
    """One value on the brokers: the entity as in the quota table, and the quota type."""

    user: str
    client_id: str
    quota_type: str


METERED: Final = 1e15
"""The bound of metering by user and client-id, bytes per second or percent. It is known by it, whoever wrote it."""

METERED_BY_USER: Final = 2e15
"""The bound of metering by user, likewise."""

METERING_ENTITIES: Final = ((DEFAULT, DEFAULT), (DEFAULT, ""), ("", DEFAULT))
"""Where it may stand, most specific first."""


def is_metering(key: EntryKey, value: float | None) -> bool:
    """Whether a value on the brokers is there only so that clients have sensors."""
    return value in {METERED, METERED_BY_USER} and (key.user, key.client_id) in METERING_ENTITIES


class EntryKind(StrEnum):
    """What the value of an entry is."""

    LEVEL = "level"
    OWN = "own"
    BOUND = "bound"
    UNBOUNDED = "unbounded"
    METERING = "metering"


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """An entry that the brokers must hold: T, `UNREACHED` for an exempt row, and what the value is.

    A `level` is L, from T / n to T; `own` is likewise, for a sensor of a default; `metering` is a bound that no client
    reaches (`quota.broker_levels.metering`); else the value is T.
    """

    key: EntryKey
    bound: float
    kind: EntryKind


def broker_entries(snapshot: QuotaSnapshot, mirror: bool = False) -> tuple[BrokerEntry, ...]:
    """The entries of a quota table, in the order of its rows and of `QUOTA_TYPES`; with `mirror` every one at T."""
    enforced = [quota for quota in snapshot.quotas if quota.mode == "enforce"]
    least_specific = [
        max((quota.level for quota in enforced if quota.bounds[position] is not None), default=None)
        for position in range(len(QUOTA_TYPES))
    ]
    return tuple(
        entry
        for quota in snapshot.quotas
        for entry in (_bounds_of(quota, mirror) if quota.mode != "exempt" else _exemptions(quota, least_specific))
    )


def _bounds_of(quota: Quota, mirror: bool) -> Iterable[BrokerEntry]:
    if quota.mode != "enforce":
        return
    is_default = DEFAULT in {quota.user, quota.client_id}
    kind = EntryKind.BOUND if mirror or is_default else EntryKind.LEVEL
    for name, bound in zip(QUOTA_TYPES, quota.bounds, strict=True):
        if bound is not None:
            yield BrokerEntry(EntryKey(quota.user, quota.client_id, name), bound, kind)


def _exemptions(quota: Quota, least_specific: Sequence[Level | None]) -> Iterable[BrokerEntry]:
    for name, level in zip(QUOTA_TYPES, least_specific, strict=True):
        if level is not None and level > quota.level:
            yield BrokerEntry(EntryKey(quota.user, quota.client_id, name), UNREACHED, EntryKind.UNBOUNDED)


def writable_levels(level: Floats, bound: Floats, quota_type: str) -> Floats:
    """Levels as Kafka takes them: byte rates are whole numbers, rounded up, but never above T."""
    return level if quota_type == "request_percentage" else np.minimum(np.ceil(level), bound)


def as_brokers_take(snapshot: QuotaSnapshot) -> QuotaSnapshot:
    """The rows that are not in shadow mode, without tenants; byte rates have no fraction unless they are below 1."""
    enforced = (quota for quota in snapshot.quotas if quota.mode != "shadow")
    quotas = tuple(replace(quota, bounds=_whole(quota.bounds)) for quota in enforced)
    return replace(snapshot, quotas=quotas, tenants=())


def _whole(bounds: Bounds) -> Bounds:
    produced, fetched, request = (
        None if rate is None else _whole_rate(rate, name) for rate, name in zip(bounds, QUOTA_TYPES, strict=True)
    )
    return produced, fetched, request


def _whole_rate(rate: float, quota_type: str) -> float:
    return rate if rate < 1 or quota_type == QUOTA_TYPES[REQUEST] else float(rate // 1)


# T of members of tenants, which is what they may use now.


def narrower_bounds(snapshot: QuotaSnapshot, own_bounds: Mapping[EntryKey, float]) -> dict[EntryKey, float]:
    """C of the tenants in force, as brokers take it, for each of these rows of their members that has more."""
    tenants = [one for one in snapshot.tenants if not one.is_shadow]
    keys = [key for key in own_bounds if key.user] if tenants else []
    of_users = Patterns(tenants, "users").match(pa.array([key.user for key in keys], pa.string()))
    of_client_ids = Patterns(tenants, "client_ids").match(pa.array([key.client_id for key in keys], pa.string()))
    found = {}
    for key, at in zip(keys, np.where(of_users == NO_TENANT, of_client_ids, of_users).tolist(), strict=True):
        bound = None if at == NO_TENANT else tenants[at].bounds[QUOTA_TYPES.index(key.quota_type)]
        if bound is not None and (whole := _whole_rate(bound, key.quota_type)) < own_bounds[key]:
            found[key] = whole
    return found


class MemberRate(NamedTuple):
    """What the engine sees of a member of a tenant that has a row of its own (`quota.tenants`), per second.

    Attributes:
        bound: what it may use now, min(H, λ · T, C).
        own_bound: T.
        observed: O.
    """

    bound: float
    own_bound: float
    observed: float


@dataclass(frozen=True, slots=True)
class _Followed:
    own_bound: float
    bound: float
    at_ms: int | None  # when it last moved
    higher_since_ms: int | None = None  # since when it should be higher


_STEP: Final = 0.05
_STEP_DOWN: Final = 0.01
_URGENT: Final = 1.2
_EVERY_MS: Final = 10_000
_CONFIRM_MS: Final = 5_000
_BORROWS_FROM: Final = 0.5
_BORROWS_UNTIL: Final = 0.25


class MemberBounds:
    """The T that brokers get for members of tenants: what each may use now, in steps, since λ moves each second.

    * It follows if it is higher by 5 % or lower by 1 %, and 10 s after the last step. If it is to go down to 1 / 1.2 or
      less, it does so at once: others wait for what it gives back. It goes up when it should be higher for 5 s: where
      several begin at once, λ falls within them.
    * Only a member that uses T / 2 gets more than T, until it uses less than T / 4. An idle one could otherwise begin
      with C on every broker.
    * Who has no rate has T, or C if that is less; so do all, when the rates are too old.

    >>> members, alice = MemberBounds(), EntryKey("alice", "", "producer_byte_rate")
    >>> own, busy = {alice: 100.0}, {alice: MemberRate(360.0, 100.0, 80.0)}
    >>> [list(members.follow(busy, own, {}, now_ms).values()) for now_ms in (0, 4_999, 5_000, 6_000)]
    [[], [], [360.0], []]
    """

    def __init__(self) -> None:
        self._followed: dict[EntryKey, _Followed] = {}

    def follow(
        self,
        rates: Mapping[EntryKey, MemberRate],
        own_bounds: Mapping[EntryKey, float],
        written_for: Mapping[EntryKey, float],
        now_ms: int,
        narrower: Mapping[EntryKey, float] = MappingProxyType({}),
    ) -> dict[EntryKey, float]:
        """Take the newest rates; returns the T that change.

        Args:
            rates: of members. A rate with another T than the table has is of another version, and does not count.
            own_bounds: T of the rows of the quota table, as brokers take it.
            written_for: the T that the brokers have a value for, of an earlier process, too.
            now_ms: of a clock that never steps.
            narrower: see `narrower_bounds`.
        """
        changed = {}
        for key in dict.fromkeys(chain(rates, self._followed, narrower)):
            own = own_bounds.get(key)
            if own is None:
                self._followed.pop(key, None)
                continue
            last, rate = self._followed.get(key), rates.get(key)
            if rate is not None and _whole_rate(rate.own_bound, key.quota_type) != own:
                rate = None
            if last is None or last.own_bound != own:
                last = _Followed(own, written_for.get(key, own) if last is None and rate is not None else own, None)
            rest = narrower.get(key, own)
            bound = rest if rate is None else _wanted(rate, _whole_rate(rate.bound, key.quota_type), last)
            since_ms = last.higher_since_ms if last.higher_since_ms is not None else now_ms
            last = replace(last, higher_since_ms=since_ms if bound > last.bound else None)
            if _is_due(last, bound, rest, now_ms):
                changed[key], last = bound, _Followed(own, bound, now_ms)
            elif key not in self._followed and last.bound != own:
                changed[key] = last.bound
            is_at_rest = last.bound == own and last.higher_since_ms is None and _has_passed(last.at_ms, now_ms)
            if is_at_rest:
                self._followed.pop(key, None)
            else:
                self._followed[key] = last
        return changed

    @property
    def moved(self) -> dict[EntryKey, float]:
        """The T that are not those of the table now."""
        return {key: one.bound for key, one in self._followed.items() if one.bound != one.own_bound}

    def applied(self, entry: BrokerEntry) -> BrokerEntry:
        """An entry of a row, with the T that it has now."""
        return replace(entry, bound=self._followed[entry.key].bound) if self.moves(entry.key, entry.bound) else entry

    def moves(self, key: EntryKey, own_bound: float) -> bool:
        """Whether T of a row with this T in the table is a member's that moves."""
        followed = self._followed.get(key)
        return followed is not None and followed.own_bound == own_bound


def needs_entry(rate: MemberRate) -> bool:
    """Whether a member under the row of a default needs an entry of its own."""
    borrows = rate.bound >= rate.own_bound * (1 + _STEP) and rate.observed >= rate.own_bound * _BORROWS_FROM
    return borrows or rate.bound <= rate.own_bound * (1 - _STEP)


def _wanted(rate: MemberRate, bound: float, last: _Followed) -> float:
    share = _BORROWS_UNTIL if last.bound > last.own_bound else _BORROWS_FROM
    return bound if rate.observed >= share * last.own_bound else min(bound, last.own_bound)


def _is_due(last: _Followed, bound: float, rest: float, now_ms: int) -> bool:
    if bound == last.bound:
        return False
    if bound * _URGENT <= last.bound:
        return True
    step = (_STEP if bound > last.bound else _STEP_DOWN) * last.bound
    is_far = abs(bound - last.bound) >= step or bound in {last.own_bound, rest}
    is_confirmed = last.higher_since_ms is None or now_ms - last.higher_since_ms >= _CONFIRM_MS
    return is_far and is_confirmed and _has_passed(last.at_ms, now_ms)


def _has_passed(at_ms: int | None, now_ms: int) -> bool:
    return at_ms is None or now_ms - at_ms >= _EVERY_MS


_UNNAMED: Final = "\x00any other name"
"""A name that no row has: Kafka's names cannot have a NUL, so neither can those of its clients."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A key that kquota wants to write and cannot.

    `broker`: it refused the write. `resolution`: an entry of its own would change another client's quota.
    """

    key: EntryKey
    by: Literal["broker", "resolution"]
    reason: str


MOST_OWN_PER_USER: Final = 100
"""The most own entries of one user. Clients can make up client-ids."""


class OwnGrants:
    """Which sensors of defaults have an entry of their own: as many of each user as may be, and none that does harm.

    Args:
        most_per_user: the most entries of one user. Sensors of a client-id alone count as those of one user.

    Attributes:
        granted: the entries.
        refused: the sensors whose entry would do harm.
        left_out: by user, how many of the sensors that asked last found no room.
    """

    def __init__(self, most_per_user: int = MOST_OWN_PER_USER) -> None:
        self._most_per_user = most_per_user
        self.load(QuotaSnapshot(0, ()))

    def load(self, snapshot: QuotaSnapshot) -> None:
        """Put other quotas in force, and forget all answers."""
        self._rows = {(quota.user, quota.client_id): quota for quota in snapshot.quotas if quota.mode != "shadow"}
        self._of_default_user = sorted(client_id for user, client_id in self._rows if user == DEFAULT and client_id)
        self.granted: dict[EntryKey, BrokerEntry] = {}
        self.refused: dict[EntryKey, Refusal] = {}
        self.left_out: Counter[str] = Counter()
        self._of_user: Counter[str] = Counter()

    def ask(self, keys: Iterable[EntryKey]) -> None:
        """Ask for these too, who should come first first.

        * `keys`: tags and quota type of each sensor, "" for a part that is no tag.
        """
        self.left_out = Counter()
        for key in keys:
            if key in self.granted or key in self.refused:
                continue
            if self._of_user[key.user] >= self._most_per_user:
                self.left_out[key.user] += 1
                continue
            bound = self._default_bound(key)
            reason = "no default bounds it" if bound is None else self._harm(key)
            if bound is None or reason:
                self.refused[key] = Refusal(key, "resolution", reason)
            else:
                self.granted[key] = BrokerEntry(key, bound, EntryKind.OWN)
                self._of_user[key.user] += 1

    def forget(self, keys: Iterable[EntryKey]) -> None:
        """These sensors need no entry any more."""
        for key in keys:
            if self.granted.pop(key, None) is not None:
                self._of_user[key.user] -= 1
                if not self._of_user[key.user]:
                    del self._of_user[key.user]
            self.refused.pop(key, None)

    def _default_bound(self, sensor: EntryKey) -> float | None:
        """T of a sensor, if it is a default's: the first row that its clients find is one of these tags."""
        user, client_id, quota_type = sensor
        if not client_id and self._row((user, DEFAULT), quota_type):
            return None  # every client of the user finds this row first
        kind = LevelKind.USER if not client_id else LevelKind.USER_CLIENT if user else LevelKind.CLIENT
        for level in Level:
            # A user's sensor has those of its clients that find no pair: what concerns the others is `_harmed`.
            if client_id or KIND_OF_LEVEL[level] is kind:
                row = self._row(entity_at(level, user or _UNNAMED, client_id), quota_type)
                if row is not None:
                    is_default = level in LEVELS_OF_DEFAULTS and KIND_OF_LEVEL[level] is kind
                    return row.bounds[QUOTA_TYPES.index(quota_type)] if is_default and row.mode != "exempt" else None
        return None

    def _harm(self, sensor: EntryKey) -> str:
        """What an entry would change, as a part of a sentence; "" for nothing.

        A client may find a row of the default user with a client-id now, and would find the entry of its user first.
        """
        user, client_id, quota_type = sensor
        if client_id:
            return ""
        for name in self._of_default_user:
            if self._row((DEFAULT, name), quota_type) and not self._row((user, name), quota_type):
                who = f"user '{user}', client-id '{'any other' if name == DEFAULT else name}'"
                return f"an entry of its own would change the quota of {who}"
        return ""

    def _row(self, entity: tuple[str, str], quota_type: str) -> Quota | None:
        """The row of an entity, if it counts for a type: an exempt one does for each."""
        row = self._rows.get(entity)
        if row is None or row.mode == "exempt":
            return row
        return None if row.bounds[QUOTA_TYPES.index(quota_type)] is None else row
