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

What was on the brokers before kquota wrote there is put back when an entry goes: `values`.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from quota.entity import DEFAULT, QUOTA_TYPES, Level
from quota.snapshot import Quota, QuotaSnapshot

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
        kind: `level`: the value is L, from T / n to T; otherwise it is the bound.
    """

    user: str
    client_id: str
    quota_type: str
    bound: float
    kind: EntryKind

    @property
    def key(self) -> EntryKey:
        """Where the entry is."""
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


def values(
    entries: Iterable[BrokerEntry],
    levels: Mapping[EntryKey, float],
    owned: Mapping[EntryKey, float | None],
) -> dict[EntryKey, float | None]:
    """What the brokers must hold at each key that is kquota's, or becomes so.

    Args:
        entries: what the quota table asks for, with the entries of `quota.own_entries`.
        levels: L of the entries with a level. One that is not there is at T: so a clean stop can put T back.
        owned: the keys that kquota has written, each with the value that stood there before; None for nothing.

    Returns:
        The value of each key; None to remove it. A key that kquota owns and no longer needs gets back what stood there
        before.
    """
    wanted: dict[EntryKey, float | None] = dict(owned)
    for entry in entries:
        is_level = entry.kind is EntryKind.LEVEL
        wanted[entry.key] = levels.get(entry.key, entry.bound) if is_level else entry.bound
    return wanted


def writable_level(level: float, bound: float, quota_type: str) -> float:
    """A level as Kafka takes it: byte rates are whole numbers, rounded up, but never above T.

    Args:
        level: L, with T / n ≤ L ≤ T.
        bound: T.
        quota_type: `request_percentage` may be a fraction, and stays as it is.
    """
    if quota_type == "request_percentage":
        return level
    return min(float(-(-level // 1)), bound)
