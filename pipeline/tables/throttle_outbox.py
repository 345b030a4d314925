"""The outbox on a Delta table: `throttle_events`."""

from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.port import TableWriter
from pipeline.throttle.outbox import publish_app_id

_KEY = ["cluster", "broker_id", "user", "client_id"]


def last_throttles(events: pa.Table) -> pa.Table:
    """The last row of every client in rows of `throttle_events`, without those that are a release."""
    last = events.group_by(_KEY).aggregate([("publish_seq", "max")])["publish_seq_max"]
    newest = events.filter(pc.is_in(events["publish_seq"], value_set=last.combine_chunks()))
    return newest.filter(pc.field("action") == "throttle")


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
        """The highest `publish_seq` written, and of every client whose last row is a throttle, that row.

        Reads the last two days that have rows: a throttle that ended before them has long lapsed at its client.
        """
        days = pc.unique(self._table.read(["date"])["date"])
        recorded = self._table.recorded_version(self._app_id)
        highest = -1 if recorded is None else recorded
        if not len(days):
            return highest, self._table.read(None, [("publish_seq", "<", 0)])
        since = pc.max(days).as_py() - timedelta(days=1)
        rows = self._table.read(None, [("date", ">=", since)])
        return max(highest, pc.max(rows["publish_seq"]).as_py()), last_throttles(rows)
