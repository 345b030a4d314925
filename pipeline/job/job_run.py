"""One life of the streaming query: all that is rebuilt from the tables when it starts, and its upkeep."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from pipeline.clock import Clock
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import (
    Ids,
    JobTopics,
    TopicIds,
    is_other,
    refuse_other_throttle_topics,
    refuse_other_usage_topic,
)
from pipeline.errors import Unreachable, UsageError
from pipeline.failpoints import failpoint
from pipeline.job.metrics import AppendClocks, Listeners, RunGauges
from pipeline.process import Background
from pipeline.settings.model import Settings, TablesSettings
from pipeline.stream.checkpoint import (
    Checkpoint,
    CheckpointFiles,
    OffsetLog,
    OffsetRange,
    Span,
    refuse_gaps,
    spans_and_newest,
    starting_offsets,
)
from pipeline.stream.job_tables import WRITTEN_BY_THE_JOB, DriverEpoch, JobTables, RatesTable, RollUps
from pipeline.stream.micro_batch import BatchReport, MicroBatch
from pipeline.stream.query import Collector, UsageQuery, most_messages, read_usage_topic
from pipeline.stream.recovery import Recovered, rebuild
from pipeline.stream.usage_columns import ReadingRules
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import claim_tables
from pipeline.tables.object_store import scheme_of
from pipeline.tables.port import TableWriter, table_uri
from pipeline.tables.queries import StoredTable, newest_value
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.upkeep import UPKEEP_EVERY_SECONDS, clean, log_failures, merge, trim
from pipeline.throttle.assembly import assemble
from pipeline.throttle.publisher import Publisher
from pipeline.throttle.purgatory import ThrottlePurgatory
from pipeline.throttle.topic import KafkaThrottleTopic
from quota.units import counted


def take_over(
    tables: JobTables,
    epoch: DriverEpoch,
    quotas: QuotaSource,
    purgatory: ThrottlePurgatory,
    clock: Clock,
    settings: Settings,
    now: Ids,
    takes_topic: bool = False,
) -> Recovered:
    """Fence earlier drivers in the tables, rebuild the engine, fence them on the topic, publish what they left.

    * `now`: The ids of the job's topics.
    * `takes_topic`: See `Publisher.take_over`. Also whether a throttle or marker topic may be another one than before.
        On another throttle topic, the running throttles are published again.

    Raises:
        Conflict: Another driver has taken over, or the topic has records of other tables.
        Refused: The throttle or marker topic was deleted and made anew. Nothing was published.
    """
    epoch.raise_in(tables.writers, tables.job)
    failpoint("start.epochs_raised")
    recovered = rebuild(tables, quotas, purgatory.decider, clock, settings)
    if not takes_topic:
        refuse_other_throttle_topics(settings, recovered.topic_ids, now)
    purgatory.decider.adopt(quotas.pin())
    failpoint("start.rebuilt")
    is_new = is_other(recovered.topic_ids, now, settings.kafka.throttle_topic)
    quotas_at = quotas.at if quotas.pin().forgiven or quotas.pin().tenants else None
    purgatory.take_over(takes_topic, is_new, quotas_at)
    return recovered


def refuse_other_messages(
    settings: Settings, checkpoint: Checkpoint, spans: Mapping[str, Span], before: Ids, now: Ids
) -> None:
    """Refuse a checkpoint if the messages that follow it are gone, or the usage topic is another one.

    * `before`, `now`: The ids of the topics, as the tables have them and as they are.
    """
    topic = settings.kafka.usage_topic
    if not checkpoint.begins_at_first(topic, spans):
        refuse_other_usage_topic(settings, before, now)
    refuse_gaps(topic, settings.stream.checkpoint, checkpoint.next_offsets().get(topic, {}), spans)


def refuse_state_on_one_node(settings: Settings) -> None:
    """Refuse tables or a checkpoint on one node's disk in deploy mode cluster: the next driver would not find it.

    The lock of `run_dir` may stay on the node: it only keeps a second driver of the same node away; one elsewhere is
    fenced by the tables and by Kafka.
    """
    for setting, place in places_on_one_node(settings):
        message = f"'{setting}' {place} is on one node's disk, and the cluster chooses the driver's node"
        fix = (
            "name a store (s3://…, abfss://…), list the folder in 'spark.shared_folders' if every node mounts it, or "
            "submit with --deploy-mode client"
        )
        raise UsageError(message, fix)


def places_on_one_node(settings: Settings) -> Iterator[tuple[str, str]]:
    """Which of the settings name a place on one node's disk, each with that place.

    A place is shared if it is an absolute path, or such a path with the scheme `file`, in one of
    `spark.shared_folders`; or an address of a store.
    """
    for setting, place in (("tables.root", settings.tables.root), ("stream.checkpoint", settings.stream.checkpoint)):
        parts = urlsplit(place) if scheme_of(place) else None
        path = PurePosixPath(place if parts is None else unquote(parts.path))
        is_in_a_store = parts is not None and parts.scheme != "file"
        if not (is_in_a_store or any(path.is_relative_to(folder) for folder in settings.spark.shared_folders)):
            yield setting, place


log = logging.getLogger(__name__)

# Not the time of the sample: a late row is kept as long as the batch it came with. Batches before the first usage are
# evaluated at 0, so the next round deletes their rows of `batches`; they hold no usage and decide nothing.
_TIME: Final = "evaluated_at_ms"
_TIME_OF: Final = {
    "dead_letters": "appended_at_ms",
    "usage_by_second": "second_start_ms",
    "usage_by_minute": "minute_start_ms",
    "throttle_by_minute": "minute_start_ms",
}
_SHORT_LIVED: Final = ("usage", "sensor_state")
_LONGEST_WAIT_MS: Final = 24 * 3_600_000  # of the retention of usage for the roll-ups
_ROUNDS_PER_CLEANING: Final = 5  # listing all files costs more than the rest of a round


class Upkeep:
    """Upkeep for a job that runs for a year: old rows, many files, long logs and idle sensors go.

    A step that fails is logged, and done again in the next round. Throttling goes on, even if a table grows.

    Args:
        clock: Clock of the driver. Retention is counted from its wall time, or from the newest stored rows if they are
            older: after a pause, the next start still needs what was kept before it. The newest rows are those of the
            newest time epoch. Rows that a clock dated ahead of it go when it has passed them.
        usage_read_until_ms: Usage evaluated at this instant or later may not be rolled up yet: it stays, for 24 h at
            most. 0 before that is known.
    """

    def __init__(
        self,
        tables: TablesSettings,
        clock: Clock,
        expire_idle: Callable[[], int],
        usage_read_until_ms: Callable[[], int],
    ) -> None:
        self._tables = tables
        self._clock = clock
        self._expire_idle = expire_idle
        self._usage_read_until_ms = usage_read_until_ms
        self._rounds = 0

    def round(self) -> float:
        """Do one round. Returns how many seconds to wait before the next one."""
        dropped = self._expire_idle()
        if dropped:
            log.info("dropped %d sensors that were idle for an hour", dropped)
        cleaning = self._rounds % _ROUNDS_PER_CLEANING == 0
        self._rounds += 1
        for name in WRITTEN_BY_THE_JOB:
            if name == "rates":  # it is replaced as a whole, and cleaned by its own thread
                continue
            with log_failures(log, f"upkeep of {name}"):
                self._keep_up(name, cleaning)
        return UPKEEP_EVERY_SECONDS

    def _keep_up(self, name: str, cleaning: bool) -> None:
        uri = table_uri(self._tables.root, name)
        trimmed = trim(uri, _TIME_OF.get(name, _TIME), self._kept_from_ms(name))
        compacted = merge(self._tables.root, name)
        removed = clean(uri, files=cleaning)
        if trimmed or removed:
            log.info(
                "upkeep of %s: %d old rows deleted, %s, %d replaced files removed",
                name,
                trimmed,
                "compacted" if compacted else "not compacted",
                removed,
            )

    def _kept_from_ms(self, name: str) -> int:
        now_ms = self._retention_end_ms(name)
        if name == "usage_by_second":
            return now_ms - self._tables.seconds_retention_ms
        if name not in _SHORT_LIVED:
            return now_ms - self._tables.history_retention_ms
        kept_from_ms = now_ms - self._tables.usage_retention_ms
        if name != "usage":
            return kept_from_ms
        unread_ms = self._usage_read_until_ms()
        waits_from_ms = now_ms - _LONGEST_WAIT_MS
        if 0 < unread_ms < min(kept_from_ms, waits_from_ms):
            log.warning("the roll-ups are more than 24 h behind: usage is deleted that is in none of them")
        return min(kept_from_ms, max(unread_ms, waits_from_ms))

    def _retention_end_ms(self, name: str) -> int:
        # Dead letters come also without usage, so they have an instant of their own.
        wall_ms, root = self._clock.now().wall_ms, self._tables.root
        if name == "dead_letters":
            newest_ms = newest_value(table_uri(root, name), _TIME_OF[name])
        else:
            newest = StoredTable(table_uri(root, "usage")).newest_instant()
            newest_ms = None if newest is None else newest.evaluated_at_ms
        return wall_ms if newest_ms is None else min(wall_ms, newest_ms)


_UPKEEP_PATIENCE_SECONDS: Final = 2.0
_LEAST_POLL_MS: Final = 250  # a poll of the quotas reads the log of their table
_FULL: Final = 0.9  # of a batch: Spark divides its most messages among the partitions, and rounds down
_SAMPLE_MESSAGES: Final = 20  # of each partition, for the first batch
_LONGEST_REST_MS: Final = 25
"""How long the threads that pop and that check throttles rest at most. They wake earlier for what is due."""
_TOPICS_POLL_MS: Final = 5_000  # for a job without new usage: each batch looks at the ids of the topics, too


class JobRun:
    """Engine, purgatory and query, rebuilt from the tables.

    Making one builds the parts and changes nothing outside. `take_over` fences an earlier driver, rebuilds the engine
    and publishes what was left; `start` starts the query and the threads; `close` ends them in reverse.

    * `cluster`: The name that the job's rows carry.
    * `epoch`: That of this process, for all its runs.
    """

    def __init__(
        self, settings: Settings, cluster: str, epoch: DriverEpoch, clock: Clock, listeners: Listeners
    ) -> None:
        self._settings = settings
        self._access = ClusterAccess.from_settings(settings.kafka)
        self._epoch = epoch
        self._clock = clock
        self._listeners = listeners
        self._failure: BaseException | None = None
        self._query: UsageQuery | None = None
        self._most_messages = 0
        self._checkpoint = CheckpointFiles(settings.stream.checkpoint)
        self._quota_table = QuotaTable(settings.tables.root)
        self._quotas = QuotaSource(self._quota_table)
        self._tables = JobTables(self._open_writer, settings.job, cluster, settings.stream.sensor_state_interval_ms)
        topic = KafkaThrottleTopic.from_settings(settings, self._access)
        self._purgatory = assemble(
            settings,
            settings.scope or self._quotas.scope,
            cluster,
            Publisher(settings.job, cluster, self._tables.throttle_events, topic, listeners.announce),
            clock,
        )
        rates_uri = table_uri(settings.tables.root, "rates")
        self._rates = RatesTable(
            self._tables.writers["rates"],
            rates_uri,
            cluster,
            self._purgatory.decider,
            self._purgatory.held_until,
            clock,
        )
        kafka = settings.kafka
        self._ids = TopicIds(self._access, (kafka.usage_topic, kafka.throttle_topic, kafka.marker_topic))
        self._topics = JobTopics(settings, self._ids)
        self._clocks = AppendClocks(settings.stream.clock_tolerance_ms)
        self._gauges = RunGauges(self._purgatory, self._quotas, self._clocks, self._rates)
        self._roll_ups = RollUps(settings.tables, self._tables, self._quota_table)
        upkeep = Upkeep(
            settings.tables,
            clock,
            self._purgatory.decider.expire_idle,
            lambda: self._roll_ups.written_until_ms,
        )
        poll_ms = max(settings.stream.trigger_ms, _LEAST_POLL_MS)
        self._threads = [
            Background("reaper", _again(self._purgatory.pop_due, self._until_due_ms), self._failed),
            Background("looker", _again(self._purgatory.tick, self._until_due_ms), self._failed),
            Background("quota-poller", _again(self._poll_quotas, lambda: poll_ms), self._failed),
            Background("topics", _again(self._check_topics, lambda: _TOPICS_POLL_MS), self._failed),
        ]
        # What they have not finished at the end, the next start finishes. Each of them reads a minute of usage, and
        # never both at the same time, which would take the memory of both.
        reading = Lock()
        self._patient = [
            Background("rates", self._rates.step, self._failed),
            Background("upkeep", _alone(upkeep.round, reading), self._failed),
        ]
        # Its first minute the machine is left to the start of the job; then to the upkeep, which leaves few files.
        rollup_ms = settings.stream.rollup_interval_ms
        roll_up = _alone(_again(self._roll_ups.step, lambda: rollup_ms), reading)
        self._patient.append(Background("roll-up", roll_up, self._failed, 1.1 * rollup_ms / 1000))

    def take_over(self, takes_topic: bool) -> Recovered:
        """Take tables and topic over from an earlier driver, rebuild the engine, publish what was left unpublished.

        * `takes_topic`: See `take_over.take_over`.

        Raises:
            Conflict: The tables are another job's, the topic has records of other tables, or another driver has taken
                over.
        """
        settings = self._settings
        claim_tables(settings.tables.root, settings.job)
        self._topics.begin()
        recovered = take_over(
            self._tables,
            self._epoch,
            self._quotas,
            self._purgatory,
            self._clock,
            settings,
            self._topics.ids,
            takes_topic,
        )
        if recovered.batches:
            log.info("rebuilt rates from %d batches, %d rows", recovered.batches, recovered.rows)
        return recovered

    def sample_topic(self) -> tuple[dict[str, Span], list[bytes]]:
        """The offsets that the usage topic has, and some of its newest messages."""
        return spans_and_newest(self._access, self._settings.kafka.usage_topic, _SAMPLE_MESSAGES)

    def start(
        self, spark: SparkSession, recovered: Recovered, spans: Mapping[str, Span], newest: Sequence[bytes]
    ) -> None:
        """Start the threads and the query.

        * `spans`, `newest`: of `sample_topic`, which needs no session: so it is asked while Spark starts.
        """
        settings = self._settings
        batch = MicroBatch(
            collect=Collector(ReadingRules.from_settings(settings), newest),
            offsets=OffsetLog(self._checkpoint),
            tables=self._tables,
            quotas=self._quotas,
            decider=self._purgatory.decider,
            purgatory=self._purgatory,
            clock=self._clock,
            settings=settings,
            recovered=recovered,
            topics=self._topics,
            report=self._note_batch,
        )
        batch.complete_stored()
        checkpoint = Checkpoint.read(self._checkpoint)
        begin_at = self._starting_offsets(recovered, checkpoint, spans)
        self._most_messages = most_messages(newest, settings.stream.max_offsets_per_trigger)
        self._query = self._query_of(spark, batch, begin_at)
        self._query.start()
        for thread in (*self._threads, *self._patient):
            thread.start()
        self._listeners.began(self._gauges)

    def _query_of(self, spark: SparkSession, batch: MicroBatch, begin_at: str) -> UsageQuery:
        settings, access = self._settings, self._access
        source = read_usage_topic(
            spark,
            access.bootstrap_servers,
            settings.kafka.usage_topic,
            client_options=access.spark_options(),
            starting_offsets=begin_at,
            max_offsets_per_trigger=self._most_messages,
        )
        checkpoint = settings.stream.checkpoint
        place = checkpoint if scheme_of(checkpoint) else str(Path(checkpoint).resolve())
        return UsageQuery(source, batch, settings.job, place, settings.stream.trigger_ms)

    def failure(self) -> BaseException | None:
        """What has ended the query or one of the threads; None while all is well."""
        return self._failure or (self._query.failure() if self._query is not None else None)

    def is_waiting(self) -> bool:
        """Whether the query has done all there is, and waits for its next trigger."""
        return self._query is not None and self._query.is_waiting()

    def close(self) -> None:
        """Stop the query between two batches, then the threads, then leave the topic."""
        if self._query is not None:
            self._query.stop()
        for thread in reversed(self._patient):
            thread.close(_UPKEEP_PATIENCE_SECONDS)
        for thread in reversed(self._threads):
            thread.close()
        self._purgatory.close()
        self._ids.close()

    def _note_batch(self, report: BatchReport) -> None:
        messages = OffsetRange(report.facts.start_offsets, report.facts.end_offsets).message_count
        has_read_all = messages is not None and messages < _FULL * self._most_messages
        self._clocks.note(report.began_ms, report.append_times_ms, has_read_all)
        self._listeners.report(report)

    def _open_writer(self, name: str) -> TableWriter:
        uri = table_uri(self._settings.tables.root, name)
        return DeltaRsWriter(uri, self._settings.job, partial(self._listeners.committed, name))

    def _starting_offsets(self, recovered: Recovered, checkpoint: Checkpoint | None, spans: Mapping[str, Span]) -> str:
        """Where a new checkpoint begins. One that is there must fit the tables and find the messages it wants."""
        topic, stream = self._settings.kafka.usage_topic, self._settings.stream
        before, now = recovered.topic_ids, self._topics.ids
        if checkpoint is not None:
            checkpoint.check(self._tables.batches.recorded_version, recovered.newest_query_id)
            refuse_other_messages(self._settings, checkpoint, spans, before, now)
        if not recovered.end_offsets:
            return stream.starting_offsets
        if not is_other(before, now, topic):
            return starting_offsets(topic, recovered.end_offsets, spans)
        log.warning(
            "topic '%s' was made anew (its id is %s, before %s): usage begins with its first message. What was not "
            "read of the old topic is in no rate",
            *(topic, now[topic], before[topic]),
        )
        return starting_offsets(topic, "{}", spans)

    def _poll_quotas(self) -> None:
        snapshot = self._quotas.poll()
        if snapshot is not None:
            (version, of_tenants), tenants = snapshot.versions, len(snapshot.tenants)
            more = f", tenants v{of_tenants}: {counted(tenants, 'tenant')}" if of_tenants >= 0 else ""
            log.info("quotas v%d in force: %s%s", version, counted(len(snapshot.quotas), "row"), more)
        self._purgatory.quotas_changed(self._quotas.pin())

    def _check_topics(self) -> None:
        with suppress(Unreachable):  # the query has the same trouble
            self._topics.check()

    def _until_due_ms(self) -> int:
        return rest_ms(self._purgatory.next_due_ms(), self._clock.now().steady_ms, _LONGEST_REST_MS)

    def _failed(self, failure: BaseException) -> None:
        self._failure = failure


def _again(step: Callable[[], object], rest_ms: Callable[[], int]) -> Callable[[], float]:
    """A step of `Background` that rests for so long after each."""

    def stepped() -> float:
        step()
        return rest_ms() / 1000

    return stepped


def rest_ms(due_ms: int | None, now_ms: int, longest_ms: int) -> int:
    """How long to rest until something is due: at least 1 ms, at most `longest_ms`, also if nothing is (None).

    What is held during a rest may be due before its end: it waits so much longer, at most.
    """
    return longest_ms if due_ms is None else min(max(due_ms - now_ms, 1), longest_ms)


def _alone(step: Callable[[], float], lock: Lock) -> Callable[[], float]:
    """A step that waits while another step with this lock runs."""

    def stepped() -> float:
        with lock:
            return step()

    return stepped
