"""Which clients get another level, bound or mode under other quotas. Needs no clock, no usage and no sensors."""

from typing import Any, Final

import pyarrow as pa

from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot

_COMPARED: Final = ("level", "bound", "mode")


def standing_changes(clients: pa.Table, before: QuotaSnapshot, after: QuotaSnapshot) -> list[dict[str, Any]]:
    """Compare two versions of the quotas for the clients given.

    Args:
        clients: columns `user` and `client_id`, each pair once.
        before: the quotas in force.
        after: the quotas that are to be in force.

    Returns:
        One row per client and quota type that differs, in the order of the table: user, client_id, quota_type, and with
        the prefixes old_ and new_ level (1–8, None for no quota), bound (None for none) and mode (None, enforce,
        shadow, exempt).
    """
    entities = pa.table(
        {
            "broker_id": pa.array([""] * clients.num_rows, pa.string()),
            "user": clients["user"],
            "client_id": clients["client_id"],
        }
    )
    old, new = (_resolved(entities, quotas) for quotas in (before, after))
    return [
        {
            **{name: was[name] for name in ("user", "client_id", "quota_type")},
            **{f"{age}_{name}": row[name] for name in _COMPARED for age, row in (("old", was), ("new", now))},
        }
        for was, now in zip(old, new, strict=True)
        if any(was[name] != now[name] for name in _COMPARED)
    ]


def _resolved(entities: pa.Table, quotas: QuotaSnapshot) -> list[dict[str, Any]]:
    engine = QuotaEngine()
    engine.load_quotas(quotas)
    rows: list[dict[str, Any]] = engine.resolve(entities).to_pylist()
    return rows
