"""Throttled clients in purgatory: published, checked ahead of the end, renewed or released, each ending once."""

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.throttle.publisher import Marker
from pipeline.throttle.purgatory import RenewLead
from quota.snapshot import QuotaSnapshot
from tests.pipeline.throttle.loop import CAP_MS, LEAD_MS, HandLoop, quota

# alice may produce 1 000 B/s: 10 000 B in one instant are free, each 1 000 B more cost a second.


def test_a_small_violation_is_throttled_once_and_released_when_its_windows_empty() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    assert loop.batch(alice=10_000) == 0, "equal to the bound is no violation"
    assert loop.batch(alice=999) == 0, "less than a second stays owed"
    assert loop.batch(alice=1) == 1
    assert loop.told() == [("throttle", "violation", 1_000)]
    loop.advance(12_000, step_ms=10)
    actions = [action for action, _, _ in loop.told()]
    assert actions[-1] == "release"
    assert actions.count("release") == 1
    assert len(loop.purgatory) == 0


def test_a_debt_beyond_the_cap_is_renewed_ahead_of_each_end() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=60_000)
    assert loop.told() == [("throttle", "violation", CAP_MS)]
    loop.advance(CAP_MS - LEAD_MS - 1)
    assert len(loop.records) == 1, "the check is not due yet"
    loop.advance(1)
    assert loop.told()[1:] == [("throttle", "renewed", CAP_MS)]
    assert loop.records[1].decision_id == loop.records[0].decision_id
    assert loop.records[1].throttled_until_ms == loop.clock.wall_ms + CAP_MS


def test_raising_the_bound_releases_at_once_without_traffic() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=20_000)
    loop.advance(100)
    assert loop.edit(quota("alice", 1_000_000.0)) == 1
    assert loop.told()[-1] == ("release", "quota_changed", 0)
    assert (len(loop.purgatory), loop.records[-1].quota_version) == (0, 2)


@pytest.mark.parametrize(
    "rows",
    [[], [quota("alice", 1_000.0, mode="shadow")], [quota("alice", 1_000.0), quota("alice", None, "c", "exempt")]],
    ids=["no quota left", "shadow", "exempt"],
)
def test_an_edit_that_no_longer_enforces_releases(rows: list[dict[str, object]]) -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=20_000)
    loop.edit(*rows)
    assert loop.told()[-1] == ("release", "quota_changed", 0)


def test_an_edit_that_gives_a_client_a_row_of_its_own_releases_it_though_the_bound_is_the_same() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=20_000)
    assert loop.edit(quota("alice", 1_000.0), quota("alice", 1_000.0, "c")) == 1
    assert loop.told()[-1] == ("release", "quota_changed", 0)


def test_a_client_that_goes_on_sending_is_not_told_the_same_again() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=60_000)
    loop.advance(200)
    assert loop.batch(alice=1) == 0, "the capped end is 200 ms later"
    loop.clock.advance(801)
    assert loop.batch(alice=1) == 1, "now it is later by more than a second"
    assert loop.records[-1].decision_id == loop.records[0].decision_id


def test_a_restart_does_not_release_a_client_that_still_owes() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=60_000)
    loop.clock.advance(CAP_MS + 600)
    loop.restart(keep_engine=True)
    loop.purgatory.tick()
    assert loop.told()[1:] == [("throttle", "renewed", CAP_MS)], "its end passed while nobody looked; 48 s are owed"


def test_a_client_whose_usage_comes_after_its_last_look_is_renewed_at_its_end_and_not_released() -> None:
    loop = HandLoop(quota("alice", 1_000.0))
    loop.batch(alice=10_900)
    loop.advance(900 - LEAD_MS)
    loop.batch(alice=700)
    loop.advance(LEAD_MS)
    assert ("release", "expired", 0) not in loop.told()
    loop.advance(20_000, step_ms=10)
    assert [action for action, _, _ in loop.told()].count("release") == 1


def test_a_batch_that_pinned_its_quotas_before_an_edit_throttles_nobody_the_edit_lets_go() -> None:
    loop = HandLoop(quota("alice", 1_000.0), quota("bob", 1_000.0))
    before = loop.quotas
    loop.edit(quota("alice", None, mode="exempt"), quota("bob", 1_000.0))
    after, loop.quotas = loop.quotas, before
    loop.batch(alice=60_000, bob=60_000)
    assert [(record.user, record.action) for record in loop.records] == [("bob", "throttle")]
    assert loop.decisions["user"].to_pylist() == ["alice", "bob"], "both decisions are recorded"
    loop.quotas = after
    loop.advance(60_000, step_ms=50)
    assert {record.user for record in loop.records} == {"bob"}
    assert len(loop.purgatory) == 0


