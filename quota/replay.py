"""Stored usage decided again: the same batches with the same quota snapshots give the same decisions.

First decisions (docs/design.md, "The rate") depend on the sample windows alone, never on a token bucket. So a replay
may begin at any instant: after it has read the usage of the (N + 1) · w before, its windows are what they were.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot

_ORDER: Final = ("time_epoch", "evaluated_at_ms", "batch_id", "query_id")

USAGE_COLUMNS: Final = (
    "query_id",
    "batch_id",
    "time_epoch",
    "evaluated_at_ms",
    "quota_version",
    "sample_start_ms",
    "broker_id",
    "user",
    "client_id",
    "produced_bytes",
    "fetched_bytes",
    "io_time_ns",
    "network_time_ns",
    "last_event_ms",
)
"""The columns of `usage` that decisions depend on: a replay reads these."""

SnapshotAt = Callable[[int], QuotaSnapshot]
"""Returns the quotas of a version of the quota table."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The usage of one micro-batch, as it was decided.

    Attributes:
        query_id: the streaming query that decided it.
        batch_id: its number in that query.
        evaluated_at_ms: the instant it was evaluated at.
        quota_version: version of the quota table it was decided with.
        usage: its rows of `usage`, in any order.
        time_epoch: the time epoch that `evaluated_at_ms` belongs to.
    """

    query_id: str
    batch_id: int
    evaluated_at_ms: int
    quota_version: int
    usage: pa.Table
    time_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Replayed:
    """A batch and its decisions, as `QuotaEngine.record` returns them."""

    batch: StoredBatch
    decisions: pa.Table


def batches_of(usage: pa.Table, last_query_id: str = "") -> Iterator[StoredBatch]:
    """Rows of `usage` batch by batch, in the order they were decided.

    Args:
        usage: whole batches; columns `USAGE_COLUMNS`. A `time_epoch` that is null or missing is 0.
        last_query_id: the query of the newest batch, see `batch_order`.
    """
    ordered = with_time_epoch(usage).sort_by([(column, "ascending") for column in _ORDER]).combine_chunks()
    if not ordered.num_rows:
        return
    # Not by group_by: the order of its groups is not specified.
    begins = np.zeros(ordered.num_rows, np.bool_)
    begins[0] = True
    for name in _ORDER:
        column = ordered[name]
        begins[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
    first = np.flatnonzero(begins)
    keys = ordered.select([*_ORDER, "quota_version"]).take(pa.array(first)).to_pylist()
    counts = np.diff(first, append=ordered.num_rows)
    batches = [
        StoredBatch(**key, usage=ordered.slice(start, count))
        for key, start, count in zip(keys, first.tolist(), counts.tolist(), strict=True)
    ]
    yield from sorted(
        batches,
        key=lambda one: batch_order(one.time_epoch, one.evaluated_at_ms, one.query_id, one.batch_id, last_query_id),
    )


def with_time_epoch(rows: pa.Table) -> pa.Table:
    """Rows with a `time_epoch` that is never null: rows of before there were epochs belong to the first one, 0."""
    place = rows.schema.get_field_index("time_epoch")
    if place < 0:
        return rows.append_column("time_epoch", pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows))
    return rows.set_column(place, "time_epoch", pc.fill_null(rows["time_epoch"], 0))


def batch_order(
    time_epoch: int, evaluated_at_ms: int, query_id: str, batch_id: int, last_query_id: str
) -> tuple[int, int, bool, int, str]:
    """The place of a micro-batch in the order they were decided; an earlier one has the smaller value.

    Within a time epoch instants never go back, so the batches of a query are in order by epoch, instant and number. A
    new query that begins with old events is evaluated at the instant of the last batch of the previous query. So of
    several batches at one instant those of `last_query_id` come last.
    """
    return time_epoch, evaluated_at_ms, query_id == last_query_id, batch_id, query_id


def replay(engine: QuotaEngine, batches: Iterable[StoredBatch], snapshot_at: SnapshotAt) -> Iterator[Replayed]:
    """Decide batches again, each with its own quotas at its own instant in its own time epoch.

    Args:
        engine: has recorded nothing later than the first batch.
        batches: in the order they were decided.
        snapshot_at: returns the quotas of a version; called once per batch.
    """
    before: StoredBatch | None = None
    for batch in batches:
        if before is not None and batch.time_epoch > before.time_epoch:
            engine.begin_epoch(before.evaluated_at_ms, batch.evaluated_at_ms)
        before = batch
        engine.load_quotas(snapshot_at(batch.quota_version))
        yield Replayed(batch, engine.record(batch.usage, batch.evaluated_at_ms))
