"""One micro-batch, from the records Spark hands over to the record a client reads.

    1 pin the quota version                                   4 engine.record; append decisions, batches
    2 collect aggregates                                      5 publisher: outbox, then one Kafka transaction
    3 append dead_letters, then usage with the batch's facts  6 hold in purgatory; return: Spark commits

Step 4 is computed while step 3 writes. It writes nothing, and no look sees it, before the usage is stored. What it
appends is written next to step 5: a start completes the newest stored batch, whichever of its tables are missing.

A batch may have to be run again after a failure at any point: Spark repeats the last batch that was not committed,
with the same id and the same records. Every append carries the query's id, with the batch id as its version, and is
skipped if the table has that version already. A batch that is already in `usage` is taken from there, with its stored
time and quota version, and not from Kafka.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.clock import Clock, Moment
from pipeline.failpoints import failpoint
from pipeline.stream.batch_facts import BatchFacts, BatchRules
from pipeline.stream.checkpoint import OffsetLog, OffsetRange
from pipeline.stream.dead_letters import causes_of
from pipeline.stream.event_time import ClockWarning, limit_event_times
from pipeline.stream.job_tables import JobTables
from pipeline.stream.recovery import Recovered
from pipeline.stream.usage_columns import CollectedBatch
from pipeline.tables.quotas.source import QuotaSource
from pipeline.throttle.decider import Decided, Decider
from pipeline.throttle.purgatory import ThrottlePurgatory
from quota.replay import Evaluation, begins_time_epoch
from schemas.arrow import conform
from schemas.decisions import DecisionRow
from schemas.rows import DeadLetterRow
from schemas.usage import UsageRow

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Collect = Callable[[DataFrame, int | None], CollectedBatch]
"""Collects Spark's batch; the second argument is how many messages it has, None if that is not known."""


