"""Which quotas apply to a client: the row at each of the eight levels, which match, and who shares its sensors.

The same question asked of two versions of the quotas says for which clients an edit changes anything.
"""

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES, Level, entity_at
from quota.snapshot import Quota, QuotaSnapshot

_SENSOR: Final = ("quota_type", "sensor_user", "sensor_client_id")
_COMPARED: Final = ("level", "bound", "mode")


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level, for a client.

    Attributes:
        level: 1 is the most specific.
        user: user of the client's quota entity at this level: a name, `<default>` or "", as in the table.
        client_id: client-id of that entity.
        quota: the row of that entity; None if there is none.
        matched: the quota types for which this row applies.
    """

    level: Level
    user: str
    client_id: str
    quota: Quota | None
    matched: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The row for people and programs: names, mode, bounds by quota type (None without a row) and matches."""
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
    """The quota of one type that applies to a client, and the sensor its usage goes to.

    Attributes:
        quota_type: the type.
        level: the level of the row that matches; None if none does.
        bound: T; None if there is none, and for an exempt row.
        mode: the mode of the row; None if no row matches.
        sensor_user: the user, if it is one of the sensor's tags, else "".
        sensor_client_id: the client-id, if it is one of the sensor's tags, else "".
        shared_with: the other clients whose usage goes to the same sensor, as (user, client-id), sorted.
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
    """The answer for a client.

    Attributes:
        levels: the eight levels, in order.
        by_type: one per quota type, in the order of `QUOTA_TYPES`.
    """

    levels: tuple[LevelRow, ...]
    by_type: tuple[EffectiveQuota, ...]


def effective(snapshot: QuotaSnapshot, user: str, client_id: str, others: pa.Table) -> Effective:
    """Resolve one client as the engine does, and find the clients that share its sensors.

    Args:
        snapshot: the quotas.
        user: the client's user.
        client_id: its client-id; may be "".
        others: the clients among which to look for such; columns user and client_id. May contain the client itself.
    """
    own = _resolved(pa.table({"user": [user], "client_id": [client_id]}), snapshot)
    rest = _resolved(others, snapshot)
    by_type = tuple(
        EffectiveQuota(
            quota_type=row["quota_type"],
            level=row["level"],
            bound=row["bound"],
            mode=row["mode"],
            sensor_user=row["sensor_user"],
            sensor_client_id=row["sensor_client_id"],
            shared_with=tuple(
                sorted(
                    (other["user"], other["client_id"])
                    for other in rest
                    if _same_sensor(row, other) and (other["user"], other["client_id"]) != (user, client_id)
                )
            ),
        )
        for row in own
    )
    return Effective(_levels(snapshot, user, client_id, by_type), by_type)


def _resolved(clients: pa.Table, quotas: QuotaSnapshot) -> list[dict[str, Any]]:
    """One row per client and quota type, as `QuotaEngine.resolve` returns them."""
    engine = QuotaEngine()
    engine.load_quotas(quotas)
    rows: list[dict[str, Any]] = engine.resolve(clients.select(["user", "client_id"])).to_pylist()
    return rows


def _same_sensor(one: dict[str, object], other: dict[str, object]) -> bool:
    # Equal tags find equal rows. So both answers are from the enforced side, or both from the shadow side.
    return all(one[name] == other[name] for name in _SENSOR)


def _levels(
    snapshot: QuotaSnapshot, user: str, client_id: str, by_type: tuple[EffectiveQuota, ...]
) -> tuple[LevelRow, ...]:
    rows = {(quota.user, quota.client_id): quota for quota in snapshot.quotas}
    found = []
    for level in Level:
        entity = entity_at(level, user, client_id)
        # An empty client-id has no name that a level could have.
        quota = rows.get(entity) if any(entity) and _is_named(level, client_id) else None
        matched = tuple(one.quota_type for one in by_type if one.level == level)
        found.append(LevelRow(level, *entity, quota, matched))
    return tuple(found)


def _is_named(level: Level, client_id: str) -> bool:
    """False for a level that names the client-id, if the client-id is empty."""
    return bool(client_id) or level not in {Level.USER_CLIENT, Level.DEFAULT_USER_CLIENT, Level.CLIENT}


def types_bounded(quota: Quota) -> dict[str, float]:
    """The bounds of a row, by quota type; only those that are set."""
    return {name: bound for name, bound in zip(QUOTA_TYPES, quota.bounds, strict=True) if bound is not None}


def standing_changes(clients: pa.Table, before: QuotaSnapshot, after: QuotaSnapshot) -> list[dict[str, Any]]:
    """Which of these clients get another level, bound or mode under other quotas. Needs no usage.

    Args:
        clients: columns `user` and `client_id`, each pair once.
        before: the quotas in force.
        after: the quotas that are to be in force.

    Returns:
        One row per client and quota type that differs, in the order of the table: user, client_id, quota_type, and with
        the prefixes old_ and new_ level (1–8, None for no quota), bound (None for none) and mode (None, enforce,
        shadow, exempt).
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
