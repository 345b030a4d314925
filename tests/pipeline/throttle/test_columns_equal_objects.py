"""What the job does by columns is what it does client by client: rows, records, their bytes, and who is held."""

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.clock import Moment
from pipeline.throttle.assembly import Ports, assemble
from pipeline.throttle.publisher import Marker
from pipeline.throttle.shapes import Written, records_of
from quota.entity import QUOTA_TYPES
from quota.replay import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.throttle_messages import ThrottleRecords
from schemas.throttle_record import ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.fakes.outbox import MemoryOutbox
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.pipeline.throttle.loop import CAP_MS, LEAD_MS, SETTINGS, USAGE
from tests.pipeline.throttle.one_by_one import JOB, Message, OneByOne

Scope = Literal["cluster", "broker"]
Session = list[tuple[str, Any]]

USERS = ("alice", 'b"o\\b', "náïve\n✓", "\x7f\x01")
CLIENT_IDS = ("", "etl", 'a",')
BROKERS = ("", "1")
BATCHES_KEPT = 3


class SentTopic(MemoryTopic):
    """A topic that also keeps what a producer is given."""

    def __init__(self, broker: TopicBroker, messages: list[Message]) -> None:
        super().__init__(broker)
        self._messages = messages

    def publish(self, records: Sequence[ThrottleRecord], marker: Marker) -> None:
        super().publish(records, marker)
        self._messages += [(one.key, one.value, one.headers) for one in ThrottleRecords.of(records).messages(JOB)]


class ByColumns:
    """The job's own engine, purgatory and publisher."""

    def __init__(self, scope: Scope, clock: ManualClock) -> None:
        self._scope, self._clock = scope, clock
        self.outbox = MemoryOutbox()
        self.messages: list[Message] = []
        self.announced: list[tuple[Written, int]] = []
        self._broker = TopicBroker()
        self.start([])

    def start(self, batches: list[tuple[QuotaSnapshot, pa.Table, Evaluation]]) -> None:
        topic = SentTopic(self._broker, self.messages)
        job = SETTINGS.model_copy(update={"job": JOB})
        enforcement = assemble(job, self._scope, "a cluster", Ports(self.outbox, topic, self._clock, self._heard))
        self.decider, self.purgatory = enforcement.decider, enforcement.purgatory
        for snapshot, usage, evaluation in batches:
            self.decider.decide(snapshot, usage, evaluation, Moment(0, evaluation.evaluated_at_ms))
        self.purgatory.take_over()

    def batch(self, snapshot: QuotaSnapshot, usage: pa.Table, evaluation: Evaluation) -> pa.Table:
        decided = self.decider.decide(snapshot, usage, evaluation, self._clock.now())
        self.purgatory.violated(decided.violations, evaluation, {"query": evaluation.batch_id})
        return decided.decisions

    def _heard(self, written: pa.Table, quota_version: int) -> None:
        self.announced += [(record, quota_version) for record in records_of(written)]


