"""Entries of their own for sensors of a default that are over the bound on all brokers together.

The value of a default holds for many sensors, on every broker, so it cannot be lowered for one of them. That one can
get an entry of its own: its tags, as an entity. But an entry can change which quota holds for other clients. An entry
of a user hides the rows of the default user with a client-id: a client of that user that had one of these as its quota
would fall under the new entry. So the project's own resolution is asked, with and without the entries, about every
client that an entry could concern. If the answer differs for any of them, in sensor or bound, there is no entry, and
the sensor is reported.

Which clients these are: a row is found by names, so clients whose names are in no row all get the same answer. It is
enough to ask about the names of all rows, and about one name that is in none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from quota.broker_entries import BrokerEntry, EntryKey, EntryKind
from quota.engine import QuotaEngine
from quota.entity import DEFAULT, QUOTA_TYPES, Level, level_of
from quota.snapshot import Quota, QuotaSnapshot

_DEFAULTS: Final = frozenset(Level) - {Level.USER_CLIENT, Level.USER, Level.CLIENT}
_UNNAMED: Final = "\x00any other name"
"""A name that no row has: Kafka's names cannot have a NUL, so neither can those of its clients."""

_Answer = tuple[str, str, float | None]
_Client = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Refused:
    """A sensor that gets no entry of its own.

    Attributes:
        key: the entry that it would have been.
        client: a client whose quota the entry would change, (user, client-id); None if the sensor has no default's
            bound: it has a row of its own, or no quota.
    """

    key: EntryKey
    client: _Client | None

    @property
    def reason(self) -> str:
        """Why, as a part of a sentence."""
        if self.client is None:
            return "no default bounds it"
        user, client_id = (name if name != _UNNAMED else "any other" for name in self.client)
        return f"an entry of its own would change the quota of user '{user}', client-id '{client_id}'"


@dataclass(frozen=True, slots=True)
class OwnEntries:
    """The answer.

    Attributes:
        granted: the entries, in the order of the sensors.
        refused: the others, likewise.
    """

    granted: tuple[BrokerEntry, ...]
    refused: tuple[Refused, ...]


def own_entries(snapshot: QuotaSnapshot, sensors: Sequence[EntryKey]) -> OwnEntries:
    """Which sensors of defaults can have an entry of their own.

    Args:
        snapshot: the quotas in force.
        sensors: tags and quota type of each, "" for a part that is no tag; each once. Pass those that have an entry
            already too, as long as they need it: an edit of the quotas can make it harmful.
    """
    enforced = replace(snapshot, quotas=tuple(quota for quota in snapshot.quotas if quota.mode != "shadow"))
    probes = {sensor: _probes(enforced, sensor) for sensor in sensors}
    clients = sorted({client for of_sensor in probes.values() for client in of_sensor})
    before = _resolve(enforced, clients)
    bounds: dict[EntryKey, float] = {}
    refused: dict[EntryKey, Refused] = {}
    for sensor in sensors:
        level, bound = _holding(before, sensor, probes[sensor])
        if bound is None or level not in _DEFAULTS:
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
    return OwnEntries(
        tuple(BrokerEntry(*sensor, bounds[sensor], EntryKind.OWN) for sensor in sensors if sensor not in refused),
        tuple(refused[sensor] for sensor in sensors if sensor in refused),
    )


def _probes(snapshot: QuotaSnapshot, sensor: EntryKey) -> list[_Client]:
    """The clients that an entry with these tags could concern."""
    if sensor.user and sensor.client_id:
        return [(sensor.user, sensor.client_id)]
    if sensor.user:
        names = {quota.client_id for quota in snapshot.quotas} - {DEFAULT}
        return [(sensor.user, name) for name in sorted({*names, "", _UNNAMED})]
    names = {quota.user for quota in snapshot.quotas} - {DEFAULT, ""}
    return [(name, sensor.client_id) for name in sorted({*names, _UNNAMED})]


_Resolved = dict[tuple[str, str, str], tuple[int | None, _Answer]]


def _resolve(snapshot: QuotaSnapshot, clients: Sequence[_Client]) -> _Resolved:
    engine = QuotaEngine()
    engine.load_quotas(snapshot)
    users, client_ids = [client[0] for client in clients], [client[1] for client in clients]
    table = pa.table({"user": pa.array(users, pa.string()), "client_id": pa.array(client_ids, pa.string())})
    return {
        (row["user"], row["client_id"], row["quota_type"]): (
            row["level"],
            (row["sensor_user"], row["sensor_client_id"], row["bound"]),
        )
        for row in engine.resolve(table).to_pylist()
    }


def _answer(resolved: _Resolved, client: _Client, sensor: EntryKey) -> _Answer:
    return resolved[(*client, sensor.quota_type)][1]


def _holding(resolved: _Resolved, sensor: EntryKey, clients: Sequence[_Client]) -> tuple[int | None, float | None]:
    """The level and the bound of the sensor, from a client that is in it; nothing if none is."""
    for client in clients:
        level, (user, client_id, bound) = resolved[(*client, sensor.quota_type)]
        if (user, client_id) == (sensor.user, sensor.client_id):
            return level, bound
    return None, None


def _with_rows(snapshot: QuotaSnapshot, bounds: dict[EntryKey, float]) -> QuotaSnapshot:
    """The quotas with a bound at each of these keys. A row that is there for other types keeps them."""
    rows = {(quota.user, quota.client_id): quota for quota in snapshot.quotas}
    for (user, client_id, quota_type), bound in bounds.items():
        row = rows.get((user, client_id)) or Quota(
            user, client_id, (None, None, None), "enforce", level_of(user, client_id)
        )
        at = QUOTA_TYPES.index(quota_type)
        first, second, third = (bound if position == at else old for position, old in enumerate(row.bounds))
        rows[user, client_id] = replace(row, bounds=(first, second, third))
    return replace(snapshot, quotas=tuple(rows.values()))
