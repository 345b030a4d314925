"""A table `throttle_events` that tests fill with records, and the outbox that reads it."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.throttle.publisher import Outbox
from schemas.arrow import arrow_schema, conform
from schemas.throttle_record import ThrottleEventRow


class EventTable:
    """A table `throttle_events` and its outbox."""

    def __init__(self, root: Path, epoch: int = 1) -> None:
        self.root = str(root)
        create_missing(self.root, [TABLES["throttle_events"]])
        self.table = DeltaRsWriter(table_uri(self.root, "throttle_events"), "job")
        self.table.raise_epoch(epoch)
        self.outbox = Outbox(self.table, "job")
        self.seq = 0

    def write(self, *records: tuple[str | None, str, int, int], **columns: Any) -> None:
        """Append records (client-id, action, wall clock when written, throttle time) in one commit.

        Without a client-id they hold the user. They have the columns given.
        Without them the user is "u", any other text is empty and a number is 0.
        """
        filled: dict[str, Any] = {
            field.name: 0 if field.type == pa.int64() else 0.0 if field.type == pa.float64() else ""
            for field in arrow_schema(ThrottleEventRow)
            if not field.nullable and field.type in (pa.int64(), pa.float64(), pa.string())
        }
        rows = []
        for client_id, action, written_ms, throttle_time_ms in records:
            end_ms = written_ms + throttle_time_ms
            own = {"client_id": client_id, "action": action, "evaluated_at_ms": written_ms, "publish_seq": self.seq}
            times = {"throttle_time_ms": throttle_time_ms, "throttled_until_ms": end_ms}
            excepted: dict[str, Any] = {"except_client_ids": [] if client_id is None else None}
            rows.append(filled | excepted | {"user": "u"} | own | times | columns)
            self.seq += 1
        table = conform(pa.Table.from_pylist(rows), ThrottleEventRow, cluster="c", query_id="q")
        self.outbox.append(table, {"job:publish": self.seq - 1}, {})

    def running(self) -> tuple[int, list[str | None]]:
        highest, rows = self.outbox.newest()
        return highest, sorted(rows["client_id"].to_pylist(), key=str)
