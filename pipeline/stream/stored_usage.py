"""The stored usage and buckets that an engine is rebuilt from, on the sample windows of that engine.

The job's engine settings may have changed since a batch was decided. If the two spans of sample windows divide each
other, the batch's usage is put on the engine's windows (`quota.regrid`). If they do not, that batch and everything
before it is left out: the engine begins with empty rates and full buckets. Only stored settings decide about that, so
each later start finds the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings.model import EngineSettings
from pipeline.stream.batch_facts import BatchFacts
from pipeline.tables.job_tables import JobTables
from quota.evaluation import Evaluation
from quota.regrid import on_windows, windows_divide
from quota.replay import USAGE_COLUMNS, StoredBatch, batches_of

_COLUMNS = ("query_id", "batch_id", "evaluated_at_ms", "quota_version", "engine_settings")

Snapshot = tuple[Evaluation, pa.Table]
"""After which batch the buckets were stored, and the buckets."""


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """What an engine is rebuilt from.

    Attributes:
        batches: Batches in the order they were decided; their usage is on the engine's windows.
        snapshot: The newest stored buckets; None to begin with full ones.
    """

    batches: tuple[StoredBatch, ...]
    snapshot: Snapshot | None


def read_stored_usage(tables: JobTables, newest: BatchFacts, engine: EngineSettings) -> StoredUsage:
    """Read what an engine with these settings is rebuilt from.

    Args:
        tables: The job's tables.
        newest: Facts of the newest stored batch. Its row of `batches` may not be stored yet.
        engine: Settings of the engine to be rebuilt.
    """
    last_query_id = newest.evaluation.query_id
    snapshot = tables.sensor_state.newest(last_query_id)
    usage = _usage_since(tables, newest.evaluation.evaluated_at_ms - engine.rate_span_ms, snapshot)
    batches = tuple(batches_of(usage, last_query_id))
    unfit = _newest_unfit(tables, newest, engine.sample_window_ms, batches, snapshot)
    if unfit is not None:
        batches = tuple(batch for batch in batches if evaluation_of(batch).is_after(unfit, last_query_id))
        snapshot = snapshot if snapshot is not None and snapshot[0].is_after(unfit, last_query_id) else None
    return StoredUsage(
        tuple(replace(batch, usage=on_windows(batch.usage, engine.sample_window_ms)) for batch in batches), snapshot
    )


def evaluation_of(batch: StoredBatch) -> Evaluation:
    """The facts that a stored batch was decided with."""
    return Evaluation(batch.query_id, batch.batch_id, batch.evaluated_at_ms, batch.quota_version)


def _usage_since(tables: JobTables, since_ms: int, snapshot: Snapshot | None) -> pa.Table:
    if snapshot is None:
        # All usage, not only the last windows: without a snapshot the debts can only be computed from all of it.
        return tables.usage.read(USAGE_COLUMNS)
    return tables.usage.read(USAGE_COLUMNS, [("evaluated_at_ms", ">=", min(since_ms, snapshot[0].evaluated_at_ms))])


def _newest_unfit(
    tables: JobTables,
    newest: BatchFacts,
    sample_window_ms: int,
    batches: tuple[StoredBatch, ...],
    snapshot: Snapshot | None,
) -> Evaluation | None:
    """The newest batch with sample windows that can not be put on the given ones; None without such a batch."""
    if not windows_divide(newest.settings.sample_window_ms, sample_window_ms):
        return newest.evaluation
    since_ms = newest.evaluation.evaluated_at_ms
    if batches:
        since_ms = min(since_ms, batches[0].evaluated_at_ms)
    if snapshot is not None:
        since_ms = min(since_ms, snapshot[0].evaluated_at_ms)
    rows = tables.batches.read(_COLUMNS, [("evaluated_at_ms", ">=", since_ms)])
    found = list(_unfit(rows, sample_window_ms))
    return max(found, key=lambda one: one.order(newest.evaluation.query_id), default=None)


def _unfit(rows: pa.Table, sample_window_ms: int) -> Iterator[Evaluation]:
    for text in pc.unique(rows["engine_settings"]).to_pylist():
        recorded_ms = EngineSettings.model_validate_json(text).sample_window_ms
        if not windows_divide(recorded_ms, sample_window_ms):
            unfit = rows.filter(pc.equal(rows["engine_settings"], text)).drop_columns(["engine_settings"])
            yield from (Evaluation(**row) for row in unfit.to_pylist())
