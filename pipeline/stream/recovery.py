"""Rebuilds the engine from the tables, so that after a restart the job decides as if it had never stopped.

Token buckets come from the newest snapshot and the batches after it; while there is no snapshot, from all batches.
Sample windows come from all usage of the last (N + 1) · w in the newest time epoch. Each batch is recorded again with
its stored rows, its own `evaluated_at_ms` and its own quota version.

A gap longer than the windows needs no special case: there is no usage to read, so the windows are empty.

If the engine's settings have changed since the last batch, `stored_usage` puts the usage on the new sample windows. The
last batch itself is decided with the settings it was recorded with: its decisions may not be stored yet.
"""

import logging
from dataclasses import dataclass
from typing import Final

from pipeline.clock import Clock, Moment
from pipeline.settings.model import EngineSettings
from pipeline.stream.batch_facts import BatchFacts
from pipeline.stream.stored_usage import StoredUsage, evaluation_of, read_stored_usage
from pipeline.tables.job_tables import JobTables
from pipeline.tables.port import TableWriter
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.reading.newest_batch import newest_batch
from pipeline.throttle.assembly import new_engine
from pipeline.throttle.decider import Decided, Decider
from quota.regrid import windows_divide

log = logging.getLogger(__name__)

_COMMITS_LOOKED_AT: Final = (20, 500, 20_000)


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """The newest batch in `usage`, decided again. Any of its later steps may still have to be done."""

    facts: BatchFacts
    decided: Decided


@dataclass(frozen=True, slots=True)
class Recovered:
    """What `rebuild` has found in the tables.

    Attributes:
        newest: The newest stored batch; None for new tables.
        batches: How many batches were recorded again.
        rows: How many rows of usage they had.
        end_offsets: End offsets of the newest batch, with or without usage, in Spark's form: a new checkpoint begins
            there. "" for new tables.
        newest_query_id: The query of that batch; None for new tables.
    """

    newest: StoredOutcome | None
    batches: int
    rows: int
    end_offsets: str
    newest_query_id: str | None

    def outcome_of(self, query_id: str, batch_id: int) -> StoredOutcome | None:
        """The stored outcome of this batch if it is the newest stored batch. Only that one can be run again."""
        newest = self.newest
        if newest is None or (newest.facts.evaluation.query_id, newest.facts.evaluation.batch_id) != (
            query_id,
            batch_id,
        ):
            return None
        return newest


def rebuild(
    tables: JobTables,
    quotas: QuotaSource,
    decider: Decider,
    clock: Clock,
    settings: EngineSettings,
    max_decision_age_ms: int,
) -> Recovered:
    """Bring the engine to the state in which the last stored batch left it.

    Args:
        tables: The job's tables.
        quotas: Gives the quota versions that the batches were decided with.
        decider: Its engine has recorded nothing yet.
        clock: Sets the event clock of looks.
        settings: Of the decider's engine.
        max_decision_age_ms: Of the job; usage that was older is charged less.
    """
    facts = _newest_facts(tables.usage)
    newest = _later(facts, _newest_facts(tables.batches) or _newest_row(tables.batches))
    if newest is None:
        return Recovered(None, 0, 0, "", None)
    at = _moment_of(newest, clock.now())
    last_query_id = newest.evaluation.query_id
    stored = read_stored_usage(tables, newest, settings)
    decided = _decide_again(stored, quotas, decider, at, last_query_id, max_decision_age_ms)
    if newest.settings != settings:
        _log_change(newest.settings, settings)
    if facts is not None and facts.settings != settings:
        as_recorded = Decider(new_engine(facts.settings, decider.scope), decider.cluster)
        decided = _decide_again(
            read_stored_usage(tables, facts, facts.settings),
            quotas,
            as_recorded,
            at,
            last_query_id,
            max_decision_age_ms,
        )
    decider.resume(newest.evaluation, at)
    # Log clean-up may have removed the commit with the newest usage's facts. Its batch was completed before that.
    outcome = None if facts is None or decided is None else StoredOutcome(facts, decided)
    rows = sum(batch.usage.num_rows for batch in stored.batches)
    return Recovered(outcome, len(stored.batches), rows, newest.end_offsets, last_query_id)


def _decide_again(
    stored: StoredUsage,
    quotas: QuotaSource,
    decider: Decider,
    at: Moment,
    last_query_id: str,
    max_decision_age_ms: int,
) -> Decided | None:
    """Record all stored batches; returns the outcome of the last one, None without batches."""
    decided: Decided | None = None
    snapshot = stored.snapshot
    for batch in stored.batches:
        evaluation = evaluation_of(batch)
        if snapshot is not None and evaluation.is_after(snapshot[0], last_query_id):
            decider.restore_buckets(snapshot[1])
            decider.resume(snapshot[0], at)
            snapshot = None
        is_old = stored.age_ms(batch) > max_decision_age_ms
        again = decider.decide(quotas.at(evaluation.quota_version), batch.usage, evaluation, at, is_old=is_old)
        decided = again if batch.usage.num_rows else decided
    if snapshot is not None:
        decider.restore_buckets(snapshot[1])
    return decided


def _log_change(stored: EngineSettings, settings: EngineSettings) -> None:
    before, after = stored.model_dump(), settings.model_dump()
    changes = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in after if before[name] != after[name])
    if windows_divide(stored.sample_window_ms, settings.sample_window_ms):
        log.info("engine settings have changed: %s. Stored usage counts with the new settings", changes)
    else:
        log.warning(
            "engine settings have changed: %s. The old and the new sample windows do not divide each other, so all "
            "rates begin empty and all token buckets full",
            changes,
        )


def _newest_facts(table: TableWriter) -> BatchFacts | None:
    """Facts of the newest batch in a table. Later commits may carry no batch: epochs and maintenance."""
    for limit in _COMMITS_LOOKED_AT:
        for metadata in table.commit_metadata(limit):
            facts = BatchFacts.from_metadata(metadata)
            if facts is not None:
                return facts
    return None


def _newest_row(batches: TableWriter) -> BatchFacts | None:
    """Facts of the newest row of `batches`.

    Needed after a long time without usage, when log clean-up has removed all commits that carry facts.
    """
    row = newest_batch(batches)
    return None if row is None else BatchFacts.from_row(row)


def _later(one: BatchFacts | None, other: BatchFacts | None) -> BatchFacts | None:
    """The later of two batches. In one query the numbers decide. Event time never goes back within an epoch."""
    if one is None or other is None:
        return one or other
    if one.evaluation.query_id == other.evaluation.query_id:
        return max(one, other, key=lambda facts: facts.evaluation.batch_id)
    return max(
        one,
        other,
        key=lambda facts: (facts.evaluation.time_epoch, facts.evaluation.evaluated_at_ms, facts.processed_at_ms),
    )


def _moment_of(facts: BatchFacts, now: Moment) -> Moment:
    """When the newest batch was worked on, on this process's steady clock. The time of looks is counted from there."""
    passed_ms = max(now.wall_ms - facts.processed_at_ms, 0)
    return Moment(facts.processed_at_ms, now.steady_ms - passed_ms)
