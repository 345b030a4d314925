"""T of members of tenants on brokers: what each may use now, in steps; and a tenant that lends, with two brokers."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.broker_levels.entries import EntryKey, MemberBounds, MemberRate
from quota.broker_levels.writes import Change
from quota.engine import QuotaEngine
from quota.snapshot import Mode, QuotaSnapshot
from quota.tenants import Tenant
from tests.quota.factories import quota_row, table, usage_row
from tests.quota.synced import CONSUMER, D, Synced, key_of, told

ALICE: Final = key_of("alice")
T: Final = 100.0
OWN: Final = {ALICE: T}
Rates = Mapping[EntryKey, MemberRate]


def lent(bound: float, observed: float = T, own: float = T) -> Rates:
    return {ALICE: MemberRate(bound, own, observed)}


def steps(*rates: tuple[int, Rates]) -> list[float | None]:
    """What alice's T becomes at each instant; None where it stays. The first rates have been there for five seconds."""
    members = MemberBounds()
    (first_ms, first), *_ = rates
    members.follow(first, OWN, {}, first_ms - 5_000)
    return [members.follow(one, OWN, {}, at_ms).get(ALICE) for at_ms, one in rates]


def follow(synced: Synced, rates: Rates) -> None:
    """Rates that have been there for five seconds."""
    for ago_ms in (5_000, 0):
        synced.sync.follow_members(rates, synced.now_ms - ago_ms)


@pytest.mark.parametrize(
    ("second", "seconds", "expected"),
    [
        pytest.param(314.0, 10.0, None, id="less than 5 % higher"),
        pytest.param(315.0, 10.0, 315.0, id="5 % higher"),
        pytest.param(900.0, 9.999, None, id="ten seconds have not passed"),
        pytest.param(251.0, 9.999, None, id="lower, but not by much"),
        pytest.param(251.0, 10.0, 251.0, id="lower, ten seconds later"),
        pytest.param(298.0, 10.0, None, id="less than 1 % lower"),
        pytest.param(297.0, 10.0, 297.0, id="1 % lower"),
        pytest.param(250.0, 1.0, 250.0, id="much lower: at once"),
        pytest.param(40.0, 1.0, 40.0, id="below T: at once"),
    ],
)
def test_a_members_bound_moves_in_steps(second: float, seconds: float, expected: float | None) -> None:
    at_ms, rates = int(seconds * 1000), lent(second)
    before = [(at_ms - 5_000, rates)] if second > 300.0 else []
    assert steps((0, lent(300.0)), *before, (at_ms, rates)) == [300.0, *(None for _ in before), expected]


def test_only_who_uses_half_of_t_borrows_until_it_uses_less_than_a_quarter() -> None:
    uses = [(at * 20_000, lent(300.0, observed)) for at, observed in enumerate((49.0, 50.0, 50.0, 25.0, 24.0, 49.0))]
    assert steps(*uses) == [None, None, 300.0, None, T, None]
    assert steps((0, lent(95.0, 0.0)), (10_000, {})) == [None, None], "it had this at first"


def test_a_bound_rises_when_it_should_have_been_higher_for_five_seconds() -> None:
    members = MemberBounds()
    found = [members.follow(lent(one), OWN, {}, at_ms) for at_ms, one in ((0, 300.0), (4_999, 200.0), (5_000, 250.0))]
    assert found == [{}, {}, {ALICE: 250.0}]
    members = MemberBounds()
    later = [(0, 300.0), (4_000, T), (5_000, 300.0), (9_999, 300.0), (10_000, 300.0)]
    assert [len(members.follow(lent(one), OWN, {}, at_ms)) for at_ms, one in later] == [0, 0, 0, 0, 1]
    assert MemberBounds().follow(lent(60.0, 0.0), OWN, {}, 0) == {ALICE: 60.0}, "it falls at once"


def test_without_a_rate_of_this_t_a_member_has_its_own_t() -> None:
    other = lent(600.0, own=200.0)
    assert steps((0, lent(300.0)), (1_000, {}), (11_000, {})) == [300.0, T, None]
    assert steps((0, lent(300.0)), (1_000, other)) == [300.0, T]
    fraction = {ALICE: MemberRate(300.7, 100.6, T)}
    assert steps((0, fraction)) == [300.0], "brokers take whole bytes"


def test_a_new_process_goes_on_with_what_the_brokers_have() -> None:
    for written, expected in ((302.0, {ALICE: 302.0}), (290.0, {ALICE: 290.0}), (400.0, {ALICE: 300.0}), (T, {})):
        assert MemberBounds().follow(lent(300.0), OWN, {ALICE: written}, 0) == expected
    assert MemberBounds().follow({}, OWN, {ALICE: 300.0}, 0) == {}


RATES = st.one_of(st.none(), st.tuples(st.floats(1, 1e4), st.floats(0, 400)))


