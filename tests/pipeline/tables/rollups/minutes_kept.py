"""Tables with usage and throttles by minute, quotas with owners, and the reports on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from pipeline.tables.address import table_uri
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from schemas.arrow import arrow_schema, conform
from schemas.throttle_record import ThrottleByMinuteRow
from schemas.usage import UsageByMinuteRow

MINUTE_MS = 60_000
MONDAY_MS = 1_795_392_000_000
"""2026-11-23T00:00:00 UTC."""


@dataclass(frozen=True)
class KeptMinutes:
    """A root with all tables."""

    root: str

    @classmethod
    def create(cls, folder: Path) -> "KeptMinutes":
        root = str(folder / "tables")
        create_missing(root)
        return cls(root)

    def quota(self, user: str, client_id: str = "", **values: Any) -> int:
        """Set a quota; the version it makes."""
        change = QuotaChange(user, client_id, values)
        return QuotaTable(self.root).alter([change], EditAudit("ops", "host", "0", "test"))

    def use(self, *rows: tuple[int, str, str], **columns: Any) -> None:
        """Append usage: (minute after `MONDAY_MS`, user, client-id), each with these columns."""
        used = [
            {
                "minute_start_ms": MONDAY_MS + minute * MINUTE_MS,
                "user": user,
                "client_id": client_id,
                "broker_id": "",
                "request_count": 1,
                "last_event_ms": MONDAY_MS + minute * MINUTE_MS,
            }
            | columns
            for minute, user, client_id in rows
        ]
        self._append("usage_by_minute", UsageByMinuteRow, used)

    def hold(self, *rows: tuple[int, str, str, int], **columns: Any) -> None:
        """Append time held: (minute after `MONDAY_MS`, user, client-id, ms), each with these columns."""
        empty = {"quota_type": "producer_byte_rate", "throttle_count": 0, "renewal_count": 0, "broker_id": ""}
        held = [
            {**empty, "minute_start_ms": MONDAY_MS + minute * MINUTE_MS, "user": user, "client_id": client_id}
            | {"held_ms": held_ms, **columns}
            for minute, user, client_id, held_ms in rows
        ]
        self._append("throttle_by_minute", ThrottleByMinuteRow, held)

    def _append(self, name: str, model: Any, rows: Sequence[dict[str, Any]]) -> None:
        schema = arrow_schema(model)
        table = pa.Table.from_pylist(list(rows), pa.schema([schema.field(column) for column in rows[0]]))
        write_deltalake(table_uri(self.root, name), conform(table, model, cluster="c1"), mode="append")