class MicroBatch:
    """The `foreachBatch` function. Batches run one at a time. A failure ends the query before any later step writes."""

    def __init__(
        self,
        collect: Collect,
        offsets: OffsetLog,
        tables: JobTables,
        quotas: QuotaSource,
        decider: Decider,
        purgatory: ThrottlePurgatory,
        clock: Clock,
        rules: BatchRules,
        recovered: Recovered,
        report: Callable[["BatchReport"], None],
    ) -> None:
        self._collect = collect
        self._offsets = offsets
        self._tables = tables
        self._quotas = quotas
        self._decider = decider
        self._purgatory = purgatory
        self._clock = clock
        self._rules = rules
        self._recovered = recovered
        self._report = report
        self._clock_warning = ClockWarning()
        self._began = clock.now()

    def complete_stored(self) -> None:
        """Write what may be missing of the newest stored batch; called once, at start.

        Spark repeats such a batch, but not if its checkpoint is gone.
        """
        if self._recovered.newest is not None:
            self._append_outcome(self._recovered.newest.decided, self._recovered.newest.facts)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one micro-batch: Spark's batch of Kafka records, and its number in this query."""
        query_id = query_id_of(frame)
        began = self._clock.now()
        stored = self._recovered.outcome_of(query_id, batch_id)
        if stored is None:
            self._tables.sensor_state.write_if_due(self._decider, began)
            snapshot = self._quotas.pin()
            failpoint("batch.pinned")
            offsets = self._offsets.range_of(batch_id)
            batch = self._collect(frame, offsets.message_count)
            failpoint("batch.collected")
            collected = self._clock.now()
            batch = self._limited(batch, collected)
            evaluation = self._evaluation(query_id, batch_id, snapshot.version, batch, collected)
            facts = self._facts(evaluation, batch, offsets, collected)
            causes = causes_of(batch.dead_letters, batch.dead_count)
            with _beside(self._append_input, batch, facts) as input_appended:
                decided = self._decider.decide(
                    snapshot,
                    batch.usage,
                    facts.evaluation,
                    self._clock.now(),
                    is_old=self._is_old(facts),
                    wait_until_stored=input_appended.result,
                )
            appended = input_appended.result()
            failpoint("batch.decided")
            decided_at = self._clock.now()
            with _beside(self._append_outcome, decided, facts) as outcome_appended:
                published = self._publish(decided, facts)
            outcome_appended.result()
        else:
            collected = appended = decided_at = began
            facts, decided, causes = stored.facts, stored.decided, {}
            published = self._publish(decided, facts, is_stored=True)
        failpoint("batch.published")
        done = self._clock.now()
        self._report(
            BatchReport(
                facts=facts,
                violations=decided.violations.num_rows,
                published=published,
                held=len(self._purgatory),
                collect_ms=collected.steady_ms - began.steady_ms,
                append_ms=appended.steady_ms - collected.steady_ms,
                decide_ms=decided_at.steady_ms - appended.steady_ms,
                publish_ms=done.steady_ms - decided_at.steady_ms,
                age_ms=done.wall_ms - facts.evaluation.evaluated_at_ms,
                dead_causes=causes,
            )
        )

    def _limited(self, batch: CollectedBatch, collected: Moment) -> CollectedBatch:
        tolerance_ms = self._rules.clock_tolerance_ms
        limited, ahead = limit_event_times(batch, collected.wall_ms + tolerance_ms, self._rules.sample_window_ms)
        self._clock_warning.take(ahead, tolerance_ms, collected.steady_ms)
        return limited

    def _evaluation(
        self,
        query_id: str,
        batch_id: int,
        quota_version: int,
        batch: CollectedBatch,
        collected: Moment,
    ) -> Evaluation:
        """When and in which time epoch a batch is evaluated; see `begins_time_epoch`."""
        last, own_ms = self._decider.last, batch.newest_event_ms
        ring_ms = self._rules.late_after_ms
        if begins_time_epoch(last.evaluated_at_ms, ring_ms, (own_ms, batch.newest_append_ms, collected.wall_ms)):
            log.warning(
                "the clocks were set back: the events of batch_id=%d are %.1f s before those of the batch before. "
                "Rates begin empty, debts stay (time epoch %d)",
                batch_id,
                (last.evaluated_at_ms - (own_ms or 0)) / 1000,
                last.time_epoch + 1,
            )
            return Evaluation(query_id, batch_id, own_ms or 0, quota_version, last.time_epoch + 1)
        evaluated_at_ms = max(own_ms or 0, last.evaluated_at_ms)
        return Evaluation(query_id, batch_id, evaluated_at_ms, quota_version, last.time_epoch)

    def _facts(
        self, evaluation: Evaluation, batch: CollectedBatch, offsets: OffsetRange, collected: Moment
    ) -> BatchFacts:
        return BatchFacts(
            evaluation=evaluation,
            processed_at_ms=collected.wall_ms,
            start_offsets=offsets.start,
            end_offsets=offsets.end,
            engine_settings=self._rules.engine_settings,
            good_count=batch.good_count,
            late_count=self._late_count(batch.usage, evaluation.evaluated_at_ms),
            clamped_count=batch.clamped_count,
            ignored_count=batch.ignored_count,
            dead_count=batch.dead_count,
        )

    def _is_old(self, facts: BatchFacts) -> bool:
        return facts.age_ms > self._rules.max_decision_age_ms

    def _late_count(self, usage: pa.Table, evaluated_at_ms: int) -> int:
        late = pc.less_equal(usage["last_event_ms"], evaluated_at_ms - self._rules.late_after_ms)
        return int(pc.sum(usage["event_count"].filter(late)).as_py() or 0)

    def _append_input(self, batch: CollectedBatch, facts: BatchFacts) -> Moment:
        """Returns when it was done."""
        evaluation = facts.evaluation
        versions = {evaluation.query_id: evaluation.batch_id}
        identity: dict[str, str | int] = {
            "cluster": self._rules.cluster,
            "query_id": evaluation.query_id,
            "batch_id": evaluation.batch_id,
        }
        if batch.dead_letters.num_rows:
            letters = conform(batch.dead_letters, DeadLetterRow, **identity)
            self._tables.dead_letters.append(letters, versions, {})
            failpoint("dead_letters.appended")
        usage = conform(
            batch.usage,
            UsageRow,
            **identity,
            time_epoch=evaluation.time_epoch,
            evaluated_at_ms=evaluation.evaluated_at_ms,
            quota_version=evaluation.quota_version,
        )
        self._tables.usage.append(usage, versions, facts.to_metadata())
        failpoint("usage.appended")
        return self._clock.now()

    def _append_outcome(self, decided: Decided, facts: BatchFacts) -> None:
        evaluation = facts.evaluation
        versions = {evaluation.query_id: evaluation.batch_id}
        decisions = conform(
            decided.decisions,
            DecisionRow,
            cluster=self._rules.cluster,
            query_id=evaluation.query_id,
            batch_id=evaluation.batch_id,
            time_epoch=evaluation.time_epoch,
            evaluated_at_ms=evaluation.evaluated_at_ms,
            quota_version=evaluation.quota_version,
        )
        # Two tables and two commits that do not depend on each other: done side by side, they take the time of one.
        with _beside(self._append_facts, facts) as batches_appended:
            self._tables.decisions.append(decisions, versions, {})
            failpoint("decisions.appended")
            batches_appended.result()
        failpoint("batch.recorded")

    def _append_facts(self, facts: BatchFacts) -> None:
        evaluation = facts.evaluation
        versions = {evaluation.query_id: evaluation.batch_id}
        self._tables.batches.append(facts.to_row(self._rules.cluster), versions, facts.to_metadata())
        failpoint("batches.appended")

    def _publish(self, decided: Decided, facts: BatchFacts, is_stored: bool = False) -> int:
        evaluation = facts.evaluation
        waited_ms = self._began.wall_ms - evaluation.evaluated_at_ms if is_stored else 0
        if self._is_old(facts) or waited_ms > self._rules.max_decision_age_ms:
            if decided.violations.num_rows:
                # What has waited for this start is old as expected; later it is a sign that the job is too slow.
                waited = is_stored or self._clock.now().steady_ms - facts.age_ms < self._began.steady_ms
                log.log(
                    logging.INFO if waited else logging.WARNING,
                    "batch_id=%d %s: its %d violations are recorded, but no throttle is published",
                    evaluation.batch_id,
                    "has usage from before this start" if waited else f"is {facts.age_ms / 1000:.1f} s old",
                    decided.violations.num_rows,
                )
            return 0
        versions = {evaluation.query_id: evaluation.batch_id}
        return self._purgatory.violated(decided.violations, evaluation, versions)


@contextmanager
def _beside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[T]]:
    """Do work on a thread of its own, while the block runs. It is done when the block ends."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="append") as side_by_side:
        yield side_by_side.submit(work, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch did and how long its steps took, for the status line and the metrics.

    A batch is decided while its usage is stored: `append_ms` ends when it is stored, `decide_ms` is what comes after.
    `publish_ms` includes the appends to `decisions` and `batches`, which run at the same time.

    `dead_causes` has how many elements were refused for which cause; those that `dead_letters` only counts are under
    `MORE_REFUSED`. It is empty for a batch that was taken from the tables.
    """

    facts: BatchFacts
    violations: int
    published: int
    held: int
    collect_ms: int
    append_ms: int
    decide_ms: int
    publish_ms: int
    age_ms: int
    dead_causes: Mapping[str, int] = field(default_factory=dict)


def query_id_of(frame: DataFrame) -> str:
    """Spark's id of the query that a micro-batch belongs to: a local property of the stream's thread."""
    return str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "")
