"""Stores usage that was counted elsewhere as the job stores it, in the table `usage`."""

from collections import defaultdict
from typing import Final

import pyarrow as pa

from pipeline.clock import wall_ms
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from schemas.arrow import conform
from schemas.usage_row import UsageRow

_JOB: Final = "bench"
_EVERY_MS: Final = 1_000


class UsageRecorder:
    """Turns counters into rows, one for each second, broker and user; a commit each second, as a batch.

    Args:
        root: of tables that exist.
    """

    def __init__(self, root: str) -> None:
        self._writer = DeltaRsWriter(table_uri(root, "usage"), _JOB)
        self._writer.raise_epoch(1)
        self._counters: dict[tuple[str, str], int] = {}
        self._rows: dict[tuple[int, str, str], int] = defaultdict(int)
        self._batch_id = 0
        self._due_ms = 0

    def saw(self, broker_id: str, user: str, total_bytes: int) -> None:
        """A broker has now taken so many bytes of a user in all."""
        more = total_bytes - self._counters.get((broker_id, user), 0)
        if more:
            self._counters[broker_id, user] = total_bytes
            self._rows[wall_ms() // 1_000 * 1_000, broker_id, user] += more

    def store(self) -> None:
        """Append what was seen since the last commit, if that is a second ago."""
        now_ms = wall_ms()
        if now_ms < self._due_ms or not self._rows:
            return
        self._due_ms = now_ms + _EVERY_MS
        starts_ms, broker_ids, users = zip(*self._rows, strict=True)
        rows = pa.table(
            {
                "sample_start_ms": list(starts_ms),
                "broker_id": list(broker_ids),
                "user": list(users),
                "produced_bytes": list(self._rows.values()),
                "last_event_ms": [min(start_ms + 999, now_ms) for start_ms in starts_ms],
            }
        )
        names = {"cluster": _JOB, "query_id": _JOB, "client_id": "split"}
        numbers = {"batch_id": self._batch_id, "evaluated_at_ms": now_ms, "quota_version": 1, "request_count": 1}
        rows = conform(rows, UsageRow, **names, **numbers)
        self._writer.append(rows, {f"{_JOB}-usage": self._batch_id}, {})
        self._batch_id += 1
        self._rows.clear()
