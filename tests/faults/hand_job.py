"""A whole job without Kafka and Spark: real micro-batches, engine, purgatory and tables on a clock set by hand.

`HandSpark` is what Spark's checkpoint is to the job: it plans a batch, has it run, commits it, and plans the same batch
again after a crash. A crash is an exception at a failpoint, after which nothing is kept but tables, topic, checkpoint.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline import failpoints
from pipeline.cluster.topics import JobTopics
from pipeline.failpoints import Failpoint, FailpointReached, failpoint
from pipeline.job.job_run import take_over
from pipeline.job.metrics import AppendClocks, Listeners, RunGauges
from pipeline.settings.model import (
    EngineSettings,
    KafkaSettings,
    PurgatorySettings,
    Settings,
    StreamSettings,
    TablesSettings,
)
from pipeline.stream.checkpoint import OffsetRange
from pipeline.stream.job_tables import WRITTEN_BY_THE_JOB, DriverEpoch, JobTables, RatesTable
from pipeline.stream.micro_batch import BatchReport, MicroBatch
from pipeline.stream.usage_columns import CollectedBatch, ReadingRules
from pipeline.stream.usage_reader import MESSAGE_SCHEMA, read_usage
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import TableWriter, table_uri
from pipeline.tables.queries import read_table
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable, TenantTable
from pipeline.throttle.assembly import assemble
from pipeline.throttle.publisher import Marker, Publisher
from quota.entity import DEFAULT
from schemas.arrow import arrow_schema
from tests.fakes.clock import ManualClock
from tests.fakes.quotas import MemoryQuotas, MemoryTenants
from tests.fakes.table import MemoryTable, MemoryWriter
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.faults.evidence import Evidence, Message, Quotas, Version, evidence_of
from tests.faults.generator import OFFENDERS, RATES, Content
from tests.faults.rig import AUDIT, rules_of
from tests.faults.verdict import Rules, Verdict
from tests.faults.verifier import verify
from tests.throttle_records import message

TOPIC: Final = "usage"
JOB: Final = "hand"


class KilledTopic(MemoryTopic):
    def publish(self, rows: Any, marker: Marker) -> None:
        failpoint("transaction.sent")
        super().publish(rows, marker)
        failpoint("transaction.committed")


@dataclass
class HandSpark:
    """Offset and commit log of one checkpoint, over a usage topic of one partition."""

    query_id: str = "query"
    start: int = 0
    ends: list[int] = field(default_factory=list)
    committed: int = -1

    def range_of(self, batch_id: int) -> OffsetRange:
        before = _offsets(self.ends[batch_id - 1]) if batch_id else ""
        return OffsetRange(before, _offsets(self.ends[batch_id]))

    def plan(self, end: int) -> int | None:
        """The batch to run next: the one that was not committed, or a new one up to `end`; None if there is nothing."""
        reached_to = self.ends[-1] if self.ends else self.start
        if self.committed == len(self.ends) - 1:
            if end == reached_to:
                return None
            self.ends.append(end)
        return len(self.ends) - 1

    def span(self, batch_id: int) -> slice:
        return slice(self.ends[batch_id - 1] if batch_id else self.start, self.ends[batch_id])


class HandJob:
    """A job that can die anywhere and starts again.

    Args:
        folder: For its tables. None: all are in memory, and no command can read them.
        rates: The default quotas of every user.
        in_memory: All tables but the quotas are kept in memory, which is several times as fast.

    Attributes:
        starts: When it was started, by its steady clock.
        broker_ahead_ms: How far the broker's clock is ahead of the driver's wall clock. Clients share it.
        topic_ids: The ids of topics that were made anew, by name; the others have the id "first".
        meanwhile: Called while a batch is collected, after it has pinned its quotas.
        listeners: Hear what it does; to be set before `start`.
    """

    def __init__(self, folder: Path | None, rates: dict[str, float], in_memory: bool = False) -> None:
        self.settings = Settings(
            job=JOB,
            cluster="test",
            kafka=KafkaSettings(usage_topic=TOPIC),
            tables=TablesSettings(root="memory" if folder is None else str(folder / "tables")),
            engine=EngineSettings(num_samples=4, sample_window_ms=500),
            stream=StreamSettings(sensor_state_interval_ms=5_000, max_decision_age_ms=60_000, trigger_ms=200),
            purgatory=PurgatorySettings(client_lag_ms=100, min_hold_ms=500),
        )
        self._is_on_disk = folder is not None
        in_memory = in_memory or not self._is_on_disk
        if self._is_on_disk:
            edited = [TABLES["quotas"], TABLES["tenants"]]
            create_missing(self.settings.tables.root, edited if in_memory else TABLES.values())
        self._stored = (
            {name: MemoryTable(name, arrow_schema(TABLES[name].model).empty_table()) for name in WRITTEN_BY_THE_JOB}
            if in_memory
            else None
        )
        self._written: dict[str, int] = {}
        self.clock = ManualClock()
        self.broker = TopicBroker()
        self.messages: list[Message] = []
        self.spark = HandSpark()
        self.starts: list[int] = []
        self.broker_ahead_ms = 0
        self.topic_ids: dict[str, str] = {}
        self._moved_at_starts: list[tuple[int, int]] = []
        self._moved_of_batch: dict[tuple[str, int], int] = {}
        self._moved_of_records: list[tuple[int, int]] = [(0, 0)]
        self.meanwhile: Callable[[], object] = lambda: None
        self.listeners = Listeners(lambda _records, _version: None, lambda _report: None)
        root = self.settings.tables.root
        self.quota_table: QuotaTable = QuotaTable(root) if self._is_on_disk else MemoryQuotas(self.clock)
        self.tenant_table: TenantTable = TenantTable(root) if self._is_on_disk else MemoryTenants(self.clock)
        self.edit(rates)

    def edit(self, rates: dict[str, float]) -> None:
        self.quota_table.alter([QuotaChange(user="<default>", client_id="", values=rates)], AUDIT)

    def forgive(self, user: str, client_id: str = "") -> None:
        self.quota_table.commit(lambda rows: rows, AUDIT, forgives=[(user, client_id)])

    @property
    def broker_ms(self) -> int:
        return self.clock.wall_ms + self.broker_ahead_ms

    def set_clocks(self, driver_by_ms: int = 0, broker_by_ms: int = 0) -> None:
        self.broker_ahead_ms += broker_by_ms - driver_by_ms
        self.clock.set_wall(self.clock.wall_ms + driver_by_ms)

    @property
    def _moved_ms(self) -> int:
        return self.clock.wall_ms - self.clock.steady_ms

    def _note_clock(self) -> None:
        if self._moved_of_records[-1][1] != self._moved_ms:
            self._moved_of_records.append((self.rows("throttle_events", ["publish_seq"]).num_rows, self._moved_ms))

    def send(self, *values: bytes | None) -> None:
        for value in values:
            offset = len(self.messages)
            self.messages.append(Message(0, offset, self.broker_ms, f"{offset}".encode(), value))

    def start(self, with_checkpoint: bool = True, takes_topic: bool = False) -> None:
        """A new process, as `JobRun` makes it. Without its checkpoint it begins a new query where the tables end."""
        settings = self.settings
        self._note_clock()
        with patch.object(TenantTable, "found", lambda _root: self.tenant_table):
            self.quotas = QuotaSource(self.quota_table)
        self._polled: object = None
        self.tables = JobTables(self._open_writer, JOB, "test", settings.stream.sensor_state_interval_ms)
        self.topic = KilledTopic(self.broker, JOB)
        publisher = Publisher(settings.job, "test", self.tables.throttle_events, self.topic, self.listeners.announce)
        self.purgatory = assemble(settings, "cluster", "test", publisher, self.clock)
        self.decider = self.purgatory.decider
        self.starts.append(self.clock.steady_ms)
        self._moved_at_starts.append((self._moved_ms, self.rows("throttle_events", ["publish_seq"]).num_rows))
        kafka = settings.kafka
        first = dict.fromkeys((kafka.usage_topic, kafka.throttle_topic, kafka.marker_topic), "first")
        topics = JobTopics(settings, lambda: first | self.topic_ids)
        topics.begin()
        self.recovered = take_over(
            self.tables, DriverEpoch(), self.quotas, self.purgatory, self.clock, settings, topics.ids, takes_topic
        )
        if not with_checkpoint:
            stored = json.loads(self.recovered.end_offsets or _offsets(0))[TOPIC]["0"]
            self.spark = HandSpark(f"{self.spark.query_id}+", start=stored)
        self.clocks = AppendClocks(settings.stream.clock_tolerance_ms)
        self.micro_batch = MicroBatch(
            collect=self._collect,  # type: ignore[arg-type]
            offsets=self.spark,  # type: ignore[arg-type]  # ours needs no Spark
            tables=self.tables,
            quotas=self.quotas,
            decider=self.decider,
            purgatory=self.purgatory,
            clock=self.clock,
            settings=settings,
            recovered=self.recovered,
            topics=topics,
            report=self._report,
        )
        self.micro_batch.complete_stored()
        uri = table_uri(settings.tables.root, "rates")
        self.rates = RatesTable(
            self.tables.writers["rates"], uri, "test", self.decider, self.purgatory.held_until, self.clock
        )
        self.gauges = RunGauges(self.purgatory, self.quotas, self.clocks, self.rates)
        self.listeners.began(self.gauges)

    def step(self) -> None:
        """What the job's threads do in one trigger: poll the quotas, run a batch, turn the wheel."""
        self._note_clock()
        self._poll_quotas()
        self.purgatory.quotas_changed(self.quotas.pin())
        batch_id = self.spark.plan(len(self.messages))
        if batch_id is not None:
            context = SimpleNamespace(getLocalProperty=lambda _: self.spark.query_id)
            frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context), batch_id=batch_id)
            self.micro_batch(frame, batch_id)
            self.spark.committed = batch_id
        self.purgatory.tick()
        if self._stored is None:
            self.rates.step()

    def _report(self, report: BatchReport) -> None:
        self.clocks.note(report.began_ms, report.append_times_ms, has_read_all=True)
        self.listeners.report(report)

    def _poll_quotas(self) -> None:
        """A poll takes a third of a step in memory: it is left out where the logs of both tables have no new file."""
        commits = self._logs() if self._is_on_disk else [self.quota_table.version(), self.tenant_table.version()]
        if commits != self._polled:
            self.quotas.poll()
            self._polled = commits

    def _logs(self) -> list[Path]:
        logs = (Path(table.uri, "_delta_log") for table in (self.quota_table, self.tenant_table))
        return [file for log in logs for file in sorted(log.iterdir())]

    def rows(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        if self._stored is None:
            return read_table(f"{self.settings.tables.root}/{name}", columns)
        return MemoryWriter(self._stored[name], JOB).read(columns)

    def store(self) -> None:
        """Append what is in memory and was not stored yet to tables, one commit each, for readers of tables."""
        assert self._stored is not None
        if not self._written:
            create_missing(self.settings.tables.root)
        for name, table in self._stored.items():
            if name == "rates":
                continue
            new = table.rows.slice(self._written.get(name, 0))
            if new.num_rows:
                write_deltalake(f"{self.settings.tables.root}/{name}", new, mode="append")
            self._written[name] = table.rows.num_rows

    def evidence(self) -> Evidence:
        records = [
            {**json.loads(one.value), "key": json.loads(one.key), "partition": 0}
            for one in map(message, self.broker.records)
        ]
        stored = None if self._stored is None else {name: table.rows for name, table in self._stored.items()}
        evidence = evidence_of(self.settings.tables.root, TOPIC, self.messages, records, stored, self._edits())
        for row in evidence.tables["batches"]:
            row["moved_ms"] = self._moved_of_batch[row["query_id"], row["batch_id"]]
        for row in evidence.tables["throttle_events"]:
            row["moved_ms"] = next(by for first, by in self._moved_of_records[::-1] if first <= row["publish_seq"])
        return replace(evidence, starts=self.starts, moved=self._moved_at_starts)

    def _edits(self) -> dict[Version, Quotas] | None:
        """Every version of the quotas with every one of the tenants, if they are in memory."""
        quotas, tenants = self.quota_table, self.tenant_table
        if not (isinstance(quotas, MemoryQuotas) and isinstance(tenants, MemoryTenants)):
            return None
        return {
            (one.version, other.version): Quotas(tuple(one.stored_rows), one.mode, other.rows)
            for one in quotas.states
            for other in tenants.states
        }

    @property
    def rules(self) -> Rules:
        """For the verifier. Time stands still within a step, so every instant is known to the millisecond."""
        rules = rules_of(self.settings)
        return replace(
            rules,
            most_lead_ms=rules.least_lead_ms,
            clock_slack_ms=0,
            longest_append_ms=0,
            longest_publish_ms=0,
            longest_take_over_ms=0,
        )

    def verdict(self, at_least: Mapping[str, int] | None = None) -> Verdict:
        return verify(self.evidence(), self.rules, at_least)

    def _open_writer(self, name: str) -> TableWriter:
        if self._stored is None:
            uri = table_uri(self.settings.tables.root, name)
            return DeltaRsWriter(uri, JOB, partial(self.listeners.committed, name))
        if name == "rates" and self._is_on_disk:  # only its newest rows are asked for, by readers of tables
            create_missing(self.settings.tables.root, [TABLES[name]])
            return DeltaRsWriter(table_uri(self.settings.tables.root, name), JOB)
        return MemoryWriter(self._stored[name], JOB)

    def _collect(self, frame: Any, count: int | None) -> CollectedBatch:
        del count
        self.meanwhile()
        self._moved_of_batch[self.spark.query_id, frame.batch_id] = self._moved_ms
        messages = self.messages[self.spark.span(frame.batch_id)]
        rows = [{name: getattr(one, name) for name in MESSAGE_SCHEMA.names} for one in messages]
        return read_usage(pa.Table.from_pylist(rows, MESSAGE_SCHEMA), ReadingRules.from_settings(self.settings))


def _offsets(end: int) -> str:
    return json.dumps({TOPIC: {"0": end}})


_STEP_MS: Final = 200
_DOWN_MS: Final = 700


class Pause:
    """Stands in the place of an armed failpoint: the nth time, something else happens before the driver goes on."""

    def __init__(self, name: str, nth: int, meanwhile: Callable[[], None]) -> None:
        self.name, self._left, self._meanwhile = name, nth, meanwhile

    def hit(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._meanwhile()


@contextmanager
def armed(what: Failpoint | Pause | str | None) -> Iterator[None]:
    """Within the block this is what happens at its failpoint; at one of this name a job dies the first time."""
    with patch.object(failpoints, "_armed", Failpoint(f"{what}:1:raise") if isinstance(what, str) else what):
        yield


class Load:
    """A job under load that is killed where a test wants it."""

    def __init__(self, folder: Path, seed: int = 1, in_memory: bool = False) -> None:
        self.job = HandJob(folder, RATES, in_memory)
        self.content = Content(seed, garbage_share=0.05, skew_ms=2_000)
        self.job.start()

    def step(self, waited_ms: int = 0) -> None:
        """One trigger with a dozen messages, after a time in which messages came and none was read."""
        for _ in range(waited_ms // _STEP_MS):
            self._send(3)
        self._send(12)
        self.job.step()

    def steps(self, count: int) -> None:
        _repeat(self.step, count)

    def send_burst(self, who: str = "offender") -> None:
        """A large event of each of eight users, above two of its quotas, with a debt of many slices."""
        self.job.send(*_burst(self.job.clock.wall_ms, who))

    def _send(self, count: int) -> None:
        self.job.send(*(self.content.message(self.job.clock.wall_ms) for _ in range(count)))
        self.job.clock.advance(_STEP_MS)

    def run_until_killed_at(self, point: str) -> None:
        with armed(point), pytest.raises(FailpointReached):
            _repeat(self.job.start if point.startswith("start.") else self.step, 80)
        self.job.clock.advance(_DOWN_MS)

    def edit(self, factor: float) -> None:
        self.job.edit({name: rate * factor for name, rate in RATES.items()})

    def come_to_rest(self) -> None:
        self.job.step()
        for _ in range(600):
            if not len(self.job.purgatory):
                return
            self.job.clock.advance(_STEP_MS // 4)
            self.job.step()
        pytest.fail("the purgatory did not become empty")


def _repeat(step: Callable[[], None], times: int) -> None:
    for _ in range(times):
        step()


AT_LEAST: Final = {
    **{"batches": 30, "messages": 300, "usage": 300, "dead_letters": 20, "clamped_events": 5, "late_events": 8},
    **{"decisions": 20, "holds": 20, "snapshots": 3, "buckets": 30, "full_buckets": 3},
    **{"begins": 20, "extensions": 1, "renewals": 30, "checks": 40, "releases": 10, "edits": 10},
    **{"publish_seq": 80, "topic": 80, "pairs": 80, "epochs": 2, "old_batches": 1},
    **{"gaps": 1, "debts": 1, "forgiven": 3},
}
"""What the verifier must have compared of it."""


def live(load: Load) -> None:
    """Load, restarts, a kill, edits, late usage, clocks ahead and set back, an old batch, a gap, and rest."""
    job = load.job
    load.steps(6)
    job.start()
    load.steps(3)
    load.run_until_killed_at("outbox.appended")
    load.edit(0.5)
    job.start()
    load.steps(3)
    _send_late(load)
    load.steps(2)
    load.edit(2.0)
    load.steps(2)
    _send_from_a_clock_ahead(load)
    load.steps(2)
    _start_when_throttles_have_ended(load)
    _set_clocks_back(load)
    _give_clients_sensors_of_their_own(load)
    _edit_during_a_batch(load, lambda: load.edit(1.0))
    load.steps(3)
    _forgive(load)
    _owe_little(load)
    load.edit(4.0)
    load.come_to_rest()
    _come_back_late(load)
    load.send_burst()
    load.step()
    _wake_up(load)
    load.edit(50.0)
    load.steps(4)
    load.come_to_rest()


def _burst(at_ms: int, who: str = "offender") -> list[bytes]:
    event = {"event_time_ms": at_ms, "client_id": "app", "produced_bytes": 120_000, "fetched_bytes": 300_000}
    return [json.dumps({**event, "user": f"{who}-{number}"}).encode() for number in range(OFFENDERS)]


def _send_late(load: Load) -> None:
    """Usage of five seconds ago, which the rates know no more."""
    load.job.send(*_burst(load.job.clock.wall_ms - 5_000))
    load.step()


def _send_from_a_clock_ahead(load: Load) -> None:
    """Events and append times of a broker whose clock is five minutes ahead."""
    job = load.job
    ahead_ms = job.clock.wall_ms + 300_000
    for value in _burst(ahead_ms):
        job.messages.append(Message(0, len(job.messages), ahead_ms, b"", value))
    load.step()


def _start_when_throttles_have_ended(load: Load) -> None:
    """Nobody was there to look at throttles that end; their clients still owe."""
    job = load.job
    load.send_burst()
    load.step()
    job.clock.advance(2_500)
    job.start()
    load.step()


def _set_clocks_back(load: Load) -> None:
    """Once while the job runs, once between two of its lives, with throttles and debts."""
    job = load.job
    starts: tuple[Callable[[], object], ...] = (lambda: None, job.start)
    for start in starts:
        load.send_burst()
        load.step()
        job.set_clocks(-5_000, -5_000)
        start()
        load.steps(12)


def _give_clients_sensors_of_their_own(load: Load) -> None:
    """Rows of client-ids come and go while their users are held: exceptions change, clients are held one by one."""
    job = load.job
    half: dict[str, Any] = {name: rate / 2 for name, rate in RATES.items()}
    edits = (
        [QuotaChange("offender-1", "app", half), QuotaChange("offender-2", "etl", half)],
        [QuotaChange("offender-2", "web", {"mode": "exempt"})],
        [QuotaChange("offender-3", DEFAULT, half)],
        [QuotaChange("offender-3", DEFAULT, remove=True), QuotaChange("offender-2", "web", remove=True)],
    )
    for changes in edits:
        load.send_burst()
        load.steps(2)
        job.quota_table.alter(changes, AUDIT)
        load.steps(6)


def edit_during_the_next_batch(job: HandJob, edit: Callable[[], object]) -> None:
    """The quotas are edited, and the edit is in force, between the next batch's pin and its decision."""

    def meanwhile() -> None:
        job.meanwhile = lambda: None
        edit()
        job.quotas.poll()
        job.purgatory.quotas_changed(job.quotas.pin())

    job.meanwhile = meanwhile


def _edit_during_a_batch(load: Load, edit: Callable[[], None]) -> None:
    load.send_burst("newcomer")
    edit_during_the_next_batch(load.job, edit)
    load.step()


def _forgive(load: Load) -> None:
    """Debts are forgiven: without usage after it, between the pin of a batch and its decision, before a start."""
    job = load.job
    forgive = (partial(job.forgive, f"offender-{number}") for number in range(4, 7))
    load.send_burst()
    load.steps(2)
    next(forgive)()
    job.clock.advance(_STEP_MS)
    job.step()
    _edit_during_a_batch(load, next(forgive))
    next(forgive)()
    job.start()
    load.steps(2)


def _owe_little(load: Load) -> None:
    """Users who owe a little more than nothing and up to two seconds; again a little later; then an edit raises T."""
    for produced_bytes, each_bytes in ((20_000, 1_000), (3_000, 0), (3_000, 0)):
        about = {"event_time_ms": load.job.clock.wall_ms, "client_id": "app"}
        for number in range(20):
            event = {**about, "user": f"little-{number}", "produced_bytes": produced_bytes + number * each_bytes}
            load.job.send(json.dumps(event).encode())
        load.step()
    load.edit(3.0)
    load.step()


def _wake_up(load: Load) -> None:
    """The process stood still for so long that part of the usage of its next batch is too old to be answered."""
    job = load.job
    job.clock.advance(1_000)
    load.send_burst()
    job.clock.advance(job.settings.stream.max_decision_age_ms + 1)
    load.step()


def _come_back_late(load: Load) -> None:
    """The job was down for so long that what it finds is too old to be published."""
    job = load.job
    load.send_burst()
    job.clock.advance(job.settings.stream.max_decision_age_ms + 1)
    job.start()
    job.step()
    job.start()  # its next batch writes down what is owed
