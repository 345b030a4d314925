"""Which quotas the brokers themselves must hold, so that they enforce what the quota table says.

An *entry* is one value at one quota entity and type, the same on every broker.

* A row that names a user, a client-id or a pair has one sensor, whoever its clients are. In cluster scope its entry is
  the level (`quota.level_control`), from T / n to T.
* A row of a default has as many sensors as there are clients without a row of their own. They all stand under one
  value, so it stays at T. See `quota.own_entries` for one of them that is over T on all brokers together.
* In broker scope (mirror mode) every entry is T.
* A shadow row has no entry. In shadow mode, of the whole table, there are no entries.
* Kafka has no exempt rows. An exempt row needs an entry only where a less specific row would hold without it; then it
  is a bound that nobody reaches.

What was on the brokers before kquota wrote there is put back when an entry goes: `quota.broker_sync`.

>>> rows = [
...     {"user": "alice", "client_id": "", "producer_byte_rate": 3e6},
...     {"user": "<default>", "client_id": "", "producer_byte_rate": 1e6},
...     {"user": "bob", "client_id": "", "mode": "exempt"},
... ]
>>> for entry in broker_entries(QuotaSnapshot.from_rows(rows, version=1)):
...     print(entry.user, entry.quota_type, f"{entry.bound:g}", entry.kind)
alice producer_byte_rate 3e+06 level
<default> producer_byte_rate 1e+06 bound
bob producer_byte_rate 1e+18 unbounded
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from quota.broker_level import Floats
from quota.entity import DEFAULT, QUOTA_TYPES, Level
from quota.snapshot import Bounds, Quota, QuotaSnapshot

UNREACHED: Final = 1e18
"""The bound of an exempt row, bytes per second or percent: the largest power of ten that Kafka takes for a LONG."""


class EntryKey(NamedTuple):
    """One value on the brokers: the entity as in the quota table, and the quota type."""

    user: str
    client_id: str
    quota_type: str


class EntryKind(StrEnum):
    """What the value of an entry is."""

    LEVEL = "level"
    OWN = "own"
    BOUND = "bound"
    UNBOUNDED = "unbounded"


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """An entry that the brokers must hold.

    Attributes:
        user: name, `<default>` or "".
        client_id: likewise.
        quota_type: the type.
        bound: T; `UNREACHED` for an exempt row.
        kind: `level`: the value is L, from T / n to T; `own`: likewise, for a sensor of a default; otherwise it is the
            bound.
    """

    user: str
    client_id: str
    quota_type: str
    bound: float
    kind: EntryKind

    @property
    def key(self) -> EntryKey:
        """The place of the entry."""
        return EntryKey(self.user, self.client_id, self.quota_type)


def broker_entries(snapshot: QuotaSnapshot, mirror: bool = False) -> tuple[BrokerEntry, ...]:
    """The entries of a quota table, in the order of its rows and of `QUOTA_TYPES`.

    Args:
        snapshot: the quotas. In shadow mode, read with `mode="shadow"`, it has no entries.
        mirror: True for broker scope: every named row at T too.
    """
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
            yield BrokerEntry(quota.user, quota.client_id, name, bound, kind)


def _exemptions(quota: Quota, least_specific: Sequence[Level | None]) -> Iterable[BrokerEntry]:
    for name, level in zip(QUOTA_TYPES, least_specific, strict=True):
        if level is not None and level > quota.level:
            yield BrokerEntry(quota.user, quota.client_id, name, UNREACHED, EntryKind.UNBOUNDED)


def writable_levels(level: Floats, bound: Floats, quota_type: str) -> Floats:
    """Levels as Kafka takes them: byte rates are whole numbers, rounded up, but never above T.

    Args:
        level: L, with T / n ≤ L ≤ T, float64[m].
        bound: T, float64[m].
        quota_type: `request_percentage` may be a fraction, and stays as it is.
    """
    return level if quota_type == "request_percentage" else np.minimum(np.ceil(level), bound)


def as_brokers_take(snapshot: QuotaSnapshot) -> QuotaSnapshot:
    """The rows that are not in shadow mode, with bounds as brokers take them: byte rates without the fraction.

    A byte rate below 1 stays as it is. The brokers will refuse it.
    """
    enforced = (quota for quota in snapshot.quotas if quota.mode != "shadow")
    return replace(snapshot, quotas=tuple(replace(quota, bounds=_whole(quota.bounds)) for quota in enforced))


def _whole(bounds: Bounds) -> Bounds:
    produced, fetched, percentage = bounds
    return _whole_rate(produced), _whole_rate(fetched), percentage


def _whole_rate(bound: float | None) -> float | None:
    return bound if bound is None or bound < 1 else float(bound // 1)
