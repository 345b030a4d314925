"""One micro-batch, from the records Spark hands over to the record a client reads.

    1 pin the quota version                                   4 engine.record
    2 collect aggregates                                      5 publisher: outbox, one Kafka transaction; hold
    3 append dead_letters, then usage with the batch's facts  6 append decisions, batches; return: Spark commits

Step 4 is computed while step 3 writes. It writes nothing, and no check sees it, before the usage is stored. A record
does not wait for step 6; a start makes up for it if the batch before was cut short after step 3.

A batch may have to be run again after a failure at any point: Spark repeats the last batch that was not committed,
with the same id and the same records. Every append carries the query's id, with the batch id as its version, and is
skipped if the table has that version already. A batch that is already in `usage` is taken from there, with its stored
time and quota version, and not from Kafka.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.clock import Clock, Moment
from pipeline.cluster.topics import JobTopics
from pipeline.failpoints import failpoint
from pipeline.settings.model import Settings
from pipeline.stream.checkpoint import OffsetLog, OffsetRange
from pipeline.stream.job_tables import BatchFacts, Gap, JobTables, Outcome, gap_of
from pipeline.stream.query import Collector
from pipeline.stream.recovery import Recovered
from pipeline.stream.usage_columns import (
    MOST_NEW_NAMES,
    ClockWarning,
    CollectedBatch,
    NewNames,
    causes_of,
    fold_clients,
    limit_event_times,
)
from pipeline.tables.quotas.source import QuotaSource
from pipeline.throttle.decider import Decided, Decider
from pipeline.throttle.purgatory import ThrottlePurgatory
from quota.decisions import Evaluation, begins_time_epoch
from quota.entity import OTHER
from quota.snapshot import QuotaSnapshot
from quota.units import counted
from quota.usage import IN_GAP
from schemas.arrow import conform
from schemas.rows import DeadLetterRow
from schemas.usage import UsageRow

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class MicroBatch:
    """The `foreachBatch` function. Batches run one at a time. A failure ends the query before any later step writes."""

    def __init__(
        self,
        collect: Collector,
        offsets: OffsetLog,
        tables: JobTables,
        quotas: QuotaSource,
        decider: Decider,
        purgatory: ThrottlePurgatory,
        clock: Clock,
        settings: Settings,
        recovered: Recovered,
        topics: JobTopics,
        report: Callable[["BatchReport"], None],
    ) -> None:
        self._collect = collect
        self._offsets = offsets
        self._tables = tables
        self._quotas = quotas
        self._decider = decider
        self._purgatory = purgatory
        self._clock = clock
        self._sample_window_ms, self._late_after_ms = settings.engine.sample_window_ms, settings.engine.late_after_ms
        self._stream, self._usage_topic = settings.stream, settings.kafka.usage_topic
        self._engine_settings = json.dumps(settings.engine.model_dump(mode="json"), separators=(",", ":"))
        self._stored, self._before, self._with_row = recovered.outcome, recovered.newest, recovered.with_row
        self._topics = topics
        self._report = report
        self._clock_warning = ClockWarning()
        self._new_names = NewNames()
        self._folds = False
        self._began = clock.now()

    def complete_stored(self) -> None:
        """Append what is missing of the newest stored batch; called once, at start. Spark may not repeat it."""
        if self._stored is not None:
            self._tables.append_outcome(self._stored)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one micro-batch: Spark's batch of Kafka records, and its number in this query."""
        query_id, began = query_id_of(frame), self._clock.now()
        stored = self._stored
        if stored is not None and stored.facts.versions == {query_id: batch_id}:  # only the newest can be run again
            published = self._publish(stored.decided, stored.facts, is_stored=True)
            moments = (began, began, began, began)
            self._done(stored.facts, stored.decided, published, moments, stored.facts.good_count, {}, {})
            return
        if self._with_row == {query_id: batch_id}:  # a power loss has taken Spark's commit of it
            log.info("batch_id=%d was completed before this start", batch_id)
            return
        self._tables.sensor_state.write_if_due(self._decider, began)
        # 1 pin the quota version
        snapshot = self._quotas.pin()
        failpoint("batch.pinned")
        # 2 collect aggregates
        offsets = self._offsets.range_of(batch_id)
        batch = self._collect(frame, offsets.message_count)
        failpoint("batch.collected")
        collected = self._clock.now()
        batch = self._folded(self._limited(batch, collected), snapshot, collected)
        evaluation = self._evaluation(query_id, batch_id, snapshot, batch, collected)
        batch, gap = self._with_gap(batch, evaluation, collected)
        facts = self._facts(evaluation, batch, offsets, collected, gap)
        causes = causes_of(batch.dead_letters, batch.dead_count)
        # 3 append dead_letters, usage; meanwhile 4 decide
        with _meanwhile(self._append_input, batch, facts) as input_appended:
            decided = self._decider.decide(
                snapshot,
                batch.usage,
                evaluation,
                self._clock.now(),
                wait_until_stored=input_appended.result,
            )
        stored_at = input_appended.result()
        failpoint("batch.decided")
        # 5 outbox, topic and purgatory
        decided_at = self._clock.now()
        published = self._publish(decided, facts)
        # 6 append decisions, batches
        self._tables.append_outcome(Outcome(facts, decided))
        self._before = facts
        moments = (began, collected, stored_at, decided_at)
        self._done(facts, decided, published, moments, batch.usage.num_rows, causes, batch.append_times_ms)

    def _done(
        self,
        facts: BatchFacts,
        decided: Decided,
        published: int,
        steps: tuple[Moment, Moment, Moment, Moment],
        usage_rows: int,
        dead_causes: Mapping[str, int],
        append_times_ms: Mapping[int, int],
    ) -> None:
        failpoint("batch.published")
        done = self._clock.now()
        began_ms, collected_ms, appended_ms, decided_ms = (step.steady_ms for step in steps)
        self._report(
            BatchReport(
                facts=facts,
                violations=len(decided.violations),
                published=published,
                held=len(self._purgatory),
                collect_ms=collected_ms - began_ms,
                append_ms=appended_ms - collected_ms,
                decide_ms=decided_ms - appended_ms,
                publish_ms=done.steady_ms - decided_ms,
                age_ms=done.wall_ms - facts.evaluation.evaluated_at_ms,
                usage_rows=usage_rows,
                dead_causes=dead_causes,
                began_ms=steps[0].wall_ms,
                append_times_ms=append_times_ms,
            )
        )

    def _limited(self, batch: CollectedBatch, collected: Moment) -> CollectedBatch:
        tolerance_ms = self._stream.clock_tolerance_ms
        limited, ahead = limit_event_times(batch, collected.wall_ms + tolerance_ms, self._sample_window_ms)
        self._clock_warning.take(ahead, tolerance_ms, collected.steady_ms)
        return limited

    def _folded(self, batch: CollectedBatch, quotas: QuotaSnapshot, collected: Moment) -> CollectedBatch:
        is_folded = self._new_names.too_many(batch.usage, quotas, collected.steady_ms)
        folded = fold_clients(batch, is_folded, quotas)
        begins, self._folds = folded.folded_count and not self._folds, folded.folded_count > 0
        if begins:
            log.warning(
                "a user has more than %d new client-ids in an hour: %d events count as client-id %s of their user",
                *(MOST_NEW_NAMES, folded.folded_count, OTHER),
            )
        return folded

    def _evaluation(
        self, query_id: str, batch_id: int, quotas: QuotaSnapshot, batch: CollectedBatch, collected: Moment
    ) -> Evaluation:
        """When and in which time epoch a batch is evaluated; see `begins_time_epoch`."""
        last, own_ms = self._decider.last, batch.newest_event_ms
        version, tenants_version = quotas.versions
        instants_ms = (own_ms, batch.newest_append_ms, collected.wall_ms)
        if begins_time_epoch(last.evaluated_at_ms, self._late_after_ms, instants_ms):
            log.warning(
                "the clocks were set back: the events of batch_id=%d are %.1f s before those of the batch before. "
                "Rates begin empty, debts stay (time epoch %d)",
                *(batch_id, (last.evaluated_at_ms - (own_ms or 0)) / 1000, last.time_epoch + 1),
            )
            return Evaluation(query_id, batch_id, own_ms or 0, version, last.time_epoch + 1, tenants_version)
        evaluated_at_ms = max(own_ms or 0, last.least_ms(query_id))
        return Evaluation(query_id, batch_id, evaluated_at_ms, version, last.time_epoch, tenants_version)

    def _with_gap(
        self, batch: CollectedBatch, evaluation: Evaluation, collected: Moment
    ) -> tuple[CollectedBatch, Gap | None]:
        """With the usage of a gap flagged, and that gap. All usage of a batch that is too old to publish is flagged."""
        last_event_ms = batch.usage["last_event_ms"].to_numpy()
        gap = gap_of(last_event_ms, collected.wall_ms, self._before, self._stream.max_decision_age_ms)
        is_old = self._is_old(collected.wall_ms - evaluation.evaluated_at_ms)
        flags = np.full(len(last_event_ms), is_old) if gap is None or is_old else gap.has(last_event_ms)
        return replace(batch, usage=batch.usage.append_column(IN_GAP, pa.array(flags))), gap

    def _facts(
        self,
        evaluation: Evaluation,
        batch: CollectedBatch,
        offsets: OffsetRange,
        collected: Moment,
        gap: Gap | None,
    ) -> BatchFacts:
        is_late = pc.less_equal(batch.usage["last_event_ms"], evaluation.evaluated_at_ms - self._late_after_ms)
        return BatchFacts(
            evaluation=evaluation,
            processed_at_ms=collected.wall_ms,
            start_offsets=offsets.start,
            end_offsets=offsets.end,
            engine_settings=self._engine_settings,
            good_count=batch.good_count,
            late_count=int(pc.sum(batch.usage["event_count"].filter(is_late)).as_py() or 0),
            clamped_count=batch.clamped_count,
            ignored_count=batch.ignored_count,
            dead_count=batch.dead_count,
            folded_count=batch.folded_count,
            topic_ids=json.dumps(self._topics.ids, separators=(",", ":")),
            gap_since_ms=None if gap is None else gap.since_ms,
            gap_until_ms=None if gap is None else gap.until_ms,
        )

    def _is_old(self, age_ms: int) -> bool:
        return age_ms > self._stream.max_decision_age_ms

    def _append_input(self, batch: CollectedBatch, facts: BatchFacts) -> Moment:
        """Returns when it was done. Nothing is written if the messages may be those of another topic."""
        self._topics.check()
        evaluation, cluster = facts.evaluation, self._tables.cluster
        if batch.dead_letters.num_rows:
            letters = conform(
                batch.dead_letters,
                DeadLetterRow,
                cluster=cluster,
                query_id=evaluation.query_id,
                batch_id=evaluation.batch_id,
                topic=self._usage_topic,
            )
            self._tables.dead_letters.append(letters, facts.versions, {})
            failpoint("dead_letters.appended")
        usage = conform(batch.usage, UsageRow, cluster=cluster, **asdict(evaluation))
        self._tables.usage.append(usage, facts.versions, facts.to_metadata())
        failpoint("usage.appended")
        return self._clock.now()

    def _publish(self, decided: Decided, facts: BatchFacts, is_stored: bool = False) -> int:
        evaluation = facts.evaluation
        waited_ms = self._began.wall_ms - evaluation.evaluated_at_ms if is_stored else 0
        if not (self._is_old(facts.age_ms) or self._is_old(waited_ms)):
            return self._purgatory.violated(decided.violations, evaluation, facts.versions)
        if len(decided.violations):
            # What has waited for this start is old as expected; later it is a sign that the job is too slow.
            waited = is_stored or self._clock.now().steady_ms - facts.age_ms < self._began.steady_ms
            log.log(
                logging.INFO if waited else logging.WARNING,
                "batch_id=%d %s: %s recorded, but no throttle is published",
                evaluation.batch_id,
                "has usage from before this start" if waited else f"is {facts.age_ms / 1000:.1f} s old",
                counted(len(decided.violations), "violation"),
            )
        return 0


@contextmanager
def _meanwhile(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[T]]:
    """Do work on a thread of its own, while the block runs. It is done when the block ends."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="append") as pool:
        yield pool.submit(work, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch did and how long its steps took, for the status line and the metrics.

    A batch is decided while its usage is stored: `append_ms` ends when it is stored, `decide_ms` is what comes after.
    `publish_ms` includes the appends to `decisions` and `batches`.

    `dead_causes` has how many elements were refused for which cause; those that `dead_letters` only counts are under
    `MORE_REFUSED`. `began_ms` is when the batch began, by the wall clock; `append_times_ms` has the newest append time
    of each partition that it has messages of. For a batch that was taken from the tables both mappings are empty, and
    `usage_rows` is the number of events.
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
    usage_rows: int
    dead_causes: Mapping[str, int] = field(default_factory=dict)
    began_ms: int = 0
    append_times_ms: Mapping[int, int] = field(default_factory=dict)


def query_id_of(frame: DataFrame) -> str:
    """Spark's id of the query that a micro-batch belongs to: a local property of the stream's thread."""
    return str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "")
