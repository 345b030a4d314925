"""The outbox on a Delta table: `throttle_events`."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from pipeline.tables.port import TableWriter
from pipeline.tables.throttles.last import last_throttles
from pipeline.throttle.outbox import publish_app_id
from schemas.throttle_record import written_ms

# While a job runs, it looks at each throttle when it ends. A throttle that had ended for this long when the last record
# was written is over.
_LONG_OVER_MS: Final = 86_400_000


class DeltaOutbox:
    """`pipeline.throttle.outbox.Outbox` on the guarded writer of `throttle_events`."""

    def __init__(self, table: TableWriter, job: str) -> None:
        self._table = table
        self._app_id = publish_app_id(job)

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Append rows in one commit. The whole commit is skipped if its guard is recorded already."""
        return self._table.append(rows, versions, metadata)

    def rows_from(self, publish_seq: int) -> pa.Table:
        """Stored rows with this `publish_seq` or a higher one, in its order."""
        return self._table.read(None, [("publish_seq", ">=", publish_seq)]).sort_by("publish_seq")

    def is_fenced(self) -> bool:
        """See `TableWriter.is_fenced`."""
        return self._table.is_fenced()

    def newest(self) -> tuple[int, pa.Table]:
        """See `Outbox`. Throttles that ended a day before the last record was written are left out: they are over."""
        recorded = self._table.recorded_version(self._app_id)
        stored = self._table.newest_value("publish_seq")
        if stored is None:
            return -1 if recorded is None else recorded, last_throttles(self._table, 0)
        (last,) = self._table.read(
            ["throttled_until_ms", "throttle_time_ms"], [("publish_seq", "=", stored)]
        ).to_pylist()
        highest = stored if recorded is None else max(recorded, stored)
        return highest, last_throttles(self._table, written_ms(last) - _LONG_OVER_MS)
