"""Snapshots of the token buckets, compared with the verifier's own buckets in both directions."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from tests.faults.books import Books
from tests.faults.cut import Batch
from tests.faults.evidence import Row
from tests.faults.rules import Rules
from tests.faults.verdict import Values, Verdict
from tests.quota.model import Sensor

_IDLE_MS: Final = 3_600_000
"""The job drops a sensor that was not used for longer than this, and its bucket with it."""

Bucket = tuple[str, tuple[str, str, str]]
"""Quota type; broker, user and client-id of the sensor."""


def check_snapshot(
    batch: Batch, rows: list[Row], books: Books, versions: Sequence[int], verdict: Verdict
) -> dict[Sensor, float]:
    """Compare the snapshot after a batch: it has every bucket that is not full, and no other.

    A bucket is full if it was full at the end of the oldest sample window. The bound decides that, and the snapshot may
    have been taken under the quotas of the batch or under those of a later edit: it must be right under one of them.

    The job goes on from what it wrote: what is full becomes a new bucket. So the verifier's own buckets that are full
    become new ones here too. Whether the snapshot has them plays no part in that.

    Args:
        batch: The snapshot was taken after it.
        rows: Its rows of `sensor_state`, at least one.
        books: Have recorded all batches up to this one.
        versions: The quota versions that may have been in force, at least one.
        verdict: Takes what is found.

    Returns:
        The buckets that are new from now on, with what was in them.
    """
    # The row without a sensor stands for a snapshot without buckets.
    listed = [(_bucket_of(row), row) for row in rows if row["sensor_user"] or row["sensor_client_id"]]
    verdict.once_each("snapshots", [batch.key], [batch.key] * (len(rows) - len(listed) or 1))
    stored = {bucket for bucket, _ in listed}
    charged = {key[1:]: sensor for key, sensor in books.model.sensors.items() if sensor.tokens is not None}
    by_version = [_full(charged, books, version) for version in versions]
    full = min(by_version, key=lambda full: len((charged.keys() - full) ^ stored))
    wanted: dict[Hashable, Values] = {
        (*batch.key, *bucket): {
            "tokens": sensor.tokens,
            "refilled_at_ms": sensor.refilled_at_ms,
            "time_epoch": books.time_epoch,
            "evaluated_at_ms": books.evaluated_at_ms,
        }
        for bucket, sensor in charged.items()
        if bucket not in full and (bucket in stored or not _is_idle(sensor, books.evaluated_at_ms))
    }
    verdict.same_rows("buckets", wanted, (((*batch.key, *bucket), row) for bucket, row in listed))
    verdict.compared["full_buckets"] += len(full)
    emptied = {charged[bucket]: charged[bucket].tokens or 0.0 for bucket in full}
    for sensor in emptied:
        sensor.tokens = None
    return emptied


def check_intervals(
    batches: Sequence[Batch], snapshots: Iterable[tuple[str, int]], rules: Rules, verdict: Verdict
) -> None:
    """A snapshot is taken as soon as the interval has passed since the last one.

    The snapshot after a batch is written when the next one begins: after the batch was collected, and before the next
    one was.

    Args:
        batches: In their order.
        snapshots: Keys of the batches that have a snapshot after them.
        rules: The interval.
        verdict: Takes what is found.
    """
    taken = set(snapshots)
    latest_ms: int | None = None
    for batch, following in pairwise(batches):
        if batch.key in taken:
            latest_ms = following.steady_ms
        else:
            is_due = latest_ms is None or batch.steady_ms - latest_ms >= rules.sensor_state_interval_ms
            latest_ms = batch.steady_ms if latest_ms is None else latest_ms
            if is_due:
                verdict.tell("snapshots", "lost", f"the snapshot after batch {batch.key}")


def _full(charged: Iterable[Bucket], books: Books, version: int) -> set[Bucket]:
    """The buckets that were full at the end of the oldest window under a version; without a bound none is."""
    books.put_in_force(version)
    model = books.model
    full_at_ms = max((books.evaluated_at_ms // model.w - model.n + 1) * model.w, 0)
    full = set()
    for quota_type, tags in charged:
        bound = model.bound_of("enforced", quota_type, tags[1:])
        if bound is None:
            continue
        burst = model.n * (model.w / 1000.0) * bound
        if model.tokens_at(("enforced", quota_type, tags), bound, full_at_ms) >= burst:
            full.add((quota_type, tags))
    return full


def _is_idle(sensor: Sensor, now_ms: int) -> bool:
    return sensor.refilled_at_ms < now_ms - _IDLE_MS


def _bucket_of(row: Row) -> Bucket:
    return row["quota_type"], (row["broker_id"], row["sensor_user"], row["sensor_client_id"])
