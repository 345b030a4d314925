"""Snapshots of the token buckets, held against the model's; and taken over by it, as the job does."""

from collections.abc import Hashable

from tests.faults.cut import Batch
from tests.faults.evidence import Row
from tests.faults.verdict import Values, Verdict
from tests.quota.model import ScalarModel, Sensor


def check_snapshot(batch: Batch, rows: list[Row], model: ScalarModel, verdict: Verdict) -> dict[Sensor, float]:
    """Compare the snapshot after a batch; buckets it does not have are full, in the model too from now on.

    Args:
        batch: Which the snapshot was taken after.
        rows: Its rows of `sensor_state`.
        model: Has recorded all batches up to this one.
        verdict: Takes what is found.

    Returns:
        What was in the buckets that are full from now on.
    """
    charged = {key[1:]: sensor for key, sensor in model.sensors.items() if sensor.tokens is not None}
    stored = {}
    for row in rows:
        tags = (row["broker_id"], row["sensor_user"], row["sensor_client_id"])
        if any(tags[1:]):  # the row without a sensor stands for a snapshot without buckets
            stored[row["quota_type"], tags] = row
    wanted: dict[Hashable, Values] = {
        (*batch.key, *key): {"tokens": sensor.tokens, "refilled_at_ms": sensor.refilled_at_ms}
        for key, sensor in charged.items()
        if key in stored
    }
    verdict.same_rows("buckets", wanted, (((*batch.key, *key), row) for key, row in stored.items()))
    forgotten = {sensor: sensor.tokens or 0.0 for key, sensor in charged.items() if key not in stored}
    for sensor in forgotten:
        sensor.tokens = None
    return forgotten
