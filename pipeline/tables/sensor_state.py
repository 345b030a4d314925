"""Snapshots of the token buckets, so that a restart replays at most about a minute of usage."""

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import Moment
from pipeline.failpoints import failpoint
from pipeline.tables.port import TableWriter
from pipeline.tables.reading.newest_batch import newest_rows
from pipeline.throttle.decider import Decider
from quota.evaluation import Evaluation
from quota.replay import with_time_epoch
from schemas.arrow import conform
from schemas.rows import SensorStateRow

# A snapshot without any bucket needs a row too, or an older snapshot would be taken for the newest. This row is for the
# sensor without parts: it stands for clients without a quota, so it never has a bucket.
_PLACEHOLDER = {
    "broker_id": "",
    "sensor_user": "",
    "sensor_client_id": "",
    "quota_type": "producer_byte_rate",
    "tokens": 0.0,
}


class SensorStateTable:
    """Writes and reads the `sensor_state` table.

    Args:
        table: Guarded writer of the table.
        cluster: The cluster, written to every row.
        interval_ms: The least steady time between two snapshots.
    """

    def __init__(self, table: TableWriter, cluster: str, interval_ms: int) -> None:
        self._table = table
        self._cluster = cluster
        self._interval_ms = interval_ms
        self._written_at_ms: int | None = None

    def write_if_due(self, decider: Decider, now: Moment) -> bool:
        """Write the buckets as they are after the last batch, if the interval has passed. True if it wrote them.

        Call it at the start of a batch, before the batch changes any bucket. The id of the last batch guards the rows,
        so a snapshot that is stored already is skipped.

        The engine continues from what was written. A bucket that has become full again still has its last refill time.
        Because of that time, a lower bound or late usage changes it in another way than a new bucket. The snapshot does
        not have full buckets. So the engine forgets them here as well; otherwise it would decide differently from an
        engine after a restart. If the snapshot is skipped, the engine keeps its buckets: it has begun with the stored
        snapshot, and a bucket that is full now may not have been full under the bounds of that time.
        """
        last = decider.last
        if last.batch_id < 0:
            return False
        # The first batch of a driver writes a snapshot at once. Otherwise drivers that live for less than an interval
        # would leave more and more usage for the next one to read.
        if self._written_at_ms is not None and now.steady_ms - self._written_at_ms < self._interval_ms:
            return False
        self._written_at_ms = now.steady_ms
        buckets = decider.buckets()
        is_new = self._table.append(self._rows(buckets, last), {last.query_id: last.batch_id}, {})
        failpoint("sensor_state.appended")
        if is_new:
            decider.restore_buckets(buckets)
        return is_new

    def newest(self, last_query_id: str = "") -> tuple[Evaluation, pa.Table] | None:
        """The newest snapshot: the batch after which it was taken, and its buckets (columns of `engine.buckets`).

        Args:
            last_query_id: of several snapshots at the same instant, those of this query are newer.
        """
        rows = with_time_epoch(newest_rows(self._table))
        if not rows.num_rows:
            return None
        names = ["time_epoch", "evaluated_at_ms", "batch_id", "query_id"]
        evaluations = [Evaluation(quota_version=-1, **row) for row in rows.group_by(names).aggregate([]).to_pylist()]
        newest = max(evaluations, key=lambda one: one.order(last_query_id))
        own = (pc.field("batch_id") == newest.batch_id) & (pc.field("query_id") == newest.query_id)
        has_parts = (pc.field("sensor_user") != "") | (pc.field("sensor_client_id") != "")
        return newest, rows.filter(own & has_parts)

    def _rows(self, buckets: pa.Table, last: Evaluation) -> pa.Table:
        if not buckets.num_rows:
            buckets = pa.Table.from_pylist([{**_PLACEHOLDER, "refilled_at_ms": last.evaluated_at_ms}])
        return conform(
            buckets,
            SensorStateRow,
            cluster=self._cluster,
            query_id=last.query_id,
            batch_id=last.batch_id,
            time_epoch=last.time_epoch,
            evaluated_at_ms=last.evaluated_at_ms,
        )
