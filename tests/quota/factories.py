"""Usage tables and quota rows for tests; each column is a keyword."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from quota.tenants import read_tenants

Rows = Sequence[Mapping[str, Any]]

SCHEMA = pa.schema(
    {
        "sample_start_ms": pa.int64(),
        "broker_id": pa.string(),
        "user": pa.string(),
        "client_id": pa.string(),
        "produced_bytes": pa.int64(),
        "fetched_bytes": pa.int64(),
        "io_time_ns": pa.int64(),
        "network_time_ns": pa.int64(),
        "last_event_ms": pa.int64(),
        "in_gap": pa.bool_(),
        "broker_throttle_ms": pa.int64(),
    }
)


def usage_row(at_ms: int, sample_window_ms: int = 1000, **columns: Any) -> dict[str, Any]:
    """A usage row of user u with client-id c. What is not given was not used."""
    defaults = {"broker_id": "", "user": "u", "client_id": "c"}
    start = at_ms // sample_window_ms * sample_window_ms
    return {**defaults, "sample_start_ms": start, "last_event_ms": at_ms, **columns}


def table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as a usage table. A column that is not given is null; no row is of a gap unless it says so."""
    return pa.Table.from_pylist([{"in_gap": False, **row} for row in rows], SCHEMA)


def quota_row(user: str = "u", client_id: str = "", **columns: Any) -> dict[str, Any]:
    """A row of the quota table."""
    return {"user": user, "client_id": client_id, **columns}


def snapshot(
    rows: Rows, tenants: Rows = (), version: int = 1, mode: Literal["enforce", "shadow"] = "enforce"
) -> QuotaSnapshot:
    """Both tables at this version."""
    found = QuotaSnapshot.from_rows(rows, version, mode)
    return replace(found, tenants=read_tenants(tenants, version, mode), tenants_version=version)


def loaded(*rows: dict[str, Any], tenants: Rows = (), **settings: Any) -> QuotaEngine:
    """An engine that has loaded these quotas."""
    engine = QuotaEngine(**settings)
    engine.load_quotas(snapshot(rows, tenants))
    return engine


def decide(engine: QuotaEngine, at_ms: int, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Record one batch and return the decisions as rows."""
    decisions: list[dict[str, Any]] = engine.record(table(rows), at_ms).to_pylist()
    return decisions


def owed(engine: QuotaEngine, at_ms: int, quota_type: str = "producer_byte_rate") -> dict[str, Any]:
    """What user u with client-id c owes."""
    rows = engine.evaluate(table([usage_row(at_ms)]), at_ms).to_pylist()
    return next(row for row in rows if row["quota_type"] == quota_type)
