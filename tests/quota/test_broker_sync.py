"""The sync of the brokers' quotas among operators, clients, crashes and other people's tools.

First a machine, compared with what can be said without knowing how the sync works. Then the boundaries of every rule.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quota.broker_levels.entries import UNREACHED, EntryKey, MemberRate, broker_entries
from quota.broker_levels.writes import Change, DriftKind
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row
from tests.quota.synced import (
    PRODUCER,
    QUIET_MS,
    START_MS,
    D,
    Fate,
    Synced,
    Told,
    key_of,
    levels_of,
    told,
)

USERS = ("alice", "bob", "<default>")
CLIENTS = ("alice", "bob", "carol")
BOUNDS = (60.0, 120.0)
THEIRS = (7001.0, 7002.0)
SHARES = (0.3, 1.0, 3.0)
MOVES = ("together_above", "room_left", "quiet", "quiet_offender")
STRANGER = EntryKey("mallory", "", PRODUCER)


class BrokersAndTable(RuleBasedStateMachine):
    """One cluster. What is written is judged at once, by rules that know nothing of how the sync works."""

    @initialize()
    def start(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.mirror = False
        self.synced = Synced(held={STRANGER: 5.0})
        self.ours: set[EntryKey] = set()
        self.moved_at_ms: dict[EntryKey, int] = {}
        self.disturbed: set[EntryKey] = set()
        self.shares: dict[str, tuple[float, float]] = {}
        self.members: set[str] = set()

    def load(self) -> None:
        self.synced.load(*self.rows.values(), mirror=self.mirror)

    @property
    def held(self) -> dict[EntryKey, float]:
        return self.synced.ledger.held

    @property
    def bounds(self) -> dict[EntryKey, float]:
        snapshot = QuotaSnapshot.from_rows(self.rows.values(), 1)
        return {entry.key: entry.bound for entry in broker_entries(snapshot, self.mirror)}

    @rule(
        user=st.sampled_from(USERS),
        bound=st.sampled_from(BOUNDS),
        mode=st.sampled_from(["enforce", "shadow", "exempt"]),
    )
    def set_quota(self, user: str, bound: float, mode: str) -> None:
        bounds = {} if mode == "exempt" else {PRODUCER: bound}
        self.rows[user] = {"user": user, "client_id": "", "mode": mode, **bounds}
        self.load()

    @rule(user=st.sampled_from(USERS))
    def remove_quota(self, user: str) -> None:
        self.rows.pop(user, None)
        self.load()

    @rule(mirror=st.booleans())
    def set_scope(self, mirror: bool) -> None:
        self.mirror = mirror
        self.load()

    @rule(user=st.sampled_from(CLIENTS), share=st.sampled_from(SHARES), uses=st.sampled_from([0.1, 0.6, 1.0]))
    def lend(self, user: str, share: float, uses: float) -> None:
        """A member of a tenant may use a part of its T, or several times as much."""
        self.shares[user] = share, uses
        self.members.add(user)

    @rule()
    def stop_lending(self) -> None:
        self.shares.clear()

    def rates(self) -> dict[EntryKey, MemberRate]:
        found = {}
        for user, (share, uses) in self.shares.items():
            bound = self.bounds.get(key_of(user), self.bounds.get(key_of(D)))
            if bound is not None:
                found[key_of(user)] = MemberRate(share * bound, bound, uses * bound)
        return found

    @rule(brokers=st.integers(1, 3))
    def other_brokers(self, brokers: int) -> None:
        self.synced.brokers = [str(broker) for broker in range(1, brokers + 1)]
        self.synced.describe()

    @rule(user=st.sampled_from(USERS), value=st.sampled_from([None, *THEIRS]))
    def somebody_else_writes(self, user: str, value: float | None) -> None:
        self.synced.others_write(key_of(user), value)
        self.disturbed.add(key_of(user))

    @rule(
        loads=st.lists(st.dictionaries(st.sampled_from(CLIENTS), st.tuples(*[st.integers(0, 200)] * 3)), max_size=4),
        seconds=st.integers(1, 12),
        fate=st.sampled_from(Fate),
    )
    def use(self, loads: list[dict[str, tuple[int, ...]]], seconds: int, fate: Fate) -> None:
        """Some seconds of usage. What happens to the writes of the last of them is drawn."""
        for second in range(seconds):
            load = loads[second % len(loads)] if loads else {}
            self.synced.record({user: amounts[: len(self.synced.brokers)] for user, amounts in load.items()})
            self.period(1_000, fate if second == seconds - 1 else Fate.DONE)

    def period(self, pause_ms: int, fate: Fate = Fate.DONE) -> Sequence[Change]:
        before = dict(self.held)
        self.synced.sync.follow_members(self.rates(), self.synced.now_ms + pause_ms)
        changes, written = self.synced.pass_time(pause_ms, fate)
        assert len({change.key for change in changes}) == len(changes)
        for change in written:
            self.judge(change, before)
        if fate.is_killed:
            self.synced.restart()
        elif fate is not Fate.DONE:
            self.synced.describe()
        return changes

    def judge(self, change: Change, before: dict[EntryKey, float]) -> None:
        """A write that got to the brokers."""
        key, bounds = change.key, self.bounds
        assert change.old == before.get(key)
        if key not in self.ours:
            assert key not in before, "a value of others is never overwritten"
            assert change.before is None
        else:
            assert key not in self.disturbed or before.get(key) not in THEIRS
        if change.kind is None:
            assert key not in bounds or key.user not in self.rows
            assert change.new is None, "nothing stood there before"
            self.ours.discard(key)
        else:
            bound = bounds.get(key, bounds.get(key_of("<default>")))
            assert bound is not None
            assert change.new is not None
            lowest = bound / len(self.synced.brokers) if str(change.kind) in {"level", "own"} else bound
            least, most = (min(SHARES), max(SHARES)) if key.user in self.members else (1.0, 1.0)
            assert least * lowest * (1 - 1e-9) <= change.new <= most * bound
            self.ours.add(key)
        if change.cause in MOVES and key in self.moved_at_ms:
            assert self.synced.now_ms - self.moved_at_ms[key] >= 10_000
        if change.is_move:
            self.moved_at_ms[key] = self.synced.now_ms
        self.disturbed.discard(key)

    @invariant()
    def nothing_of_others_is_touched(self) -> None:
        assert self.held[STRANGER] == 5.0
        assert {key.user for key in self.held} <= {*USERS, *CLIENTS, STRANGER.user}

    @rule(restarts=st.booleans())
    def becomes_quiet(self, restarts: bool) -> None:
        """Whatever happened: when all is quiet, every broker has what the table says, and nothing is written."""
        self.shares.clear()
        if restarts:
            self.synced.restart()
        else:
            self.synced.describe()
        for pause_ms in (*QUIET_MS, 3_000):
            self.period(pause_ms)
        assert self.period(0) == []
        drifts = {drift.key: drift.theirs for drift in self.synced.sync.drifts}
        for key, bound in self.bounds.items():
            held = self.held.get(key)
            if key in drifts:
                assert key in self.disturbed, "what is reported was written by others"
                assert held == drifts[key] != bound
            else:
                assert held == bound
        for key in self.held.keys() - self.bounds.keys() - {STRANGER}:
            assert key in self.disturbed, "what kquota does not want any more is gone"
        assert set(levels_of(self.synced.sync)) <= self.bounds.keys() | drifts.keys()


BrokersAndTable.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestBrokersAndTable = BrokersAndTable.TestCase
ALICE, DEFAULT = key_of("alice"), key_of(D)
ROW = quota_row("alice", producer_byte_rate=100.0)
OF_DEFAULT = quota_row(D, producer_byte_rate=100.0)
EDITED_ROW = quota_row("alice", producer_byte_rate=80.0)
SHADOW_ROW = quota_row("alice", producer_byte_rate=100.0, mode="shadow")
EXEMPT_ROW = quota_row("alice", mode="exempt")


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        ([], [ROW], [("alice", None, 100.0, "added")]),
        ([ROW], [ROW], []),
        ([ROW], [EDITED_ROW], [("alice", 100.0, 80.0, "edited")]),
        ([EDITED_ROW], [ROW], [("alice", 80.0, 100.0, "edited")]),
        ([ROW], [], [("alice", 100.0, None, "removed")]),
        ([ROW], [SHADOW_ROW], [("alice", 100.0, None, "removed")]),
        ([SHADOW_ROW], [ROW], [("alice", None, 100.0, "added")]),
        ([ROW], [EXEMPT_ROW], [("alice", 100.0, None, "removed")]),  # and nothing less specific
        ([ROW, OF_DEFAULT], [EXEMPT_ROW, OF_DEFAULT], [("alice", 100.0, UNREACHED, "edited")]),
        ([EXEMPT_ROW, OF_DEFAULT], [OF_DEFAULT], [("alice", UNREACHED, None, "removed")]),
        ([OF_DEFAULT], [quota_row(D, producer_byte_rate=9.0)], [(D, 100.0, 9.0, "edited")]),
        ([quota_row(producer_byte_rate=99.5)], [quota_row(producer_byte_rate=99.7)], []),
        ([quota_row(request_percentage=9.5)], [quota_row(request_percentage=9.7)], [("u", 9.5, 9.7, "edited")]),
    ],
)
def test_an_edit_of_the_table_is_written_in_the_next_period(
    before: list[dict[str, Any]], after: list[dict[str, Any]], written: list[Told]
) -> None:
    synced = Synced(*before)
    synced.period()
    assert synced.period() == []
    synced.load(*after)
    assert synced.period() == written
    assert synced.period() == []


@pytest.mark.parametrize(("bound", "level"), [(200.0, 85.0), (101.0, 36.0), (50.0, 18.0), (45.0, 16.0)])
def test_the_level_of_an_edited_bound_is_that_of_the_demand_or_in_proportion_at_once(
    bound: float, level: float
) -> None:
    synced = Synced(ROW, brokers=("1", "2", "3"))
    synced.use(8, {"alice": (60, 30, 90)})
    synced.load(quota_row("alice", producer_byte_rate=bound))
    written = told(synced.use(1, {"alice": (35, 30, 35)}))
    assert [(cause, new) for _, _, new, cause in written] == [("edited", level)]


def test_a_sensor_of_a_default_has_an_entry_while_it_needs_one() -> None:
    synced = Synced(OF_DEFAULT)
    load = {"carol": (90, 90), "dave": (90, 0), "erin": (60, 38)}
    written = synced.use(20, load)
    assert told(written) == [(D, None, 100.0, "added"), ("carol", None, 50.0, "together_above")]
    assert (written[-1].kind, written[-1].before, written[-1].bound) == ("own", None, 100.0)
    assert synced.rest() == [("carol", 50.0, None, "removed")]
    assert synced.ledger.held == {DEFAULT: 100.0}


@pytest.mark.parametrize("bounds", [{"producer_byte_rate": 60.0}, {"mode": "exempt"}])
def test_an_own_entry_of_a_user_goes_when_all_its_clients_get_another_row(bounds: dict[str, Any]) -> None:
    synced = Synced(OF_DEFAULT)
    synced.use(20, {"carol": (90, 90)})
    assert own_of(synced) == {"carol/"}
    synced.load(OF_DEFAULT, quota_row("carol", D, **bounds))
    synced.period()
    assert (own_of(synced), synced.sync.refused) == (set(), ())


OF_EACH_PAIR = quota_row(D, D, producer_byte_rate=100.0)


def own_of(synced: Synced) -> set[str]:
    """`user/client-id` of the entries of sensors of defaults that are on the brokers."""
    return {f"{key.user}/{key.client_id}" for key in synced.ledger.held if D not in key}


@pytest.mark.parametrize(
    ("most", "granted", "left_out"),
    [
        (2, {"a/4", "a/3", "b/9"}, {"a": 2}),
        (0, set(), {"a": 4, "b": 1}),
        (5, {"a/1", "a/2", "a/3", "a/4", "b/9"}, {}),
    ],
)
def test_the_largest_offenders_get_the_entries_and_the_others_are_counted(
    most: int, granted: set[str], left_out: dict[str, int]
) -> None:
    synced = Synced(OF_EACH_PAIR, own_entries_per_user=most)
    load = {"a/1": (70, 70), "a/2": (75, 75), "a/3": (80, 80), "a/4": (90, 90), "b/9": (95, 95)}
    synced.use(20, load)
    assert (own_of(synced), dict(synced.sync.left_out)) == (granted, left_out)


def test_after_a_restart_with_less_room_those_that_were_over_last_keep_their_entries() -> None:
    synced = Synced(OF_EACH_PAIR)
    synced.use(20, {"a/1": (90, 90), "a/3": (90, 90)})
    synced.use(20, {"a/2": (90, 90)})
    synced.restart(own_entries_per_user=1)
    synced.use(2, {})
    assert own_of(synced) == {"a/2"}


@pytest.mark.parametrize(
    ("row", "theirs", "drifts"),
    [(ROW, 7.0, True), (ROW, 100.0, True), (OF_DEFAULT, 7.0, True), (OF_DEFAULT, 100.0, False)],
)
def test_a_value_of_others_is_reported_and_left_alone(row: dict[str, Any], theirs: float, drifts: bool) -> None:
    key = key_of(row["user"])
    synced = Synced(row, held={key: theirs})
    assert synced.period() == []
    found = [(drift.key, drift.theirs, drift.ours, drift.wanted, drift.kind) for drift in synced.sync.drifts]
    assert found == ([(key, theirs, None, 100.0, DriftKind.FOREIGN)] if drifts else [])
    synced.load()
    assert synced.period() == []
    assert synced.ledger.held == {key: theirs}
    assert synced.sync.drifts == ()


@pytest.mark.parametrize("theirs", [7.0, None])
def test_what_someone_changed_is_reported_and_left_alone_until_it_is_put_right(theirs: float | None) -> None:
    synced = Synced(ROW)
    synced.period()
    synced.others_write(ALICE, theirs)
    for row, wanted in ((ROW, 100.0), (EDITED_ROW, 80.0)):
        synced.load(row)
        assert synced.period() == []
        (drift,) = synced.sync.drifts
        assert (drift.theirs, drift.ours, drift.wanted, drift.kind) == (theirs, 100.0, wanted, DriftKind.CHANGED)
    synced.others_write(ALICE, 80.0)
    synced.period()
    assert synced.sync.drifts == ()
    synced.load(ROW)
    assert synced.period() == [("alice", 80.0, 100.0, "edited")]


@pytest.mark.parametrize("theirs", [7.0, 100.0])
def test_an_adopted_value_is_adopted_again_and_given_back_when_the_row_goes(theirs: float) -> None:
    synced = Synced(ROW, held={ALICE: theirs}, adopt=True)
    assert synced.period() == [("alice", theirs, 100.0, "adopted")]
    synced.others_write(ALICE, 8.0)
    assert synced.period() == [("alice", 8.0, 100.0, "adopted")]
    assert synced.sync.owned[ALICE].before == theirs
    synced.restart()
    synced.load()
    assert synced.period() == [("alice", 100.0, theirs, "given_back")]
    assert (synced.sync.owned, synced.ledger.held) == ({}, {ALICE: theirs})


def test_a_refused_write_is_tried_again_ten_minutes_later_or_when_its_row_is_edited() -> None:
    synced = Synced(ROW)
    (change,) = synced.sync.period(START_MS, START_MS)
    synced.sync.refuse(change, "not allowed", START_MS)
    (refusal,) = synced.sync.refused
    assert (refusal.key, refusal.by, refusal.reason) == (ALICE, "broker", "not allowed")
    assert synced.sync.period(START_MS + 599_999, START_MS + 599_999) == []
    (change,) = synced.sync.period(START_MS + 600_000, START_MS + 600_000)
    synced.sync.refuse(change, "not allowed", START_MS + 600_000)
    synced.now_ms += 600_000
    assert synced.period() == []
    synced.load(EDITED_ROW)
    assert synced.period() == [("alice", None, 80.0, "added")]
    assert synced.sync.refused == ()


def test_who_was_over_the_bound_before_a_restart_rests_at_an_even_share_after_it() -> None:
    synced = Synced(ROW)
    synced.use(14, {"alice": (60, 45)})
    assert levels_of(synced.sync)[ALICE] > 52.6, "5 % above an even share, or it would stay"
    synced.restart()
    synced.period()
    synced.now_ms += 70_000
    synced.period()
    synced.now_ms += 3_000
    assert [(new, cause) for _, _, new, cause in synced.period()] == [(50.0, "quiet_offender")]


@pytest.mark.parametrize("fate", [Fate.KILLED_STORED, Fate.KILLED_WRITTEN])
def test_a_write_without_an_answer_is_ours_and_what_was_given_back_is_not(fate: Fate) -> None:
    synced = Synced(ROW)
    synced.period(fate)
    synced.restart()
    synced.period()
    synced.load()
    assert synced.period() == [("alice", 100.0, None, "removed")]
    synced = Synced(ROW, held={ALICE: 7.0}, adopt=True)
    synced.period()
    synced.load()
    synced.period(fate)
    synced.restart()
    synced.period()
    assert (synced.sync.owned, synced.ledger.held) == ({}, {ALICE: 7.0})
