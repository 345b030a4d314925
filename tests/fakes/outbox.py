"""An outbox in memory."""

from collections.abc import Mapping
from typing import Literal
from uuid import uuid4

import pyarrow as pa

from pipeline.throttle.publisher import Outbox
from schemas.arrow import arrow_schema
from schemas.throttle_record import Target, ThrottleEventRow


class MemoryOutbox(Outbox):
    """Keeps rows and versions. What a table does in one commit is one call here."""

    table_id = ""

    def __init__(self) -> None:
        self.table_id = uuid4().hex
        self.rows: list[dict[str, object]] = []
        self.versions: dict[str, int] = {}
        self.is_taken_over = False
        self.fail_next: Literal["lost", "late"] | None = None
        """How the next append raises: with nothing stored, or with everything stored."""

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        del metadata
        guard = next(iter(versions))
        if self.versions.get(guard, -1) >= versions[guard]:
            return False
        failure, self.fail_next = self.fail_next, None
        if failure != "lost":
            self.rows += rows.to_pylist()
            self.versions.update(versions)
        if failure:
            detail = "the disk does not answer"
            raise OSError(detail)
        return True

    def rows_from(self, publish_seq: int) -> pa.Table:
        return self._of_rows([row for row in self.rows if int(str(row["publish_seq"])) >= publish_seq])

    def is_fenced(self) -> bool:
        return self.is_taken_over

    def newest(self) -> tuple[int, pa.Table]:
        last: dict[Target, dict[str, object]] = {}
        for row in self.rows:
            last[Target.of(row)] = row
        highest = int(str(self.rows[-1]["publish_seq"])) if self.rows else -1
        return highest, self._of_rows([row for row in last.values() if row["action"] == "throttle"])

    @staticmethod
    def _of_rows(rows: list[dict[str, object]]) -> pa.Table:
        return pa.Table.from_pylist(rows, schema=arrow_schema(ThrottleEventRow))
