"""Rebuilds the engine from the tables, so that after a restart the job decides as if it had never stopped.

Token buckets come from the newest snapshot and the batches after it; while there is no snapshot, from all batches.
Sample windows come from all usage of the last (N + 1) · w before the oldest batch that is decided again, in its time
epoch. Each batch is recorded again with its stored rows, its own `evaluated_at_ms` and its own quota version.

A gap longer than the windows needs no special case: there is no usage to read, so the windows are empty.

The job's engine settings may have changed since a batch was decided. With another sample window that batch and
everything before it is left out: the engine begins with empty rates and full buckets, as a broker does that starts.
Only stored settings decide about that, so each later start finds the same. The last batch, whose decisions may not be
stored yet, is decided with the settings it was recorded with.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import Clock, Moment
from pipeline.settings.model import EngineSettings, Settings
from pipeline.stream.job_tables import BatchFacts, JobTables, Outcome
from pipeline.tables.port import TableWriter
from pipeline.tables.queries import newest_batch
from pipeline.tables.quotas.source import QuotaSource
from pipeline.throttle.assembly import new_engine
from pipeline.throttle.decider import Decider
from quota.decisions import FACTS, USAGE_COLUMNS, Evaluation, StoredBatch, batches_of
from schemas.arrow import arrow_schema
from schemas.usage import UsageRow

log = logging.getLogger(__name__)

_COMMITS_LOOKED_AT: Final = (20, 500, 20_000)
_COLUMNS = (*FACTS, "engine_settings")

_USAGE = arrow_schema(UsageRow)
_NO_USAGE = pa.Table.from_batches([], pa.schema([_USAGE.field(name) for name in USAGE_COLUMNS]))

Snapshot = tuple[Evaluation, pa.Table]
"""After which batch the buckets were stored, and the buckets."""


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """What an engine is rebuilt from: batches in the order they were decided.

    Attributes:
        snapshot: The newest stored buckets; None to begin with full ones.
    """

    batches: tuple[StoredBatch, ...]
    snapshot: Snapshot | None


def read_stored_usage(tables: JobTables, newest: BatchFacts, engine: EngineSettings) -> StoredUsage:
    """Read what an engine with these settings is rebuilt from.

    * `newest`: Facts of the newest batch, which may have no row in `batches` yet.
    """
    snapshot = tables.sensor_state.newest()
    usage = _usage_since(tables, newest.evaluation, engine.rate_span_ms, snapshot)
    batches = tuple(batches_of(usage))
    rows = _rows_since(tables, newest.evaluation, batches, snapshot)
    rows = pa.concat_tables([rows, newest.to_row(tables.cluster).select(rows.column_names)])
    batches = _with_ends_of_epochs(batches, rows)
    unfit = _newest_unfit(rows, engine.sample_window_ms)
    if unfit is not None:
        batches = tuple(batch for batch in batches if batch.evaluation.order > unfit.order)
        snapshot = snapshot if snapshot is not None and snapshot[0].order > unfit.order else None
    return StoredUsage(batches, snapshot)


def _usage_since(tables: JobTables, newest: Evaluation, rate_span_ms: int, snapshot: Snapshot | None) -> pa.Table:
    """The usage of all batches after the snapshot, and what the rates of the first of them need from before.

    The level of a tenant, and so what its buckets are charged, depends on the rates at every batch.
    """
    if snapshot is None:
        # All usage, not only the last windows: without a snapshot the debts can only be computed from all of it.
        return tables.usage.read(USAGE_COLUMNS)
    first = snapshot[0]
    since_ms = first.evaluated_at_ms - rate_span_ms
    usage = tables.usage.read(USAGE_COLUMNS, [("evaluated_at_ms", ">=", since_ms)])
    usage = usage.filter(pc.equal(usage["time_epoch"], first.time_epoch))
    if newest.time_epoch == first.time_epoch:
        return usage
    return pa.concat_tables([usage, tables.usage.read(USAGE_COLUMNS, [("time_epoch", ">", first.time_epoch)])])


def _rows_since(
    tables: JobTables, newest: Evaluation, batches: tuple[StoredBatch, ...], snapshot: Snapshot | None
) -> pa.Table:
    begins = [newest, *(batch.evaluation for batch in batches[:1]), *([] if snapshot is None else [snapshot[0]])]
    epoch = min(one.time_epoch for one in begins)
    since_ms = min(one.evaluated_at_ms for one in begins if one.time_epoch == epoch)
    rows = tables.batches.read(_COLUMNS, [("evaluated_at_ms", ">=", since_ms)])
    rows = rows.filter(pc.equal(rows["time_epoch"], epoch))
    if newest.time_epoch == epoch:
        return rows
    return pa.concat_tables([rows, tables.batches.read(_COLUMNS, [("time_epoch", ">", epoch)])])


def _with_ends_of_epochs(batches: tuple[StoredBatch, ...], rows: pa.Table) -> tuple[StoredBatch, ...]:
    """Put in the last batch of each time epoch but the newest, without its usage if it has any: debts go on from it."""
    facts = [Evaluation(**row) for row in rows.select(FACTS).to_pylist()]
    newest_epoch = max((one.time_epoch for one in facts), default=0)
    ends: dict[int, Evaluation] = {}
    for one in sorted(facts, key=lambda one: one.order):
        ends[one.time_epoch] = one
    known = {(batch.evaluation.query_id, batch.evaluation.batch_id) for batch in batches}
    added = [
        StoredBatch(one, _NO_USAGE)
        for epoch, one in ends.items()
        if epoch < newest_epoch and (one.query_id, one.batch_id) not in known
    ]
    return tuple(sorted((*batches, *added), key=lambda batch: batch.evaluation.order))


def _newest_unfit(rows: pa.Table, sample_window_ms: int) -> Evaluation | None:
    """The last batch that was decided with another sample window."""
    texts = pc.unique(rows["engine_settings"]).to_pylist()
    unfit = [one for one in texts if EngineSettings.model_validate_json(one).sample_window_ms != sample_window_ms]
    of_unfit = rows.filter(pc.is_in(rows["engine_settings"], pa.array(unfit, pa.string())))
    found = [Evaluation(**row) for row in of_unfit.select(FACTS).to_pylist()]
    return max(found, key=lambda one: one.order, default=None)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What `rebuild` has found in the tables.

    Attributes:
        outcome: Of the newest batch with usage, which the query may run again. None for new tables, and if it was
            completed: a snapshot was stored after it, or log clean-up has removed its facts.
        batches: How many batches were decided again; `rows` how many rows of usage they have.
        newest: The facts of the newest batch, with or without usage; None for new tables.
        with_row: The newest batch in `batches`, by its query. If it has no outcome here, nothing of it is left to do.
    """

    outcome: Outcome | None
    batches: int
    rows: int
    newest: BatchFacts | None
    with_row: Mapping[str, int] = field(default_factory=dict)

    @property
    def end_offsets(self) -> str:
        """End offsets of the newest batch in Spark's form: a new checkpoint begins there. "" for new tables."""
        return "" if self.newest is None else self.newest.end_offsets

    @property
    def newest_query_id(self) -> str | None:
        """The query of the newest batch; None for new tables."""
        return None if self.newest is None else self.newest.evaluation.query_id

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The topics of the newest batch: the one that has its offsets, and the others; empty for new tables."""
        return {} if self.newest is None else self.newest.ids_of_topics


def rebuild(tables: JobTables, quotas: QuotaSource, decider: Decider, clock: Clock, settings: Settings) -> Recovered:
    """Bring the engine to the state in which the last stored batch left it."""
    engine = settings.engine
    facts, of_rows = _newest_facts(tables.usage), _newest_of_rows(tables.batches)
    newest = _later(facts, of_rows)
    if newest is None:
        return Recovered(None, 0, 0, None)
    at = _moment_of(newest, clock.now())
    stored = read_stored_usage(tables, newest, engine)
    outcome = _decide_again(stored, quotas, decider, at, facts)
    if newest.settings != engine:
        _log_change(newest.settings, engine)
    if facts is not None and facts.settings != engine:
        as_recorded = Decider(new_engine(facts.settings, decider.scope), decider.cluster)
        usage = read_stored_usage(tables, facts, facts.settings)
        outcome = _decide_again(usage, quotas, as_recorded, at, facts)
    decider.resume(newest.evaluation, at, quotas.at(*newest.evaluation.versions))
    rows = sum(batch.usage.num_rows for batch in stored.batches)
    return Recovered(outcome, len(stored.batches), rows, newest, {} if of_rows is None else of_rows.versions)


def _decide_again(
    stored: StoredUsage,
    quotas: QuotaSource,
    decider: Decider,
    at: Moment,
    facts: BatchFacts | None,
) -> Outcome | None:
    """Record all stored batches; returns the outcome of the one with these facts.

    None if a snapshot was stored after that one: then it was completed before, and it is recorded for its windows only,
    with other debts than it was decided with.
    """
    outcome = None
    snapshot = stored.snapshot
    for evaluation, usage in stored.batches:
        if snapshot is not None and evaluation.order > snapshot[0].order:
            decider.restore_buckets(snapshot[1])
            decider.resume(snapshot[0], at)
            snapshot = None
        decided = decider.decide(quotas.at(*evaluation.versions), usage, evaluation, at)
        if snapshot is None and facts is not None and facts.versions == {evaluation.query_id: evaluation.batch_id}:
            outcome = Outcome(facts, decided)
    if snapshot is not None:
        decider.restore_buckets(snapshot[1])
    return outcome


def _log_change(stored: EngineSettings, settings: EngineSettings) -> None:
    before, after = stored.model_dump(), settings.model_dump()
    changes = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in after if before[name] != after[name])
    if stored.sample_window_ms == settings.sample_window_ms:
        log.info("engine settings have changed: %s. Stored usage counts with the new settings", changes)
    else:
        log.warning("engine settings have changed: %s. All rates begin empty and all token buckets full", changes)


def newest_stored(usage: TableWriter, batches: TableWriter) -> BatchFacts | None:
    """The facts of the newest batch; its row in `batches` comes a moment later, or with the next start."""
    return _later(_newest_facts(usage), _newest_of_rows(batches))


def _facts_in_log(table: TableWriter, limit: int) -> Iterator[BatchFacts]:
    """Facts of the batches in the newest commits of a table, newest first."""
    return filter(None, map(BatchFacts.from_metadata, table.commit_metadata(limit)))


def _newest_facts(table: TableWriter) -> BatchFacts | None:
    """Facts of the newest batch in a table. Later commits may carry no batch: epochs and maintenance."""
    found = (next(_facts_in_log(table, limit), None) for limit in _COMMITS_LOOKED_AT)
    return next(filter(None, found), None)


def _newest_of_rows(batches: TableWriter) -> BatchFacts | None:
    if (facts := _newest_facts(batches)) is not None:
        return facts
    # After a long time without usage, log clean-up has removed all commits that carry facts.
    row = newest_batch(batches)
    return None if row is None else BatchFacts.from_row(row)


def _later(one: BatchFacts | None, other: BatchFacts | None) -> BatchFacts | None:
    return max(filter(None, (one, other)), key=lambda facts: facts.evaluation.order, default=None)


def _moment_of(facts: BatchFacts, now: Moment) -> Moment:
    """When the newest batch was worked on, on this process's steady clock. The time of checks is counted from there."""
    passed_ms = max(now.wall_ms - facts.processed_at_ms, 0)
    return Moment(facts.processed_at_ms, now.steady_ms - passed_ms)
