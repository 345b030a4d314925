"""The stored usage and buckets that an engine is rebuilt from, on the sample windows of that engine.

The job's engine settings may have changed since a batch was decided. If the two spans of sample windows divide each
other, the batch's usage is put on the engine's windows (`quota.regrid`). If they do not, that batch and everything
before it is left out: the engine begins with empty rates and full buckets. Only stored settings decide about that, so
each later start finds the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings.model import EngineSettings
from pipeline.stream.batch_facts import BatchFacts
from pipeline.tables.job_tables import JobTables
from quota.evaluation import Evaluation
from quota.regrid import on_windows, windows_divide
from quota.replay import USAGE_COLUMNS, StoredBatch, batches_of, with_time_epoch
from schemas.arrow import arrow_schema
from schemas.usage import UsageRow

_FACTS = ("query_id", "batch_id", "time_epoch", "evaluated_at_ms", "quota_version")
_COLUMNS = (*_FACTS, "processed_at_ms", "engine_settings")

_USAGE = arrow_schema(UsageRow)
_NO_USAGE = pa.Table.from_batches([], pa.schema([_USAGE.field(name) for name in USAGE_COLUMNS]))

Snapshot = tuple[Evaluation, pa.Table]
"""After which batch the buckets were stored, and the buckets."""


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """What an engine is rebuilt from.

    Attributes:
        batches: Batches in the order they were decided; their usage is on the engine's windows.
        snapshot: The newest stored buckets; None to begin with full ones.
        processed_at_ms: When each batch was collected, by query and number, as far as that is still stored.
    """

    batches: tuple[StoredBatch, ...]
    snapshot: Snapshot | None
    processed_at_ms: Mapping[tuple[str, int], int]

    def age_ms(self, batch: StoredBatch) -> int:
        """How old the usage of a batch was when it was collected; 0 if that is not stored any more."""
        return self.processed_at_ms.get((batch.query_id, batch.batch_id), batch.evaluated_at_ms) - batch.evaluated_at_ms


def read_stored_usage(tables: JobTables, newest: BatchFacts, engine: EngineSettings) -> StoredUsage:
    """Read what an engine with these settings is rebuilt from.

    Args:
        tables: The job's tables.
        newest: Facts of the newest stored batch. Its row of `batches` may not be stored yet.
        engine: Settings of the engine to be rebuilt.
    """
    last_query_id = newest.evaluation.query_id
    snapshot = tables.sensor_state.newest(last_query_id)
    usage = _usage_since(tables, newest.evaluation, engine.rate_span_ms, snapshot)
    batches = tuple(batches_of(usage, last_query_id))
    rows = _rows_since(tables, newest.evaluation, batches, snapshot)
    batches = _with_ends_of_epochs(batches, rows, last_query_id)
    unfit = _newest_unfit(rows, newest, engine.sample_window_ms)
    if unfit is not None:
        batches = tuple(batch for batch in batches if evaluation_of(batch).is_after(unfit, last_query_id))
        snapshot = snapshot if snapshot is not None and snapshot[0].is_after(unfit, last_query_id) else None
    processed_at_ms = {(row["query_id"], row["batch_id"]): row["processed_at_ms"] for row in rows.to_pylist()}
    own = newest.evaluation
    return StoredUsage(
        tuple(replace(batch, usage=on_windows(batch.usage, engine.sample_window_ms)) for batch in batches),
        snapshot,
        {**processed_at_ms, (own.query_id, own.batch_id): newest.processed_at_ms},
    )


def evaluation_of(batch: StoredBatch) -> Evaluation:
    """The facts that a stored batch was decided with."""
    return Evaluation(batch.query_id, batch.batch_id, batch.evaluated_at_ms, batch.quota_version, batch.time_epoch)


def _usage_since(tables: JobTables, newest: Evaluation, rate_span_ms: int, snapshot: Snapshot | None) -> pa.Table:
    """The usage of all batches after the snapshot, and what the windows of the newest epoch need from before it."""
    if snapshot is None:
        # All usage, not only the last windows: without a snapshot the debts can only be computed from all of it.
        return with_time_epoch(tables.usage.read(USAGE_COLUMNS))
    first = snapshot[0]
    newest_ms = newest.evaluated_at_ms if newest.time_epoch == first.time_epoch else first.evaluated_at_ms
    since_ms = min(newest_ms - rate_span_ms, first.evaluated_at_ms)
    usage = with_time_epoch(tables.usage.read(USAGE_COLUMNS, [("evaluated_at_ms", ">=", since_ms)]))
    usage = usage.filter(pc.equal(usage["time_epoch"], first.time_epoch))
    if newest.time_epoch == first.time_epoch:
        return usage
    return pa.concat_tables([usage, tables.usage.read(USAGE_COLUMNS, [("time_epoch", ">", first.time_epoch)])])


def _rows_since(
    tables: JobTables, newest: Evaluation, batches: tuple[StoredBatch, ...], snapshot: Snapshot | None
) -> pa.Table:
    """The rows of `batches` from the first of these batches and the snapshot on."""
    begins = [newest, *map(evaluation_of, batches[:1]), *([] if snapshot is None else [snapshot[0]])]
    epoch = min(one.time_epoch for one in begins)
    since_ms = min(one.evaluated_at_ms for one in begins if one.time_epoch == epoch)
    rows = with_time_epoch(tables.batches.read(_COLUMNS, [("evaluated_at_ms", ">=", since_ms)]))
    rows = rows.filter(pc.equal(rows["time_epoch"], epoch))
    if newest.time_epoch == epoch:
        return rows
    return pa.concat_tables([rows, tables.batches.read(_COLUMNS, [("time_epoch", ">", epoch)])])


def _with_ends_of_epochs(
    batches: tuple[StoredBatch, ...], rows: pa.Table, last_query_id: str
) -> tuple[StoredBatch, ...]:
    """Put in the last batch of each time epoch but the newest, without its usage if it has any: debts go on from it."""
    facts = [Evaluation(**row) for row in rows.select(_FACTS).to_pylist()]
    newest_epoch = max((one.time_epoch for one in facts), default=0)
    ends: dict[int, Evaluation] = {}
    for one in sorted(facts, key=lambda one: one.order(last_query_id)):
        ends[one.time_epoch] = one
    known = {(batch.query_id, batch.batch_id) for batch in batches}
    added = [
        StoredBatch(one.query_id, one.batch_id, one.evaluated_at_ms, one.quota_version, _NO_USAGE, one.time_epoch)
        for epoch, one in ends.items()
        if epoch < newest_epoch and (one.query_id, one.batch_id) not in known
    ]
    return tuple(sorted((*batches, *added), key=lambda one: evaluation_of(one).order(last_query_id)))


def _newest_unfit(rows: pa.Table, newest: BatchFacts, sample_window_ms: int) -> Evaluation | None:
    """The newest batch with sample windows that can not be put on the given ones; None without such a batch."""
    if not windows_divide(newest.settings.sample_window_ms, sample_window_ms):
        return newest.evaluation
    found = list(_unfit(rows, sample_window_ms))
    return max(found, key=lambda one: one.order(newest.evaluation.query_id), default=None)


def _unfit(rows: pa.Table, sample_window_ms: int) -> Iterator[Evaluation]:
    for text in pc.unique(rows["engine_settings"]).to_pylist():
        recorded_ms = EngineSettings.model_validate_json(text).sample_window_ms
        if not windows_divide(recorded_ms, sample_window_ms):
            unfit = rows.filter(pc.equal(rows["engine_settings"], text)).select(_FACTS)
            yield from (Evaluation(**row) for row in unfit.to_pylist())