@given(st.lists(RATES, min_size=1, max_size=200))
def test_however_rates_move_a_bound_rises_each_ten_seconds_at_most(rates: list[tuple[float, float] | None]) -> None:
    members, now, rises = MemberBounds(), T, list[int]()
    for second, rate in enumerate(rates):
        found = {} if rate is None else lent(*rate)
        before, now = now, members.follow(found, OWN, {}, second * 1000).get(ALICE, now)
        rises += [second] if now > before else []
        highest = T if rate is None else max(T, rate[0])
        assert now <= 1.2 * highest, "what must go down by much has gone down"
    assert all(later - earlier >= 10 for earlier, later in pairwise(rises))


def test_the_sync_writes_what_a_member_may_use_and_its_own_t_when_rates_are_gone() -> None:
    synced = Synced(quota_row("alice", producer_byte_rate=T), quota_row("bob", producer_byte_rate=T))
    synced.use(1, {})
    follow(synced, lent(300.0))
    assert synced.period() == [("alice", T, 300.0, "member")]
    assert synced.period() == []
    synced.load(quota_row("alice", producer_byte_rate=T), quota_row("bob", producer_byte_rate=80.0))
    follow(synced, lent(300.0))
    assert synced.period() == [("bob", T, 80.0, "edited")], "an edit of another row leaves it"
    follow(synced, {})
    assert synced.period() == [("alice", 300.0, T, "member")]
    synced.load(quota_row("alice", producer_byte_rate=T), mirror=True)
    synced.now_ms += 60_000
    follow(synced, lent(300.0))
    assert [one for one in synced.period() if one[0] == "alice"] == [], "a mirror keeps T"


def tenant(bound: float, mode: Mode = "enforce") -> Tenant:
    return Tenant("team", ("alice",), ("etl",), (bound, None, None), (1.0, None, None), mode=mode)


def test_a_member_without_a_rate_has_no_more_than_its_tenant() -> None:
    rows = [quota_row(user, producer_byte_rate=T, consumer_byte_rate=T) for user in ("alice", "bob")]
    rows += [quota_row("carol", "etl", producer_byte_rate=T), quota_row("", "etl", producer_byte_rate=T)]
    synced = Synced(quota_row("alice", producer_byte_rate=T))
    synced.load(*rows, tenants=(tenant(60.5),))
    follow(synced, {})
    changes, _ = synced.pass_time(1_000)
    assert {(*one.key,): one.bound for one in changes if one.bound != T} == {
        key_of("alice"): 60.0,
        key_of("carol", "etl"): 60.0,
    }
    follow(synced, lent(30.0))
    assert synced.period() == [("alice", 60.0, 30.0, "member")]
    synced.now_ms += 10_000
    follow(synced, {})
    assert synced.period() == [("alice", 30.0, 60.0, "member")]
    synced.load(*rows, tenants=(tenant(60.0, mode="shadow"),))
    synced.now_ms += 10_000
    follow(synced, {})
    assert sorted(synced.period()) == [("alice", 60.0, T, "member"), ("carol", 60.0, T, "member")]


def test_an_edit_of_t_counts_at_once_and_the_rates_of_the_old_t_no_longer() -> None:
    synced = Synced(quota_row("alice", producer_byte_rate=T, consumer_byte_rate=T))
    synced.use(1, {})
    rates = {**lent(300.0), key_of("alice", "", CONSUMER): MemberRate(60.0, T, T)}
    follow(synced, rates)
    assert {new for _, _, new, _ in synced.period()} == {300.0, 60.0}
    synced.load(quota_row("alice", producer_byte_rate=50.0, consumer_byte_rate=T))
    follow(synced, rates)
    assert synced.period() == [("alice", 300.0, 50.0, "edited")]


def test_a_member_under_a_default_has_an_entry_of_its_own_while_it_may_use_more_or_less_than_t() -> None:
    synced = Synced(quota_row(D, producer_byte_rate=T))
    synced.use(1, {"alice": (30, 30), "bob": (30, 30)})
    follow(synced, lent(97.0))
    assert synced.period() == [], "T is near enough"
    follow(synced, lent(300.0, observed=40.0))
    assert synced.period() == [], "who does not use it needs no entry"
    follow(synced, lent(60.0))
    assert synced.period() == [("alice", None, 60.0, "added")]
    follow(synced, lent(45.0))
    assert synced.period() == [("alice", 60.0, 45.0, "member")]
    synced.now_ms += 10_000
    follow(synced, {})
    assert synced.period() == [("alice", 45.0, T, "member")]
    assert synced.rest() == [("alice", T, None, "removed")]
    assert synced.ledger.held == {key_of(D): T}
    follow(synced, lent(300.0))
    assert synced.period() == [("alice", None, 300.0, "added")]
    synced.load(quota_row(D, producer_byte_rate=T), mirror=True)
    follow(synced, lent(300.0))
    assert synced.period() == [("alice", 300.0, None, "removed")], "a mirror has no entries of its own"


def test_a_member_that_is_over_t_before_it_may_borrow_has_one_entry_for_both() -> None:
    synced, written = Synced(quota_row(D, producer_byte_rate=T)), []
    for second in range(10):
        synced.record({"alice": (90, 90)})
        synced.sync.follow_members(lent(300.0) if second >= 3 else {}, synced.now_ms)
        written += told(synced.pass_time(1_000)[0])
    own, borrowed = ("alice", None, 50.0, "together_above"), ("alice", 50.0, 150.0, "member")
    assert written == [(D, None, T, "added"), own, borrowed]


