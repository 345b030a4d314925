"""Metering by the brokers' own sensors: a quota that no client reaches, so that every client has a sensor.

A broker measures a client only under a quota, and the sensor's tags follow the level of that quota. A huge bound at
`<default>` user and `<default>` client-id gives every pair a sensor of its own. But a quota hides those of less
specific levels: at that level, 5, it would end the quotas of default users and of client-ids alone (6 to 8). So per
quota type the bound stands at the most specific of three levels that hides no row:

    5  <default> user, <default> client-id     sensors by user and client-id
    6  <default> user                          by user
    8  <default> client-id                     by client-id; nothing is less specific

>>> rows = [EntryKey("alice", "", "producer_byte_rate"), EntryKey("", "app", "consumer_byte_rate")]
>>> for entry in metering_entries(rows, QUOTA_TYPES[:2]):
...     print(entry.key.quota_type, repr(entry.key.user), repr(entry.key.client_id), f"{entry.bound:g}")
producer_byte_rate '<default>' '<default>' 1e+15
consumer_byte_rate '' '<default>' 1e+15
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from quota.broker_levels.entries import METERED, METERING_ENTITIES, BrokerEntry, EntryKey, EntryKind, is_metering
from quota.broker_levels.writes import METERING, REMOVED, Change
from quota.entity import QUOTA_TYPES, level_of

_LEVELS: Final = {entity: level_of(*entity) for entity in METERING_ENTITIES}


def metering_entries(rows: Iterable[EntryKey], quota_types: Iterable[str]) -> tuple[BrokerEntry, ...]:
    """The entries that make every client have a sensor, and hide no row.

    Args:
        rows: the keys of all other quotas, of the brokers and of the quota table.

    Returns:
        At most one for each type, in their order. None where rows stand at each level that hides nothing: then they
        bound every client, so every client has a sensor.
    """
    by_type: dict[str, set[tuple[str, str]]] = {}
    for key in rows:
        by_type.setdefault(key.quota_type, set()).add((key.user, key.client_id))
    found = []
    for quota_type in quota_types:
        entities = by_type.get(quota_type, set())
        least_specific = max((level_of(*entity) for entity in entities), default=0)
        for entity, level in _LEVELS.items():
            if level >= least_specific and entity not in entities:
                found.append(BrokerEntry(EntryKey(*entity, quota_type), METERED, EntryKind.METERING))
                break
    return tuple(found)


def switched_on(held: Mapping[EntryKey, float], wanted: Collection[EntryKey]) -> list[Change]:
    """The writes that make every client have a sensor of each type; `wanted` are the keys of the quota table."""
    present = {key for key, value in held.items() if is_metering(key, value)}
    entries = metering_entries({*(held.keys() - present), *wanted}, QUOTA_TYPES)
    right = {entry.key for entry in entries}
    gone = [_removed(key) for key in sorted(present - right)]
    return gone + [
        Change(entry.key, None, METERED, METERED, EntryKind.METERING, {}, METERING, None)
        for entry in entries
        if entry.key not in present
    ]


def switched_off(held: Mapping[EntryKey, float]) -> list[Change]:
    """The writes that take away what `switched_on` has written."""
    return [_removed(key) for key in sorted(held) if is_metering(key, held[key])]


def _removed(key: EntryKey) -> Change:
    return Change(key, METERED, None, None, None, {}, REMOVED, None)
