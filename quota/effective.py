"""What holds for one client: the rows at each of the eight levels, which of them match, and who shares its sensors."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES, Level, entity_at
from quota.snapshot import Quota, QuotaSnapshot

_SENSOR: Final = ("sensor_user", "sensor_client_id")


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level, for a client.

    Attributes:
        level: 1 is the most specific.
        user: user of the quota entity at this level, `<default>` and "" as in the table.
        client_id: client-id of the entity.
        quota: the row there is; None for none.
        matched: quota types that this row holds for.
    """

    level: Level
    user: str
    client_id: str
    quota: Quota | None
    matched: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """What holds for a client, for one quota type.

    Attributes:
        quota_type: the type.
        level: of the row that matches; None for none.
        bound: T; None without one, and for an exempt row.
        mode: of the row; None without one.
        sensor_user: user among the sensor's tags, "" = none.
        sensor_client_id: client-id among the sensor's tags.
        shared_with: other clients whose usage counts in the same sensor, as (user, client-id).
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
    """All that holds for a client: the eight levels in order, and each quota type."""

    levels: tuple[LevelRow, ...]
    held: tuple[Held, ...]


def effective(snapshot: QuotaSnapshot, user: str, client_id: str, others: pa.Table) -> Effective:
    """Resolve one client as the engine does, and the other clients beside it.

    Args:
        snapshot: the quotas.
        user: the client's user.
        client_id: its client-id; may be "".
        others: clients to look for its sensors among; columns user and client_id. The client itself may be in it.
    """
    engine = QuotaEngine()
    engine.load_quotas(snapshot)
    own = engine.resolve(pa.table({"user": [user], "client_id": [client_id]})).to_pylist()
    rest = engine.resolve(others.select(["user", "client_id"])).to_pylist()
    held = tuple(
        Held(
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
    return Effective(_levels(snapshot, user, client_id, held), held)


def _same_sensor(one: dict[str, object], other: dict[str, object]) -> bool:
    # Equal tags find equal rows, so both are in the enforced or both in the shadow resolution.
    return all(one[name] == other[name] for name in ("quota_type", *_SENSOR))


def _levels(snapshot: QuotaSnapshot, user: str, client_id: str, held: tuple[Held, ...]) -> tuple[LevelRow, ...]:
    rows = {(quota.user, quota.client_id): quota for quota in snapshot.quotas}
    found = []
    for level in Level:
        entity = entity_at(level, user, client_id)
        # Without a client-id there is nothing that a level could name.
        quota = rows.get(entity) if any(entity) and _is_named(level, client_id) else None
        matched = tuple(one.quota_type for one in held if one.level == level)
        found.append(LevelRow(level, *entity, quota, matched))
    return tuple(found)


def _is_named(level: Level, client_id: str) -> bool:
    """Whether a level that names the client-id has one to name."""
    return bool(client_id) or level not in {Level.USER_CLIENT, Level.DEFAULT_USER_CLIENT, Level.CLIENT}


def types_bounded(quota: Quota) -> dict[str, float]:
    """The bounds a row sets, by quota type."""
    return {name: bound for name, bound in zip(QUOTA_TYPES, quota.bounds, strict=True) if bound is not None}