def test_a_members_entry_that_would_change_the_quota_of_others_is_refused_and_told() -> None:
    synced = Synced(quota_row(D, producer_byte_rate=T), quota_row(D, "etl", producer_byte_rate=5.0))
    synced.use(1, {"alice": (30, 30)})
    for _ in range(3):
        follow(synced, lent(60.0))
        assert synced.period() == []
        assert [(one.key, one.by) for one in synced.sync.refused] == [(ALICE, "resolution")]


def test_members_under_a_default_have_as_many_entries_as_a_user_may_have() -> None:
    synced = Synced(quota_row("alice", D, producer_byte_rate=T), own_entries_per_user=2)
    synced.use(1, {"alice/1": (30, 30), "alice/2": (30, 30), "alice/3": (30, 30)})
    rates = {key_of("alice", str(number)): MemberRate(60.0, T, T) for number in (1, 2, 3)}
    follow(synced, {**rates, key_of("alice", "1"): MemberRate(T, T, T)})
    assert [change.key.client_id for change in synced.pass_time(1_000)[0]] == ["2", "3"], "the first needs none"
    follow(synced, rates)
    assert synced.pass_time(1_000)[0] == []
    assert synced.sync.left_out == {"alice": 1}


Demand = Callable[[int], Mapping[str, float]]


class Lending:
    """A tenant that lends, C = 4: alice, bob and carol have T = 1, 1 and 2 MB/s. Two brokers let through their values.

    Six tenths of what a member wants are on the first broker. The rates are those of an engine, and a second old.

    * `of_default`: they have 1 MB/s each, of a default.
    """

    def __init__(self, of_default: bool) -> None:
        self.own = {"alice": 1e6, "bob": 1e6, "carol": 1e6 if of_default else 2e6}
        rows = [quota_row(user, producer_byte_rate=own) for user, own in self.own.items()]
        rows = [quota_row(D, producer_byte_rate=1e6)] if of_default else rows
        self.synced, self.engine = Synced(*rows), QuotaEngine()
        team = Tenant("team", tuple(self.own), (), (4e6, None, None), (4e5, None, None), lend=True)
        self.engine.load_quotas(replace(QuotaSnapshot.from_rows(rows, 1), tenants=(team,), tenants_version=1))
        self.synced.use(1, {})
        self.rates = dict[EntryKey, MemberRate]()
        self.sums: list[float] = []

    def run(self, seconds: int, demand: Demand) -> list[tuple[int, Change]]:
        written = []
        for second in range(seconds):
            held = {key.user: value for key, value in self.synced.ledger.held.items()}
            loads = {
                user: [int(min(wanted * part, held.get(user, held.get(D, 0.0)))) for part in (0.6, 0.4)]
                for user, wanted in demand(second).items()
            }
            self.synced.record(loads)
            self.synced.sync.follow_members(self.rates, self.synced.now_ms)
            written += [(second, change) for change in self.synced.pass_time(1_000)[0]]
            self.sums.append(sum(map(sum, loads.values())))
            self._measure({user: sum(amounts) for user, amounts in loads.items()})
        return written

    def _measure(self, produced: Mapping[str, int]) -> None:
        now_ms = self.synced.now_ms
        used = table([usage_row(now_ms - 100, user=user, produced_bytes=sent) for user, sent in produced.items()])
        self.engine.record(used, now_ms)
        for row in self.engine.rates(used, now_ms, always=np.ones(len(produced), np.bool_)).to_pylist():
            self.rates[key_of(row["user"])] = MemberRate(row["bound"], row["own_bound"], row["observed"])


def greedy(second: int) -> Mapping[str, float]:
    """Alice always wants five times its T; the others begin in the fifth minute."""
    return {"alice": 5e6, "bob": 5e6 if second >= 300 else 1e5, "carol": 1e7 if second >= 300 else 1e5}


def on_and_off(second: int) -> Mapping[str, float]:
    busy = second // 30 % 2
    return {"alice": 5e6, "bob": 5e6 if busy else 0.0, "carol": 1e7 if busy else 0.0}


@pytest.mark.parametrize(
    ("demand", "of_default", "most", "in_all"),
    [(greedy, False, 5, 12), (on_and_off, False, 7, 75), (greedy, True, 6, 15), (on_and_off, True, 8, 150)],
)
def test_a_lending_tenant_causes_few_writes_a_minute_for_ten_minutes(
    demand: Demand, of_default: bool, most: int, in_all: int
) -> None:
    lending = Lending(of_default)
    written = lending.run(600, demand)
    minutes = Counter((change.key.user, second // 60) for second, change in written)
    assert max(minutes.values()) <= most, minutes
    assert len(written) <= in_all, "of three members"
    if demand is greedy:
        alone, all_of_them = lending.sums[240:300], lending.sums[540:]
        assert 0.95 <= np.mean(alone) / 4e6 <= 1.05
        assert 0.95 <= np.mean(all_of_them) / 4e6 <= 1.05
