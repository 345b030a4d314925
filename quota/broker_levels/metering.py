"""Metering by the brokers' own sensors: a quota that no client reaches, so that every client has a sensor.

A broker measures a client only under a quota, and the sensor's tags follow the level of that quota. A huge bound at
`<default>` user and `<default>` client-id gives every pair a sensor of its own; at `<default>` user every user has one.
But a quota hides those of less specific levels: at level 5 it would end the quotas of default users and of client-ids
alone (6 to 8). So per quota type the bound stands at the most specific level that hides no row, by pair of these three,
by user of the last two:

    5  <default> user, <default> client-id     sensors by user and client-id
    6  <default> user                          by user
    8  <default> client-id                     by client-id; nothing is less specific

Clients can make up client-ids, and each has sensors in a broker for an hour. The value of the bound says which of the
two was chosen, so that a sync keeps to it when it moves the bound.

>>> rows = [EntryKey("alice", "", "producer_byte_rate"), EntryKey("", "app", "consumer_byte_rate")]
>>> for entry in metering_entries(rows, dict.fromkeys(QUOTA_TYPES[:2], METERED)):
...     print(entry.key.quota_type, repr(entry.key.user), repr(entry.key.client_id), f"{entry.bound:g}")
producer_byte_rate '<default>' '<default>' 1e+15
consumer_byte_rate '' '<default>' 1e+15
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from quota.broker_levels.entries import (
    METERED,
    METERED_BY_USER,
    METERING_ENTITIES,
    BrokerEntry,
    EntryKey,
    EntryKind,
    is_metering,
)
from quota.broker_levels.writes import METERING, REMOVED, Change
from quota.entity import QUOTA_TYPES, level_of

_LEVELS: Final = {entity: level_of(*entity) for entity in METERING_ENTITIES}


def metering_entries(rows: Iterable[EntryKey], chosen: Mapping[str, float]) -> tuple[BrokerEntry, ...]:
    """The entries that make every client have a sensor, and hide no row.

    Args:
        rows: the keys of all other quotas, of the brokers and of the quota table.
        chosen: `METERED` or `METERED_BY_USER`, by quota type.

    Returns:
        At most one for each type, in their order. None where rows stand at each level that hides nothing: then they
        bound every client, so every client has a sensor.
    """
    by_type: dict[str, set[tuple[str, str]]] = {}
    for key in rows:
        by_type.setdefault(key.quota_type, set()).add((key.user, key.client_id))
    found = []
    for quota_type, bound in chosen.items():
        entities = by_type.get(quota_type, set())
        least_specific = max((level_of(*entity) for entity in entities), default=0)
        for entity in METERING_ENTITIES[1:] if bound == METERED_BY_USER else METERING_ENTITIES:
            if _LEVELS[entity] >= least_specific and entity not in entities:
                found.append(BrokerEntry(EntryKey(*entity, quota_type), bound, EntryKind.METERING))
                break
    return tuple(found)


def usual_choice(held: Mapping[EntryKey, float], names_client_ids: Collection[str]) -> dict[str, float]:
    """What is chosen unless somebody says otherwise: by user, where no quota of the type names a client-id.

    Args:
        held: what the brokers hold. Metering by pair that is on stays.
        names_client_ids: the quota types of which a row of the quota table names a client-id.
    """
    by_pair = {*names_client_ids}
    for key, value in held.items():
        if key.client_id and (value == METERED or not is_metering(key, value)):
            by_pair.add(key.quota_type)
    return {name: METERED if name in by_pair else METERED_BY_USER for name in QUOTA_TYPES}


def switched_on(
    held: Mapping[EntryKey, float], wanted: Collection[EntryKey], chosen: Mapping[str, float]
) -> list[Change]:
    """The writes that make every client have a sensor of each type; `wanted` are the keys of the quota table."""
    present = {key: value for key, value in held.items() if is_metering(key, value)}
    entries = metering_entries({*(held.keys() - present.keys()), *wanted}, chosen)
    right = {entry.key: entry.bound for entry in entries}
    gone = [_removed(key, present[key]) for key in sorted(present.keys() - right.keys())]
    return gone + [
        Change(key, present.get(key), bound, bound, EntryKind.METERING, {}, METERING, None)
        for key, bound in right.items()
        if present.get(key) != bound
    ]


def switched_off(held: Mapping[EntryKey, float]) -> list[Change]:
    """The writes that take away what `switched_on` has written."""
    return [_removed(key, held[key]) for key in sorted(held) if is_metering(key, held[key])]


def _removed(key: EntryKey, value: float) -> Change:
    return Change(key, value, None, None, None, {}, REMOVED, None)
