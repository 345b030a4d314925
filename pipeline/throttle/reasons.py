"""From the engine's answers to the reason a client must wait."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.throttle.held import FIGURES, SENSOR, Reason
from quota.entity import TIE_RANK
from schemas.client_key import ClientKey


def entities_of(keys: Sequence[ClientKey]) -> pa.Table:
    """Clients as the engine's `entities` table: broker_id, user, client_id, all strings, in the order given."""
    names = zip(*keys, strict=True) if keys else ((), (), ())
    return pa.table(
        {column: pa.array(values, pa.string()) for column, values in zip(ClientKey._fields, names, strict=True)}
    )


def largest_claims(owed: pa.Table, preferred: Mapping[ClientKey, str]) -> dict[ClientKey, dict[str, Any]]:
    """Of each client the row of the quota type that asks for the longest wait.

    Args:
        owed: Answer of `QuotaEngine.evaluate`: three rows per entity.
        preferred: The quota type to name where several ask for the same wait (also: for none), per client.
    """
    claims: dict[ClientKey, dict[str, Any]] = {}
    ranks: dict[ClientKey, tuple[int, bool, int]] = {}
    for row in owed.to_pylist():
        key = ClientKey(row["broker_id"], row["user"], row["client_id"])
        quota_type = row["quota_type"]
        rank = (row["owed_ms"], quota_type == preferred[key], -TIE_RANK[quota_type])
        if key not in ranks or rank > ranks[key]:
            ranks[key], claims[key] = rank, row
    return claims


def reason_of(figures: Mapping[str, Any], sensor: Mapping[str, Any]) -> Reason:
    """A reason from the figures of `evaluate` and the sensor of `resolve` (or of a decision, or of a stored row)."""
    values: dict[str, Any] = {name: figures[name] for name in FIGURES if name not in SENSOR}
    values |= {name: sensor[name] or "" for name in SENSOR}
    return Reason(**values, level=sensor["level"])


def sensor_of(reason: Reason) -> dict[str, Any]:
    """The sensor of a reason, as `reason_of` takes it."""
    return {name: getattr(reason, name) for name in (*SENSOR, "level")}
