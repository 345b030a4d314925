"""Tables for tests, and what is written to them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable, TenantTable
from pipeline.tables.quotas.tenants import USERS, new_tenant
from pipeline.throttle.publisher import Outbox
from schemas.arrow import arrow_schema, conform
from schemas.columns import PipelineRow
from schemas.rows import DeadLetterRow, RatesRow
from schemas.throttle_record import ThrottleEventRow
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


_ZEROS: Final = {pa.int64(): 0, pa.int32(): 0, pa.float64(): 0.0, pa.string(): "", pa.bool_(): False}


def filled(model: type[PipelineRow], **columns: Any) -> dict[str, Any]:
    """A row of a table. What is not given is 0, "" or false, or left out where it may be null."""
    needed = (one for one in arrow_schema(model) if not one.nullable and one.type in _ZEROS)
    return {one.name: _ZEROS[one.type] for one in needed} | columns


def write_rates(root: str, as_of_ms: int, rows: Sequence[Mapping[str, Any]], cluster: str) -> None:
    """Replace the table `rates`. All rows have the columns of the first one."""
    about: dict[str, Any] = {"cluster": cluster, "query_id": "q", "batch_id": 1, "time_epoch": 0, "as_of_ms": as_of_ms}
    table = conform(pa.Table.from_pylist(rows), RatesRow, **about)
    job_writer(root, "rates").replace(table, {"as_of_ms": str(as_of_ms)})


class EventTable:
    """A table `throttle_events` and its outbox."""

    def __init__(self, root: Path, epoch: int = 1) -> None:
        self.root, self.table = str(root), job_writer(root, "throttle_events", epoch)
        self.outbox = Outbox(self.table, "job")
        self.seq = 0

    def write(self, *records: tuple[str | None, str, int, int], **columns: Any) -> None:
        """Append records (client-id, action, wall clock when written, throttle time) in one commit.

        Without a client-id they hold the user. They have the columns given.
        Without them the user is "u", any other text is empty and a number is 0.
        """
        rows = []
        for client_id, action, written_ms, throttle_time_ms in records:
            end_ms = written_ms + throttle_time_ms
            own = {"client_id": client_id, "action": action, "evaluated_at_ms": written_ms, "publish_seq": self.seq}
            times = {"throttle_time_ms": throttle_time_ms, "throttled_until_ms": end_ms}
            excepted: dict[str, Any] = {"except_client_ids": [] if client_id is None else None}
            rows.append(filled(ThrottleEventRow, user="u") | excepted | own | times | columns)
            self.seq += 1
        table = conform(pa.Table.from_pylist(rows), ThrottleEventRow, cluster="c", query_id="q")
        self.outbox.append(table, {"job:publish": self.seq - 1}, {})

    def running(self) -> tuple[int, list[str | None]]:
        highest, rows = self.outbox.newest()
        return highest, sorted(rows["client_id"].to_pylist(), key=str)
