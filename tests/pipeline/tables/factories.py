"""Tables for tests, and what is written to them."""

from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable, TenantTable
from pipeline.tables.quotas.tenants import USERS, new_tenant
from schemas.arrow import conform
from schemas.rows import DeadLetterRow
from schemas.usage import UsageRow
from tests.quota.factories import table

AUDIT: Final = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="#42: noisy neighbour")


def new_table(root: Path | str, name: str) -> str:
    """Make a table if it is missing; returns its address."""
    create_missing(str(root), [TABLES[name]])
    return table_uri(str(root), name)


def job_writer(root: Path | str, name: str, epoch: int = 1) -> DeltaRsWriter:
    """A job's writer of a table, which is made if it is missing."""
    writer = DeltaRsWriter(new_table(root, name), "job")
    writer.raise_epoch(epoch)
    return writer


def quota_table(root: Path | str) -> QuotaTable:
    """A table of quotas, made if it is missing."""
    new_table(root, "quotas")
    return QuotaTable(str(root))


def tenant_table(root: Path | str) -> TenantTable:
    """A table of tenants, made if it is missing."""
    new_table(root, "tenants")
    return TenantTable(str(root))


def tenant(name: str, rate: float | None, **values: Any) -> dict[str, Any]:
    """A row of tenants: all users whose names begin with the tenant's."""
    return {**new_tenant(name), USERS: (f"{name}-*",), "producer_byte_rate": rate, **values}


def bound(user: str, rate: float | None, **values: Any) -> QuotaChange:
    """An edit of a user's quota."""
    return QuotaChange(user, "", {"producer_byte_rate": rate, **values})


def edit_up_to(table: QuotaTable, version: int) -> None:
    """Edit alice's bound up to a version; each edit sets it to its version."""
    while (newest := table.read().version) < version:
        assert table.alter([bound("alice", newest + 1.0)], AUDIT) == newest + 1


def usage(*rows: dict[str, Any], **columns: Any) -> pa.Table:
    """Rows for the table of that name, of `usage_row`; all of them have these columns."""
    same: dict[str, Any] = {"cluster": "c", "query_id": "q", "batch_id": 0, "quota_version": 1, "request_count": 1}
    return conform(table(rows), UsageRow, **(same | columns))


def dead_letters(count: int = 1, offset: int = 0) -> pa.Table:
    """Rows for the table of that name."""
    rows = pa.table({"offset": range(offset, offset + count), "value": pa.array([b"{"] * count)})
    place: dict[str, Any] = {"topic": "quota.usage.v1", "partition": 0, "appended_at_ms": 1_700_000_000_000}
    return conform(rows, DeadLetterRow, cluster="c1", query_id="q1", batch_id=0, cause="no JSON", **place)