def test_an_edit_that_a_batch_has_put_in_force_lets_go_whom_it_touches_at_the_next_poll() -> None:
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


def test_what_comes_due_while_a_batch_is_published_is_handed_out_on_time_and_told_afterwards() -> None:
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

    @initialize()
    def begin(self) -> None:
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

    @precondition(lambda self: self.loop.batch_id >= 0)
    @rule()
    def restart(self) -> None:
        self.loop.restart()

    @invariant()
    def every_release_ends_a_throttle_and_the_held_are_those_without_one(self) -> None:
        if not hasattr(self, "loop"):
            return
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

    @invariant()
    def sequence_numbers_have_no_gap(self) -> None:
        if hasattr(self, "loop"):
            sequences = [row["publish_seq"] for row in self.loop.outbox.rows]
            assert sequences == list(range(len(sequences)))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.advance(600_000, step_ms=200)
        self.loop.advance(400, step_ms=1)
        assert len(self.loop.purgatory) == 0, "everyone is released in the end"
        published = [record.publish_seq for record in self.loop.records]
        assert published == list(range(len(self.loop.outbox.rows))), "each row is on the topic once, in order"
        last: dict[str, str] = defaultdict(str)
        for record in self.loop.records:
            last[record.user] = record.action
        assert set(last.values()) <= {"release"}


ThrottlesEndOnceTest = ThrottlesEndOnce.TestCase
ThrottlesEndOnceTest.settings = settings(max_examples=6, stateful_step_count=25)


QUOTAS = (quota("alice", 1_000.0), quota("bob", 1_000.0), quota("<default>", 1_000.0))


def throttled_loop() -> HandLoop:
    loop = HandLoop(*QUOTAS)
    assert loop.batch(alice=60_000, bob=12_000, carol=20_000) == 3
    return loop


def test_switching_to_shadow_releases_every_held_throttle_at_once() -> None:
    loop = throttled_loop()
    loop.advance(100)
    assert loop.edit(*QUOTAS, mode="shadow") == 3
    released = {(record.user, record.action, record.cause) for record in loop.records[3:]}
    assert released == {(user, "release", "quota_changed") for user in ("alice", "bob", "carol")}
    assert len(loop.purgatory) == 0


def test_in_shadow_nothing_is_published_and_every_violation_is_recorded() -> None:
    loop = throttled_loop()
    loop.edit(*QUOTAS, mode="shadow")
    told = len(loop.records)
    loop.advance(1_000, step_ms=10)
    for _ in range(5):
        assert loop.batch(alice=60_000, dora=60_000) == 0
        decisions = loop.decisions.to_pylist()
        assert {(row["user"], row["mode"], row["applied"]) for row in decisions} >= {("dora", "shadow", False)}
        assert all(row["mode"] == "shadow" and not row["applied"] for row in decisions)
        loop.advance(1_000, step_ms=10)
    assert len(loop.records) == told


def test_a_batch_that_pinned_the_quotas_before_the_switch_keeps_nobody_held() -> None:
    loop = throttled_loop()
    pinned = loop.quotas
    loop.edit(*QUOTAS, mode="shadow")
    shadow, loop.quotas = loop.quotas, pinned
    loop.advance(100)
    records = len(loop.records)
    assert loop.batch(dora=60_000) == 0, "decided by the version it has pinned, and told nobody"
    assert loop.decisions["mode"].to_pylist() == ["enforce"]
    loop.quotas = shadow
    assert loop.batch(erin=1) == 0, "the next batch is decided by the new one"
    assert loop.purgatory.quotas_changed(shadow) == 0, "what the poller says every trigger"
    assert (len(loop.records), len(loop.purgatory)) == (records, 0)


@pytest.mark.parametrize(
    ("trigger_ms", "client_lag_ms", "expected_ms"),
    [(250, 500, 750), (100, 199, 300), (100, 200, 300), (100, 201, 301), (50, 0, 300)],
    ids=["above the floor", "below", "equal", "just above", "far below"],
)
def test_before_anything_is_measured_the_lead_is_trigger_and_client_lag(
    trigger_ms: int, client_lag_ms: int, expected_ms: int
) -> None:
    assert RenewLead(trigger_ms, client_lag_ms, 300).lead_ms == expected_ms


def test_the_measured_p99_of_publishing_is_added() -> None:
    lead = RenewLead(250, 500, 300)
    for publish_lag_ms in [10] * 310 + [90] * 10:
        lead.observe(publish_lag_ms)
    assert lead.lead_ms == 250 + 500 + 90


def test_old_measurements_are_forgotten() -> None:
    lead = RenewLead(250, 500, 300)
    for publish_lag_ms in [2_000] * 64 + [10] * 512:
        lead.observe(publish_lag_ms)
    assert lead.lead_ms == 760