class Both:
    """The same session on both, compared after every step."""

    def __init__(self, scope: Scope, rows: list[dict[str, Any]]) -> None:
        self.clock = ManualClock()
        self.columns = ByColumns(scope, self.clock)
        self.objects = OneByOne(SETTINGS, scope, "a cluster")
        self.snapshots = [QuotaSnapshot.from_rows(rows, version=1)]
        self.batches: list[tuple[QuotaSnapshot, pa.Table, Evaluation]] = []
        self.edited()

    def edited(self) -> None:
        self.columns.purgatory.quotas_changed(self.snapshots[-1])
        self.objects.edit(self.snapshots[-1], self.clock.now())

    def edit(self, rows: list[dict[str, Any]]) -> None:
        self.snapshots.append(QuotaSnapshot.from_rows(rows, version=len(self.snapshots) + 1))
        self.edited()

    def batch(self, used: list[dict[str, Any]], pinned: int = 1) -> None:
        now_ms = self.clock.steady_ms
        snapshot = self.snapshots[-min(pinned, len(self.snapshots))]
        times = {"sample_start_ms": now_ms // 1_000 * 1_000, "last_event_ms": now_ms}
        usage = pa.Table.from_pylist([{**one, **times} for one in used], USAGE)
        evaluation = Evaluation("query", len(self.batches), now_ms, snapshot.version)
        self.batches.append((snapshot, usage, evaluation))
        decisions = self.columns.batch(snapshot, usage, evaluation)
        assert decisions.equals(self.objects.batch(snapshot, usage, evaluation, self.clock.now()))

    def wait(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.columns.purgatory.tick()
        self.objects.tick(self.clock.now())

    def pop_due(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        assert self.columns.purgatory.pop_due() == self.objects.pop_due(self.clock.now())

    def restart(self, batches: int) -> None:
        kept = self.batches[-batches:] if batches else []
        self.columns.start(kept)
        self.objects.start(self.clock.now(), kept)
        self.edited()

    def set_clock(self, by_ms: int) -> None:
        self.clock.set_wall(self.clock.wall_ms + by_ms)

    def play(self, session: Session) -> None:
        for step, argument in session:
            getattr(self, step)(*argument)
            self.compare()

    def compare(self) -> None:
        columns, objects = self.columns, self.objects
        assert columns.outbox.rows == objects.outbox.rows
        assert columns.messages == objects.messages
        assert columns.announced == objects.announced
        held = columns.purgatory.held().to_pylist()
        running = objects.running()
        assert [(row["user"], row["client_id"], row["broker_id"], row["decision_id"]) for row in held] == [
            (one.key.user, one.key.client_id, one.key.broker_id, one.decision_id) for one in running
        ]
        times = [(row["end_ms"], row["due_ms"], row["bound"], row["level"]) for row in held]
        assert times == [(one.end_ms, one.due_ms, one.reason.bound, one.reason.level) for one in running]
        sensors = [(row["quota_type"], row["sensor_user"], row["sensor_client_id"]) for row in held]
        assert sensors == [
            (one.reason.quota_type, one.reason.sensor_user, one.reason.sensor_client_id) for one in running
        ]


def default_quota(bound: float, mode: str = "enforce") -> dict[str, Any]:
    return {"user": "<default>", "client_id": "<default>", "producer_byte_rate": bound, "mode": mode}


def for_everybody(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With a quota that everybody has who has no other."""
    default = default_quota(1_000.0)
    others = (row for row in rows if (row["user"], row["client_id"]) != (default["user"], default["client_id"]))
    return [*others, default]


def quotas() -> st.SearchStrategy[list[dict[str, Any]]]:
    bound = st.sampled_from([None, 100.0, 1_000.0, 1_234.5, 50_000.0])
    row = st.fixed_dictionaries(
        {
            "user": st.sampled_from(("", "<default>", *USERS)),
            "client_id": st.sampled_from(("", "<default>", *CLIENT_IDS[1:])),
            "producer_byte_rate": bound,
            "consumer_byte_rate": bound,
            "request_percentage": st.sampled_from([None, 10.0, 0.1]),
            "mode": st.sampled_from(("enforce", "enforce", "enforce", "shadow", "exempt")),
        }
    )
    return st.lists(row, max_size=5, unique_by=lambda one: (one["user"], one["client_id"])).map(_valid)


def _valid(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    named = (row for row in rows if row["user"] or row["client_id"])
    return [{**row, **_rates(row)} for row in named]


def _rates(row: dict[str, Any]) -> dict[str, float | None]:
    """None if it is exempt; else at least one."""
    rates = {name: row[name] for name in QUOTA_TYPES if row["mode"] != "exempt"}
    if row["mode"] != "exempt" and not any(rates.values()):
        return {"producer_byte_rate": 1_000.0}
    return {**dict.fromkeys(QUOTA_TYPES), **rates}


def used() -> st.SearchStrategy[list[dict[str, Any]]]:
    size = st.sampled_from([None, 0, 1, 9_999, 10_001, 12_345, 40_000, 600_000, 600_000])
    row = st.fixed_dictionaries(
        {
            "broker_id": st.sampled_from(BROKERS),
            "user": st.sampled_from(USERS),
            "client_id": st.sampled_from(CLIENT_IDS),
            "produced_bytes": size,
            "fetched_bytes": size,
            "io_time_ns": st.sampled_from([None, 0, 10**9, 3 * 10**10]),
            "network_time_ns": st.sampled_from([None, 7]),
        }
    )
    return st.lists(row, min_size=1, max_size=8)


def sessions() -> st.SearchStrategy[Session]:
    some_ms = st.sampled_from([1, LEAD_MS - 1, LEAD_MS, CAP_MS - LEAD_MS, CAP_MS, 5_000, 40_000])
    steps = st.one_of(
        st.tuples(st.just("batch"), st.tuples(used(), st.sampled_from([1, 1, 1, 2]))),
        st.tuples(st.just("batch"), st.tuples(used())),
        st.tuples(st.just("wait"), st.tuples(some_ms)),
        st.tuples(st.just("wait"), st.tuples(some_ms)),
        st.tuples(st.just("pop_due"), st.tuples(some_ms)),
        st.tuples(st.just("edit"), st.tuples(quotas())),
        st.tuples(st.just("edit"), st.tuples(quotas().map(for_everybody))),
        st.tuples(st.just("restart"), st.tuples(st.sampled_from([0, 1, BATCHES_KEPT]))),
        st.tuples(st.just("set_clock"), st.tuples(st.sampled_from([-100_000, 500, 100_000]))),
    )
    return st.lists(steps, min_size=1, max_size=20)


@given(st.sampled_from(["cluster", "broker"]), quotas().map(for_everybody), sessions())
@settings(max_examples=40)
def test_columns_do_what_is_done_client_by_client(scope: Scope, rows: list[dict[str, Any]], session: Session) -> None:
    Both(scope, rows).play(session)


def all_used(size: int, clients: int = 60) -> list[dict[str, Any]]:
    return [
        {"broker_id": "", "user": f"user-{number % 7}", "client_id": f"c{number}", "produced_bytes": size + number}
        for number in range(clients)
    ]


@pytest.mark.parametrize("bound_after", [500.0, 1_500.0, 1e9])
def test_many_clients_are_throttled_extended_renewed_edited_and_released_alike(bound_after: float) -> None:
    both = Both("cluster", [default_quota(1_000.0)])
    session: Session = [
        ("batch", (all_used(11_500),)),
        ("pop_due", (CAP_MS - LEAD_MS,)),
        ("wait", (7,)),
        ("batch", (all_used(3_000, clients=30),)),
        ("wait", (CAP_MS,)),
        ("restart", (2,)),
        ("wait", (CAP_MS,)),
        ("edit", ([default_quota(1_000.0), {**default_quota(bound_after), "user": "user-3", "client_id": ""}],)),
        ("edit", ([default_quota(bound_after)],)),
        ("batch", (all_used(1, clients=10), 2)),
        *[("wait", (200,))] * 60,
        ("edit", ([],)),
    ]
    both.play(session)
    causes = {row["cause"] for row in both.objects.outbox.rows}
    assert causes == {"violation", "renewed", "expired", "quota_changed"}
    assert both.objects.running() == []


ALICE = {"broker_id": "", "user": "alice", "client_id": "etl"}


def bounds(producer: float | None, consumer: float | None, **entity: str) -> dict[str, Any]:
    entity = {"user": "<default>", "client_id": "<default>", **entity}
    return {**entity, "producer_byte_rate": producer, "consumer_byte_rate": consumer, "mode": "enforce"}


@pytest.mark.parametrize(
    ("rows", "session", "last"),
    [
        (
            [bounds(1_000.0, None)],
            [("batch", ([{**ALICE, "produced_bytes": 600_000}],)), ("restart", (1,)), ("wait", (CAP_MS,))],
            ("renewed", "producer_byte_rate", 5),
        ),
        (
            [bounds(1_000.0, None)],
            [
                ("batch", ([{**ALICE, "produced_bytes": 600_000}],)),
                ("edit", ([bounds(1_000.0, None), bounds(900.0, None, user="alice", client_id="etl")],)),
            ],
            ("quota_changed", "producer_byte_rate", 1),
        ),
        (
            [bounds(1_000.0, 1_000.0)],
            [
                ("batch", ([{**ALICE, "fetched_bytes": 11_400}],)),
                *[("wait", (time_ms,)) for time_ms in (LEAD_MS, 20_000, 1)],
            ],
            ("expired", "consumer_byte_rate", 5),
        ),
        (
            [bounds(1_000.0, 1_000.0)],
            [
                ("batch", ([{**ALICE, "produced_bytes": 600_000, "fetched_bytes": 12_400}],)),
                ("edit", ([bounds(1e9, 999.0)],)),
            ],
            ("quota_changed", "consumer_byte_rate", 5),
        ),
    ],
    ids=["level after a restart", "level and sensor after an edit", "own type where none owes", "other type fell"],
)
def test_a_reason_is_found_alike(rows: list[dict[str, Any]], session: Session, last: tuple[str, str, int]) -> None:
    both = Both("cluster", rows)
    both.play(session)
    told = both.objects.announced[-1][0].publication
    assert (told.cause, told.reason.quota_type, told.reason.level) == last
