"""An outbox in memory."""

from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from pipeline.throttle.publisher import Outbox
from schemas.arrow import arrow_schema
from schemas.throttle_record import ThrottleEventRow
from tests.fakes.table import MemoryTable, MemoryWriter


class MemoryOutbox(Outbox):
    """The outbox itself, over a table in memory. Its next append may raise: with nothing stored, or everything."""

    def __init__(self, job: str = "kquota") -> None:
        self.table = MemoryTable("throttle_events", arrow_schema(ThrottleEventRow).empty_table())
        self.fail_next: Literal["lost", "late"] | None = None
        writer = MemoryWriter(self.table, job)
        writer.raise_epoch(1)
        super().__init__(writer, job)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.table.rows.to_pylist()  # type: ignore[no-any-return]

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        failure, self.fail_next = self.fail_next, None
        is_new = failure != "lost" and super().append(rows, versions, metadata)
        if failure:
            detail = "the disk does not answer"
            raise OSError(detail)
        return is_new
