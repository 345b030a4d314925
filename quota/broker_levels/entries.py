"""Which quotas the brokers themselves must hold, so that they enforce the quota table.

An *entry* is one value at one quota entity and type, the same on every broker.

* A row that names a user, a client-id or a pair has one sensor, whoever its clients are. In cluster scope its entry is
  the level (`quota.broker_levels.level_control`), from T / n to T.
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

**Entries of their own for sensors of a default.** Such an entry has the sensor's tags as its entity. But it can change
which quota holds for other clients. An entry of a user hides the rows of the default user with a client-id: a client of
that user that had one of these as its quota would fall under the new entry. So the project's own resolution is asked,
with and without the entries, about every client that an entry could concern. If the answer differs for any of them, in
sensor or bound, there is no entry, and the sensor is reported.

Which clients these are: a row is found by names, so clients with names that are in no row all get the same answer. It
is enough to ask about the client-ids in rows of the sensor's user and of the default user, and about one name that is
in none. An entry hides only rows of less specific levels, and those are of defaults: so an answer does not depend on
which other sensors have entries.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from quota.arrays import Floats
from quota.engine import QuotaEngine
from quota.entity import DEFAULT, LEVELS_OF_DEFAULTS, QUOTA_TYPES, REQUEST, Level, level_of
from quota.snapshot import Bounds, Quota, QuotaSnapshot

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
    """The rows that are not in shadow mode, with byte rates without the fraction, unless they are below 1."""
    enforced = (quota for quota in snapshot.quotas if quota.mode != "shadow")
    return replace(snapshot, quotas=tuple(replace(quota, bounds=_whole(quota.bounds)) for quota in enforced))


def _whole(bounds: Bounds) -> Bounds:
    produced, fetched = (rate if rate is None or rate < 1 else float(rate // 1) for rate in bounds[:REQUEST])
    return produced, fetched, bounds[REQUEST]


_UNNAMED: Final = "\x00any other name"
"""A name that no row has: Kafka's names cannot have a NUL, so neither can those of its clients."""

_Answer = tuple[str, str, float | None]
_Client = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Refused:
    """A sensor that gets no entry of its own, and a client that it would harm; None if no default bounds the sensor."""

    key: EntryKey
    client: _Client | None

    @property
    def reason(self) -> str:
        """Why, as a part of a sentence."""
        if self.client is None:
            return "no default bounds it"
        user, client_id = (name if name != _UNNAMED else "any other" for name in self.client)
        return f"an entry of its own would change the quota of user '{user}', client-id '{client_id}'"


def own_entries(
    snapshot: QuotaSnapshot, sensors: Sequence[EntryKey]
) -> tuple[tuple[BrokerEntry, ...], tuple[Refused, ...]]:
    """Which sensors of defaults can have an entry of their own, and which cannot, in their order.

    Args:
        snapshot: the quotas in force.
        sensors: tags and quota type of each, "" for a part that is no tag; each once. After an edit of the quotas pass
            those that have an entry too, as long as they need it: the edit can make it harmful.
    """
    users = {DEFAULT, "", *(sensor.user for sensor in sensors)}
    found = (quota for quota in snapshot.quotas if quota.mode != "shadow" and quota.user in users)
    enforced = replace(snapshot, quotas=tuple(found))
    names = _client_ids_by_user(enforced)
    probes = {sensor: _probes(names, sensor) for sensor in sensors}
    clients = sorted({client for of_sensor in probes.values() for client in of_sensor})
    before = _resolve(enforced, clients)
    bounds: dict[EntryKey, float] = {}
    refused: dict[EntryKey, Refused] = {}
    for sensor in sensors:
        level, bound = _holding(before, sensor, probes[sensor])
        if bound is None or level not in LEVELS_OF_DEFAULTS:
            refused[sensor] = Refused(sensor, None)
        else:
            bounds[sensor] = bound
    # An entry of a pair concerns that client only. It must not be what makes an entry of its user harmless: it may go.
    pairs = [sensor for sensor in bounds if sensor.user and sensor.client_id]
    others = [sensor for sensor in bounds if not (sensor.user and sensor.client_id)]
    for group in (pairs, others):
        after = _resolve(_with_rows(enforced, {sensor: bounds[sensor] for sensor in group}), clients)
        for sensor in group:
            harmed = (one for one in probes[sensor] if _answer(before, one, sensor) != _answer(after, one, sensor))
            client = next(harmed, None)
            if client is not None:
                refused[sensor] = Refused(sensor, client)
    granted = (BrokerEntry(sensor, bounds[sensor], EntryKind.OWN) for sensor in sensors if sensor not in refused)
    return tuple(granted), tuple(refused[sensor] for sensor in sensors if sensor in refused)


