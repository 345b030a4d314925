"""Which quotas apply to a client: the row at each of the eight levels, which match, and who shares its sensors.

The same question about two versions of the quotas shows for which clients an edit changes anything.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES, Level, can_name, entity_at
from quota.snapshot import Quota, QuotaSnapshot

_SENSOR: Final = ("quota_type", "sensor_user", "sensor_client_id")
_COMPARED: Final = ("level", "bound", "mode")


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level, for a client: its quota entity there, the row of that entity, and the types it applies for."""

    level: Level
    user: str
    client_id: str
    quota: Quota | None
    matched: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The row for people and programs; mode and bounds are None without a row."""
        return {
            "level": int(self.level),
            "user": self.user,
            "client_id": self.client_id,
            "mode": self.quota.mode if self.quota else None,
            "bounds": types_bounded(self.quota) if self.quota else None,
            "matches": list(self.matched),
        }


@dataclass(frozen=True, slots=True)
class EffectiveQuota:
    """The quota of one type that applies to a client; level and mode None if no row matches, T also for an exempt row.

    `shared_with` are the other clients whose usage goes to the same sensor, as (user, client-id), sorted.
    """

    quota_type: str
    level: int | None
    bound: float | None
    mode: str | None
    sensor_user: str
    sensor_client_id: str
    shared_with: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Effective:
    """The answer for a client: the eight levels, and one quota per type in the order of `QUOTA_TYPES`."""

    levels: tuple[LevelRow, ...]
    by_type: tuple[EffectiveQuota, ...]


def effective(snapshot: QuotaSnapshot, user: str, client_id: str, others: pa.Table) -> Effective:
    """Resolve one client as the engine does, and find those of others (user, client_id) that share its sensors."""
    own = _resolved(pa.table({"user": [user], "client_id": [client_id]}), snapshot)
    # Equal tags find equal rows. So the answers are either all from the enforced side, or all from the shadow side.
    sharing: defaultdict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
    for row in _resolved(others, snapshot):
        sharing[_sensor_of(row)].add((row["user"], row["client_id"]))
    by_type = tuple(
        EffectiveQuota(
            **{name: row[name] for name in ("level", "bound", "mode", *_SENSOR)},
            shared_with=tuple(sorted(sharing[_sensor_of(row)] - {(user, client_id)})),
        )
        for row in own
    )
    return Effective(_levels(snapshot, user, client_id, by_type), by_type)


def _resolved(clients: pa.Table, quotas: QuotaSnapshot) -> list[dict[str, Any]]:
    engine = QuotaEngine()
    engine.load_quotas(quotas)
    rows: list[dict[str, Any]] = engine.resolve(clients.select(["user", "client_id"])).to_pylist()
    return rows


def _sensor_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in _SENSOR)


def _levels(
    snapshot: QuotaSnapshot, user: str, client_id: str, by_type: tuple[EffectiveQuota, ...]
) -> tuple[LevelRow, ...]:
    rows = {(quota.user, quota.client_id): quota for quota in snapshot.quotas}
    found = []
    for level in Level:
        entity = entity_at(level, user, client_id)
        quota = rows.get(entity) if any(entity) and can_name(level, client_id) else None
        matched = tuple(one.quota_type for one in by_type if one.level == level)
        found.append(LevelRow(level, *entity, quota, matched))
    return tuple(found)


def types_bounded(quota: Quota) -> dict[str, float]:
    """The bounds of a row, by quota type; only those that are set."""
    return {name: bound for name, bound in zip(QUOTA_TYPES, quota.bounds, strict=True) if bound is not None}


def standing_changes(clients: pa.Table, before: QuotaSnapshot, after: QuotaSnapshot) -> list[dict[str, Any]]:
    """The clients (user, client_id) and types that get another level, bound or mode under other quotas, in their order.

    With the prefixes old_ and new_ the rows have these as `QuotaEngine.resolve` has them.
    """
    old, new = (_resolved(clients, quotas) for quotas in (before, after))
    return [
        {
            **{name: was[name] for name in ("user", "client_id", "quota_type")},
            **{f"{age}_{name}": row[name] for name in _COMPARED for age, row in (("old", was), ("new", now))},
        }
        for was, now in zip(old, new, strict=True)
        if any(was[name] != now[name] for name in _COMPARED)
    ]
