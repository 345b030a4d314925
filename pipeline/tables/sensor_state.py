"""Snapshots of the token buckets, so that a restart need not replay more than a minute of usage."""

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import Moment
from pipeline.failpoints import failpoint
from pipeline.tables.port import TableWriter
from pipeline.throttle.decider import Decider
from quota.evaluation import Evaluation
from schemas.arrow import conform
from schemas.sensor_state_row import SensorStateRow

# A snapshot without any bucket needs a row all the same, or an older one would pass for the newest. The
# sensor without parts stands for clients without any quota and never has a bucket.
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
        table: Its guarded writer.
        cluster: Written to every row.
        interval_ms: At least this much steady time lies between two snapshots.
    """

    def __init__(self, table: TableWriter, cluster: str, interval_ms: int) -> None:
        self._table = table
        self._cluster = cluster
        self._interval_ms = interval_ms
        self._written_at_ms: int | None = None

    def write_if_due(self, decider: Decider, now: Moment) -> bool:
        """Write the buckets as they stand after the last batch, if the interval has passed; True if it wrote them.

        Called at the start of a batch, before it changes any bucket. Guarded by the last batch's id: run
        again, the snapshot is skipped.

        The engine goes on from what was written. A bucket that has become full again still has its last refill time, by
        which a lower bound or late usage can tell it from a new one; a snapshot does not have it, so it is forgotten
        here as well, or a restart would decide otherwise. Not so if the snapshot is skipped: the engine has begun with
        the stored one, and what is full now may not have been under the bounds of then.
        """
        last = decider.last
        if last.batch_id < 0:
            return False
        # The first batch of a driver writes one at once: drivers that do not live for an interval would leave the
        # next one more and more usage to read.
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
        """The newest snapshot: after which batch it was taken, and its buckets (columns of `engine.buckets`).

        Args:
            last_query_id: of snapshots at one instant those of this query are newer.
        """
        names = ["evaluated_at_ms", "batch_id", "query_id"]
        snapshots = self._table.read(names).group_by(names).aggregate([]).to_pylist()
        if not snapshots:
            return None
        evaluations = [Evaluation(quota_version=-1, **row) for row in snapshots]
        newest = max(evaluations, key=lambda one: one.order(last_query_id))
        rows = self._table.read(
            None, [("evaluated_at_ms", "=", newest.evaluated_at_ms), ("batch_id", "=", newest.batch_id)]
        ).filter(pc.field("query_id") == newest.query_id)
        return newest, rows.filter((pc.field("sensor_user") != "") | (pc.field("sensor_client_id") != ""))

    def _rows(self, buckets: pa.Table, last: Evaluation) -> pa.Table:
        if not buckets.num_rows:
            buckets = pa.Table.from_pylist([{**_PLACEHOLDER, "refilled_at_ms": last.evaluated_at_ms}])
        return conform(
            buckets,
            SensorStateRow,
            cluster=self._cluster,
            query_id=last.query_id,
            batch_id=last.batch_id,
            evaluated_at_ms=last.evaluated_at_ms,
        )
