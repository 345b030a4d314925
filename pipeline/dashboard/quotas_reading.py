"""What the view Quotas shows: every row with how near it is to its bound, and the history of the table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pipeline.dashboard.live_rates import SensorRate
from pipeline.dashboard.query import Query
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.state import State
from pipeline.tables.quotas.diff import entity_texts
from pipeline.tables.quotas.history import QuotaVersion, versions
from pipeline.tables.quotas.table import QuotaTable
from quota.entity import QUOTA_TYPES, label, level_of

_VERSIONS: Final = 30


def quotas_document(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """The view Quotas."""
    table = QuotaTable(reader.root).read()
    wanted = [row for row in table.rows if _is_wanted(row, query)]
    nearest = nearest_sensors(state.sensors)
    shown = [quota_row(row, nearest) for row in wanted]
    shown.sort(key=lambda row: (-max((one["used"] for one in row["bounds"].values()), default=0), row["level"]))
    # Of these rows, which may be newer than what was seen at the last look: an edit of them names it.
    told = {"version": table.version, "rows": shown[: query.limit], "total": len(wanted), "all": len(table.rows)}
    return {**state.head(), **told}


def quota_history(reader: TablesReader, query: Query) -> dict[str, Any]:
    """The newest versions of the quota table, newest first."""
    table = QuotaTable(reader.root)
    return {"versions": [version_row(one) for one in versions(table, min(query.limit, _VERSIONS))]}


def nearest_sensors(sensors: Iterable[SensorRate]) -> dict[tuple[str, str, str], SensorRate]:
    """Of each bound, by entity and quota type, the sensor that is nearest to it."""
    found: dict[tuple[str, str, str], SensorRate] = {}
    for one in sensors:
        found.setdefault((*one.entity, one.quota_type), one)
    return found


def quota_row(row: Mapping[str, Any], nearest: Mapping[tuple[str, str, str], SensorRate]) -> dict[str, Any]:
    """A row of the quota table, each bound beside the rate that is nearest to it."""
    entity = row["user"], row["client_id"]
    bounds = {}
    for name in QUOTA_TYPES:
        if row[name] is not None:
            rate = nearest.get((*entity, name))
            bounds[name] = {
                "bound": row[name],
                "observed": None if rate is None else rate.observed,
                "used": 0.0 if rate is None else rate.observed / row[name],
                "user": None if rate is None else rate.user,
                "client_id": None if rate is None else rate.client_id,
            }
    return {
        "user": row["user"],
        "client_id": row["client_id"],
        "entity": label(*entity),
        "level": int(level_of(*entity)),
        "mode": row["mode"],
        "owner": row["owner"],
        "note": row["note"],
        "bounds": bounds,
    }


def version_row(version: QuotaVersion) -> dict[str, Any]:
    """A version: who, when, why, and what it changed."""
    audit = version.commit.audit
    changes: Sequence[Mapping[str, Any]] = [change.as_row() for change in version.changes[:50]]
    return {
        "version": version.commit.version,
        "committed_at_ms": int(version.commit.committed_at.timestamp() * 1_000),
        "operation": version.commit.operation,
        "actor": getattr(audit, "actor", None),
        "host": getattr(audit, "host", None),
        "reason": getattr(audit, "reason", None),
        "mode": list(version.mode),
        "changes": changes,
        "texts": entity_texts(version.changes[:50]),
        "more": max(len(version.changes) - 50, 0),
    }


def _is_wanted(row: Mapping[str, Any], query: Query) -> bool:
    for name, value in (("user", query.user), ("client_id", query.client_id), ("owner", query.owner)):
        if value is not None and row[name] != value:
            return False
    if not query.search:
        return True
    text = " ".join(str(row[name] or "") for name in ("user", "client_id", "owner", "note", "mode")).casefold()
    return query.search.casefold() in text