def _client_ids_by_user(snapshot: QuotaSnapshot) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for quota in snapshot.quotas:
        names.setdefault(quota.user, set()).add(quota.client_id)
    return names


def _probes(names: Mapping[str, set[str]], sensor: EntryKey) -> list[_Client]:
    if sensor.user and sensor.client_id:
        return [(sensor.user, sensor.client_id)]
    if sensor.user:
        named = {*names.get(sensor.user, ()), *names.get(DEFAULT, ())} - {DEFAULT}
        return [(sensor.user, name) for name in sorted({*named, "", _UNNAMED})]
    # An entry of a client-id hides the default client-id alone, which made the sensor.
    return [(_UNNAMED, sensor.client_id)]


_Resolved = dict[tuple[str, str, str], tuple[int | None, _Answer]]


def _resolve(snapshot: QuotaSnapshot, clients: Sequence[_Client]) -> _Resolved:
    engine = QuotaEngine()
    engine.load_quotas(snapshot)
    names = [pa.array([client[part] for client in clients], pa.string()) for part in (0, 1)]
    rows = engine.resolve(pa.table(names, ["user", "client_id"])).to_pylist()
    return {
        (row["user"], row["client_id"], row["quota_type"]): (
            row["level"],
            (row["sensor_user"], row["sensor_client_id"], row["bound"]),
        )
        for row in rows
    }


def _answer(resolved: _Resolved, client: _Client, sensor: EntryKey) -> _Answer:
    return resolved[(*client, sensor.quota_type)][1]


def _holding(resolved: _Resolved, sensor: EntryKey, clients: Sequence[_Client]) -> tuple[int | None, float | None]:
    """The level and the bound of the sensor, from a client that is in it."""
    for client in clients:
        level, (user, client_id, bound) = resolved[(*client, sensor.quota_type)]
        if (user, client_id) == (sensor.user, sensor.client_id):
            return level, bound
    return None, None


def _with_rows(snapshot: QuotaSnapshot, bounds: dict[EntryKey, float]) -> QuotaSnapshot:
    """The quotas with a bound at each of these keys. A row that is there for other types keeps them."""
    rows = {(quota.user, quota.client_id): quota for quota in snapshot.quotas}
    for (user, client_id, quota_type), bound in bounds.items():
        new = Quota(user, client_id, (None, None, None), "enforce", level_of(user, client_id))
        row, at = rows.get((user, client_id), new), QUOTA_TYPES.index(quota_type)
        first, second, third = (bound if position == at else old for position, old in enumerate(row.bounds))
        rows[user, client_id] = replace(row, bounds=(first, second, third))
    return replace(snapshot, quotas=tuple(rows.values()))


MOST_OWN_PER_USER: Final = 100
"""The most own entries of one user. Clients can make up client-ids."""


class OwnGrants:
    """Which sensors of defaults have an entry of their own: as many of each user as may be, and none that does harm.

    The answers of `own_entries` are kept until the quotas change, because asking is dear. An answer depends on no other
    entry, so only new sensors are asked for.

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
        self._snapshot = snapshot
        self.granted: dict[EntryKey, BrokerEntry] = {}
        self.refused: dict[EntryKey, Refused] = {}
        self.left_out: Counter[str] = Counter()
        self._of_user: Counter[str] = Counter()

    def ask(self, keys: Iterable[EntryKey], most: int | None = None) -> None:
        """Ask for these too, who should come first first; for at most so many new ones, and the others ask again."""
        taken, self.left_out = Counter(self._of_user), Counter()
        new = list[EntryKey]()
        for key in dict.fromkeys(keys):
            if key in self.granted or key in self.refused:
                continue
            if taken[key.user] >= self._most_per_user:
                self.left_out[key.user] += 1
            else:
                taken[key.user] += 1
                new.append(key)
        if not new:
            return
        granted, refused = own_entries(self._snapshot, new[:most])
        self.granted.update((entry.key, entry) for entry in granted)
        self._of_user.update(entry.key.user for entry in granted)
        self.refused.update((one.key, one) for one in refused)

    def forget(self, keys: Iterable[EntryKey]) -> None:
        """These sensors need no entry any more."""
        for key in keys:
            if self.granted.pop(key, None) is not None:
                self._of_user -= Counter([key.user])
            self.refused.pop(key, None)
