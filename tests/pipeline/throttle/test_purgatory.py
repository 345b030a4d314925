"""Throttled clients in purgatory: published, checked ahead of the end, renewed or released, each ending once."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.throttle.ledger import Running
from pipeline.throttle.publisher import Marker, Publisher
from pipeline.throttle.purgatory import RenewLead, check, check_after_edit, violations_to_publish
from quota.resolution import MOST_EXCEPTED
from quota.snapshot import QuotaSnapshot
from quota.tenants import read_tenants
from quota.throttle_time import Slicing, Step, ThrottleCaps
from schemas.throttle_record import Target
from tests.pipeline.throttle.factories import Reason, asked, claims, due, violation
from tests.pipeline.throttle.loop import CAP_MS, LEAD_MS, HandLoop, quota

# alice may produce 1 000 B/s: 10 000 B in one instant are free, each 1 000 B more cost a second.


@pytest.mark.parametrize(
    ("rows", "mode"),
    [
        ([quota("alice", 1_000_000.0)], "enforce"),
        ([], "enforce"),
        ([quota("alice", 1_000.0, mode="shadow")], "enforce"),
        ([quota("alice", None, mode="exempt")], "enforce"),
        ([quota("alice", 1_000.0)], "shadow"),
    ],
    ids=["raised", "no quota left", "shadow", "exempt", "all in shadow"],
)
def test_an_edit_that_lets_a_client_go_releases_it_at_once_without_traffic(
    rows: list[dict[str, object]], mode: Literal["enforce", "shadow"]
) -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=20_000)
    loop.advance(100)
    assert loop.edit(*rows, mode=mode) == 1
    assert loop.told()[-1] == ("release", "quota_changed", 0)
    assert (len(loop.purgatory), loop.records[-1].quota_version) == (0, 2)


def test_an_edit_that_gives_a_client_another_sensor_of_equal_bound_releases_it() -> None:
    of_client_id = quota("", 1_000.0, "c")
    loop = HandLoop(of_client_id)
    loop.batch(alice=60_000)
    assert loop.records[-1].target == Target("", "alice", "c", None)
    assert loop.edit(of_client_id, quota("alice", 1_000.0, "c")) == 1
    assert loop.told()[-1] == ("release", "quota_changed", 0), "it owes nothing in the new one"


@pytest.mark.parametrize(
    "own", [quota("alice", 1_000.0, "c"), quota("alice", None, "c", "exempt")], ids=["equal bound", "exempt"]
)
@pytest.mark.parametrize(("used", "later_ms"), [(11_000, 0), (60_000, 100)], ids=["owes what is left", "owes more"])
def test_a_client_that_gets_its_own_row_is_excepted_at_once(own: dict[str, object], used: int, later_ms: int) -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=used)
    loop.advance(100)
    assert loop.edit(quota("alice", 1_000.0), own) == 1
    first, last = loop.records
    assert [[*(one.except_client_ids or ())] for one in loop.records] == [[], ["c"]]
    assert (last.cause, last.decision_id) == ("quota_changed", first.decision_id)
    assert last.throttled_until_ms - first.throttled_until_ms == later_ms
    assert not last.holds("alice", "c")
    assert last.holds("alice", "another")
    assert loop.edit(quota("alice", 1_000.0), own, quota("bob", 1.0), quota("alice", 1.0, "d", "shadow")) == 0


def test_a_user_is_held_before_its_clients_are_released_when_its_default_goes() -> None:
    rows = quota("alice", 1_000.0), quota("alice", 1_000.0, "<default>")
    loop = HandLoop(*rows)
    loop.batch(alice=60_000)
    assert loop.records[-1].target == Target("", "alice", "c", None), "each client has a sensor of its own"
    loop.edit(rows[0])
    loop.batch(alice=60_000)
    before = len(loop.records)
    loop.edit(*rows)
    held_alone = [record for record in loop.records[before:] if record.client_id is None]
    assert [record.action for record in held_alone] == ["release"], "no client of it is in its sensor any more"
    loop.batch(alice=60_000)
    before = len(loop.records)
    loop.clock.advance(300)
    assert loop.edit(rows[0]) == 2
    assert [(record.client_id, record.action) for record in loop.records[before:]] == [
        (None, "throttle"),
        ("c", "release"),
    ]
    assert {row["evaluated_at_ms"] for row in loop.outbox.rows[before:]} == {loop.clock.steady_ms}
    assert len(loop.purgatory) == 1


def test_a_user_is_held_for_each_quota_type_on_its_own() -> None:
    loop = HandLoop({"user": "alice", "client_id": "", "producer_byte_rate": 1_000.0, "consumer_byte_rate": 1_000.0})
    assert loop.record(*(loop.row("alice", name, 60_000, fetched_bytes=20_000) for name in ("a", "b"))) == 2
    assert {record.target for record in loop.records} == {
        Target("", "alice", None, name) for name in ("producer_byte_rate", "consumer_byte_rate")
    }
    shown = [(row["client_id"], row["asks_hold"], row["more_clients"]) for row in loop.decisions.to_pylist()]
    assert shown == [*[(None, True, 0)] * 2, *[("a", False, None)] * 2, *[("b", False, None)] * 2]
    loop.advance(60_000, step_ms=50)
    assert len(loop.purgatory) == 1, "the fetched bytes are paid for"


def test_of_a_sensor_the_hundred_largest_clients_are_kept_and_the_others_counted() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.record(*(loop.row("alice", f"c{n:03}", 1_000 + n // 2) for n in range(130)))
    first, *clients = loop.decisions.to_pylist()
    assert (first["client_id"], first["more_clients"]) == (None, 30)
    assert [row["client_id"] for row in clients] == [f"c{n:03}" for n in range(30, 130)]


def test_a_take_over_releases_a_stored_hold_of_a_target_that_is_another_now() -> None:
    loop = HandLoop(quota("alice", 1_000.0), quota("alice", 1_000.0, "<default>"))
    loop.batch(alice=60_000)
    loop.version += 1
    loop.quotas = QuotaSnapshot.from_rows([quota("alice", 1_000.0)], version=loop.version)
    loop.restart()
    loop.purgatory.quotas_changed(loop.quotas)
    assert (loop.records[-1].target.client_id, loop.records[-1].action) == ("c", "release")
    assert len(loop.purgatory) == 0


def test_a_take_over_publishes_nothing_about_holds_that_are_as_they_were() -> None:
    loop = HandLoop(quota("alice", 1_000.0), quota("bob", 1_000.0), quota("bob", 500.0, "etl"))
    loop.batch(alice=100_000, bob=100_000)
    told = len(loop.records)
    loop.restart(keep_engine=True)
    loop.purgatory.quotas_changed(loop.quotas)
    assert len(loop.records) == told == 2


def test_with_too_many_exceptions_the_clients_of_a_user_are_held_one_by_one() -> None:
    own = [quota("alice", 1.0, f"own-{number}") for number in range(MOST_EXCEPTED + 1)]
    for rows, client_id in ((own[1:], None), (own, "c")):
        loop = HandLoop(quota("alice", 1_000.0), *rows)
        loop.batch(alice=60_000)
        assert [record.client_id for record in loop.records] == [client_id]


def test_an_edit_put_in_force_by_a_batch_lets_go_whom_it_touches_at_the_next_poll() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=20_000)
    loop.advance(100)
    loop.quotas = QuotaSnapshot.from_rows([quota("alice", 1_000_000.0)], version=2)
    loop.batch(bob=1)
    assert loop.purgatory.quotas_changed(loop.quotas) == 1
    assert loop.told()[-1] == ("release", "quota_changed", 0)


def test_after_a_step_back_a_throttle_counts_from_when_what_was_left_is_published() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=60_000)
    loop.clock.set_wall(loop.clock.wall_ms - 20_000)
    loop.broker.marker = Marker(0)
    loop.broker.readers.append(lambda _: loop.clock.advance(700))
    loop.restart()
    (held,) = loop.purgatory.held().to_pylist()
    assert held["end_ms"] == loop.clock.steady_ms + CAP_MS


def test_a_restart_takes_up_running_throttles_and_looks_at_overdue_ones_first() -> None:
    loop = HandLoop(quota("alice", 1_000.0), quota("bob", 1_000.0))
    loop.batch(alice=60_000)
    loop.advance(500)
    loop.batch(bob=60_000)
    loop.clock.advance(600)
    loop.restart()
    assert len(loop.purgatory) == 2
    loop.purgatory.tick()
    # A new engine owes nothing: alice's end has passed, bob's check finds nothing owed and waits for the end.
    assert [(r.user, r.action, r.cause) for r in loop.records[2:]] == [("alice", "release", "expired")]
    loop.advance(400)
    assert [(r.user, r.action, r.cause) for r in loop.records[3:]] == [("bob", "release", "expired")]
    assert loop.records[2].decision_id == loop.records[0].decision_id


def test_what_comes_due_while_a_batch_is_published_is_popped_on_time_and_told_later() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=60_000)
    loop.clock.advance(CAP_MS - LEAD_MS)
    assert loop.purgatory.pop_due() == 1
    loop.clock.advance(90)
    assert loop.purgatory.tick() == 1
    loop.clock.advance(loop.records[-1].throttle_time_ms - LEAD_MS + 7)
    loop.purgatory.tick()
    assert [row["lateness_ms"] for row in loop.outbox.rows] == [None, 0, 7]


def test_what_was_handed_out_and_extended_by_a_batch_meanwhile_is_not_due_any_more() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=60_000)
    loop.clock.advance(CAP_MS + 1)
    assert loop.purgatory.pop_due() == 1
    assert loop.batch(alice=1) == 1
    assert [record.cause for record in loop.records] == ["violation", "extended"]
    assert len({record.decision_id for record in loop.records}) == 1
    assert loop.purgatory.pop_due() == 0
    assert loop.purgatory.tick() == 0


def test_the_machines_clock_may_be_set_without_moving_the_end() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=11_000)
    loop.clock.set_wall(loop.clock.wall_ms + 3_600_000)
    loop.advance(999)
    assert len(loop.purgatory) == 1


class ThrottlesEndOnce(RuleBasedStateMachine):
    """Random usage, edits, waiting, restarts and lost transactions, against what a reader of the topic sees."""

    users = ("alice", "bob", "carol")

    def __init__(self) -> None:
        super().__init__()
        self.loop = HandLoop(*(quota(user, 1_000.0) for user in self.users))

    @rule(user=st.sampled_from(users), amount=st.sampled_from([0, 1, 9_999, 10_001, 12_000, 40_000]))
    def use(self, user: str, amount: int) -> None:
        self.loop.batch(**{user: amount})

    @rule(by_ms=st.sampled_from([1, LEAD_MS - 1, LEAD_MS, CAP_MS - LEAD_MS, CAP_MS, 5_000]))
    def wait(self, by_ms: int) -> None:
        self.loop.advance(by_ms, step_ms=1 if by_ms < 100 else by_ms // 50)

    @rule(user=st.sampled_from(users), bound=st.sampled_from([None, 100.0, 1_000.0, 50_000.0]))
    def edit(self, user: str, bound: float | None) -> None:
        self.loop.edit(*(quota(name, bound if name == user else 1_000.0) for name in self.users))

    @rule(failure=st.sampled_from(["lost", "late"]))
    def lose_a_transaction(self, failure: str) -> None:
        self.loop.topic.fail_next = failure

    @rule()
    def restart(self) -> None:
        self.loop.restart()

    @invariant()
    def every_release_ends_a_throttle_and_the_held_are_those_without_one(self) -> None:
        running: dict[str, str] = {}
        for row in self.loop.outbox.rows:
            user, decision_id = str(row["user"]), str(row["decision_id"])
            if row["action"] == "release":
                assert running.pop(user) == decision_id
            elif row["cause"] == "violation":
                assert user not in running
                running[user] = decision_id
            else:
                assert running[user] == decision_id
        held = {row["user"]: row["decision_id"] for row in self.loop.purgatory.held().to_pylist()}
        assert held == running
        sequences = [row["publish_seq"] for row in self.loop.outbox.rows]
        assert sequences == list(range(len(sequences)))

    def teardown(self) -> None:
        self.loop.advance(600_000, step_ms=200)
        self.loop.advance(400, step_ms=1)
        assert len(self.loop.purgatory) == 0, "everyone is released in the end"
        published = [record.publish_seq for record in self.loop.records]
        assert published == list(range(len(self.loop.outbox.rows))), "each row is on the topic once, in order"
        last = {record.user: record.action for record in self.loop.records}
        assert set(last.values()) <= {"release"}


ThrottlesEndOnceTest = ThrottlesEndOnce.TestCase
ThrottlesEndOnceTest.settings = settings(max_examples=6, stateful_step_count=25)


@pytest.mark.parametrize(
    ("trigger_ms", "client_lag_ms", "publish_lags_ms", "expected_ms"),
    [
        (250, 500, [], 750),
        (100, 199, [], 300),
        (100, 201, [], 301),
        (250, 500, [10] * 310 + [90] * 10, 840),
        (250, 500, [2_000] * 64 + [10] * 512, 760),
    ],
    ids=["above the floor", "below", "just above", "and the p99 of publishing", "what is old is forgotten"],
)
def test_the_lead_is_trigger_client_lag_and_the_measured_p99_of_publishing(
    trigger_ms: int, client_lag_ms: int, publish_lags_ms: list[int], expected_ms: int
) -> None:
    lead = RenewLead(trigger_ms, client_lag_ms, 300)
    for publish_lag_ms in publish_lags_ms:
        lead.observe(publish_lag_ms)
    assert lead.lead_ms == expected_ms


# Members of tenants. Both are without a quota of their own: of one all client-ids are in the tenant, of the other some.


def a_tenant(loop: HandLoop, version: int, patterns: dict[str, list[str]], **bounds: Any) -> QuotaSnapshot:
    tenants = read_tenants([{"tenant": "team", **patterns, "member_producer_byte_rate": 1_000.0, **bounds}], version)
    return replace(loop.quotas, tenants=tenants, tenants_version=version)


MEMBERS = [{"user_patterns": ["alice", "carl"]}, {"client_id_patterns": ["c*"]}]


@pytest.mark.parametrize("patterns", MEMBERS, ids=["by user", "by client-id"])
@pytest.mark.parametrize("restarts", [False, True])
def test_edits_of_others_let_held_members_without_quotas_alone(patterns: dict[str, list[str]], restarts: bool) -> None:
    loop = HandLoop(quota("bob", 1_000.0))
    loop.quotas = a_tenant(loop, 1, patterns, producer_byte_rate=4_000.0)
    loop.decider.adopt(loop.quotas)
    assert loop.batch(alice=60_000) == 1
    assert loop.records[-1].client_id == (None if "user_patterns" in patterns else "c")
    assert loop.records[-1].bound == 1_000.0
    if restarts:
        loop.restart(keep_engine=True)
    rows = QuotaSnapshot.from_rows([quota("bob", 1_000.0), quota("zed", 1.0)], version=2)
    loop.quotas = replace(rows, tenants=loop.quotas.tenants, tenants_version=1)
    assert loop.purgatory.quotas_changed(loop.quotas) == 0
    gone = replace(loop.quotas, tenants=(), tenants_version=2)
    assert loop.purgatory.quotas_changed(gone) == 1
    assert loop.told()[-1] == ("release", "quota_changed", 0)


@pytest.mark.parametrize("patterns", MEMBERS, ids=["by user", "by client-id"])
def test_a_raised_bound_of_a_tenant_frees_its_members_at_once(patterns: dict[str, list[str]]) -> None:
    loop = HandLoop(quota("bob", 1_000.0))
    loop.quotas = a_tenant(loop, 1, patterns, producer_byte_rate=500.0)
    loop.decider.adopt(loop.quotas)
    assert loop.batch(alice=10_000, carl=10_000) == 2
    assert loop.records[-1].bound == 250.0
    loop.advance(100)
    assert loop.purgatory.quotas_changed(a_tenant(loop, 2, patterns, producer_byte_rate=1e6, lend=True)) == 2
    assert loop.told()[-1] == ("release", "quota_changed", 0)


SLICING = Slicing(
    lead_ms=300,
    min_hold_ms=1_000,
    caps=ThrottleCaps(producer_byte_rate=1_000, consumer_byte_rate="window", request_percentage="none"),
    sample_window_ms=1_000,
)
MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("throttle_time_ms", "owed_ms", "quota_type", "told_ms"),
    [
        (999, 999, "consumer_byte_rate", []),
        (1_000, 1_000, "consumer_byte_rate", [1_000]),
        (3, 1_700, "consumer_byte_rate", [1_700]),
        (10_000, 90_000, "consumer_byte_rate", [10_000]),
        (MOST, MOST, "request_percentage", [1 << 52]),
    ],
    ids=["too short", "a second", "its bucket owes more", "capped", "beyond all time"],
)
def test_a_violation_holds_for_the_larger_of_x_and_what_is_owed(
    throttle_time_ms: int, owed_ms: int, quota_type: str, told_ms: list[int]
) -> None:
    violated = violation(throttle_time_ms=throttle_time_ms, reason=Reason(owed_ms=owed_ms, quota_type=quota_type))
    running = Running(np.full(1, None, np.object_), np.array([False]), np.array([0]))
    assert violations_to_publish(asked(violated), running, 5_000, SLICING)[1].tolist() == told_ms


def test_of_several_clients_each_hears_what_is_new_to_it() -> None:
    running = Running(np.full(3, None, np.object_), np.array([False, True, True]), np.array([0, 10_000, 14_000]))
    news, _ = violations_to_publish(asked(*[violation(throttle_time_ms=9_000)] * 3), running, 5_000, SLICING)
    assert news.tolist() == [0, 1], "the third one would end at the same time"


@pytest.mark.parametrize(
    ("quota_type", "lead_ms", "owed_ms", "slice_ms"),
    [
        ("producer_byte_rate", 300, 90_000, 1_000),
        ("producer_byte_rate", 400, 90_000, 1_200),
        ("consumer_byte_rate", 300, 90_000, 10_000),
        ("request_percentage", 300, 90_000, 90_000),
        ("request_percentage", 300, MOST, 1 << 52),
    ],
    ids=["cap", "three leads are the floor of a cap", "window", "no cap", "beyond all time"],
)
def test_a_renewal_is_as_long_as_its_cap_allows(quota_type: str, lead_ms: int, owed_ms: int, slice_ms: int) -> None:
    owes = claims(Reason(owed_ms=owed_ms, quota_type=quota_type))
    result = check(due(), owes, np.array([9_700]), replace(SLICING, lead_ms=lead_ms))
    assert (result.steps.tolist(), result.slices_ms.tolist()) == ([Step.HOLD], [slice_ms])


@pytest.mark.parametrize(
    ("after", "step", "slice_ms"),
    [
        ({"owed_ms": 0, "bound": None, "level": None}, Step.RELEASE, 0),
        ({"owed_ms": 400, "bound": 1_500.0}, Step.RELEASE, 0),
        ({"owed_ms": 4_000, "bound": 900.0, "quota_type": "request_percentage"}, Step.HOLD, 4_000),
        ({"owed_ms": 4_001, "bound": 1_001.0}, Step.WAIT, 0),
        ({"owed_ms": 6_000, "bound": 900.0}, Step.HOLD, 1_000),
        ({"owed_ms": 10, "bound": 900.0}, Step.WAIT, 0),
    ],
    ids=["no bound left", "raised", "of another type", "raised, as much owed", "lowered", "lowered, less owed"],
)
def test_an_edit_releases_shortens_or_prolongs(after: dict[str, Any], step: Step, slice_ms: int) -> None:
    result = check_after_edit(due(), claims(Reason(**after)), np.array([5_000]), SLICING, np.array([False]))
    assert (result.steps.tolist(), result.slices_ms.tolist()) == ([step], [slice_ms])


def test_a_throttle_begins_once_what_was_behind_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    waited_ms = 3_000
    monkeypatch.setattr(Publisher, "catch_up", lambda *_: loop.clock.advance(waited_ms))
    began_ms = loop.clock.steady_ms
    loop.batch(alice=20_000)
    [held] = loop.purgatory.held().to_pylist()
    [record] = loop.told()
    assert held["end_ms"] == began_ms + waited_ms + record[2]
