"""A Delta table `usage` that tests append batches to, as the job does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from schemas.arrow import conform
from schemas.usage import UsageRow


class UsageTable:
    """The table under a root, and its writer."""

    def __init__(self, root: Path | str) -> None:
        create_missing(str(root), [TABLES["usage"]])
        self.uri = table_uri(str(root), "usage")
        self._writer = DeltaRsWriter(self.uri, "job")
        self._writer.raise_epoch(1)
        self._batch_id = -1

    def append(self, at_ms: int, *rows: Mapping[str, Any], time_epoch: int = 0) -> None:
        """A batch that is evaluated at an instant. Columns that a row does not have are those of an idle client u/c."""
        self._batch_id += 1
        start_ms = at_ms // 1000 * 1000
        defaults = {
            "broker_id": "1",
            "user": "u",
            "client_id": "c",
            "sample_start_ms": start_ms,
            "last_event_ms": at_ms,
        }
        table = pa.Table.from_pylist([{**defaults, "request_count": 1, **row} for row in rows])
        about: dict[str, Any] = {"cluster": "c1", "query_id": "q", "batch_id": self._batch_id, "quota_version": 0}
        about["time_epoch"] = time_epoch
        self._writer.append(conform(table, UsageRow, evaluated_at_ms=at_ms, **about), {"q": self._batch_id}, {})
