"""Tenants: which rows can be tenants, who is a member by name, and what the level promises."""

import math
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quota.arrays import Floats
from quota.errors import InvalidQuotas
from quota.tenants import NO_TENANT, Patterns, Tenant, bounds_in_force, levels, moved, read_tenants

INF = math.inf
NONE = (None, None, None)


def tenant_row(tenant: str = "team", **columns: Any) -> dict[str, Any]:
    """A row of the table of tenants; the default has a pattern and a bound."""
    return {"tenant": tenant, "user_patterns": [f"{tenant}-*"], "producer_byte_rate": 100.0, **columns}


# The level against the simplest way to pour water: from rate to rate, one member that has enough after the other.


def poured(demand: list[float], own: list[float], highest: list[float], bound: float) -> float:
    """The largest x with Σ min(d, H, x · T) ≤ C."""
    wanted = [min(pair) for pair in zip(demand, highest, strict=True)]
    if math.fsum(wanted) <= bound:
        return INF
    rest, open_members = bound, sorted(range(len(own)), key=lambda member: wanted[member] / own[member])
    while True:
        level = rest / math.fsum(own[member] for member in open_members)
        if wanted[open_members[0]] > level * own[open_members[0]]:
            return level
        rest = bound - math.fsum(wanted[member] for member in range(len(own)) if member not in open_members[1:])
        open_members = open_members[1:]


def level(demand: list[float], own: list[float], highest: list[float], bound: float) -> float:
    columns = (np.array(column, np.float64) for column in (demand, own, highest))
    return float(levels_of(*columns, np.zeros(len(own), np.int64), bounds=np.array([bound]))[0])


def levels_of(*columns: Any, bounds: Floats) -> Floats:
    """`levels` of members, by the columns d, T, H and tenant."""
    demand, own, highest, tenants = columns
    return levels(demand, own, highest, tenants, bounds)


@pytest.mark.parametrize(
    ("demand", "own", "highest", "bound", "expected"),
    [
        ([INF, 0.1, 0.1], [1.0, 1.0, 2.0], [INF] * 3, 4.0, 3.8),
        ([INF, INF, INF], [1.0, 1.0, 2.0], [INF] * 3, 4.0, 1.0),
        ([INF, INF, INF], [2.0, 2.0, 4.0], [INF] * 3, 4.0, 0.5),
        ([5.0, 0.1, 0.1], [1.0, 1.0, 2.0], [1.5, 1.5, 3.0], 4.0, INF),  # the ceiling holds it
        ([INF, 0.8, 1.6], [1.0, 1.0, 2.0], [INF] * 3, 4.0, 1.6),
        ([INF, INF, INF], [1.0, 1.0, 2.0], [1.0, 1.0, 2.0], 4.0, INF),  # without lend, and all own bounds fit
        ([INF, INF, INF], [1.0, 1.0, 2.0], [1.0, 1.0, 2.0], 3.0, 0.75),  # and do not
        ([2.0, 2.0], [1.0, 1.0], [INF] * 2, 4.0, INF),  # all fits, exactly
        ([2.0, 2.5], [1.0, 1.0], [INF] * 2, 4.0, 2.0),  # the first has exactly what it wants
        ([INF], [1.0], [INF], 4.0, 4.0),
        ([0.0, 0.0], [1.0, 1.0], [INF] * 2, 4.0, INF),
        ([0.0, INF], [1e12, 1.0], [INF] * 2, 4.0, 4.0),  # who wants nothing has no share
        ([], [], [], 4.0, INF),
    ],
)
def test_the_level_at_the_edges(
    demand: list[float], own: list[float], highest: list[float], bound: float, expected: float
) -> None:
    assert level(demand, own, highest, bound) == pytest.approx(expected, rel=1e-15)


positive = st.floats(1e-3, 1e9)
members = st.tuples(
    positive,
    st.one_of(st.just(0.0), st.just(INF), st.sampled_from([0.3, 0.9, 1.0, 1.1, 5.0, 100.0]), st.floats(0.0, 1e3)),
    st.sampled_from([1.0, 1.5, 4.0, 1e9, INF]),
)
teams = st.tuples(st.lists(members, min_size=1, max_size=9), st.one_of(st.sampled_from([0.6, 1.0, 2.0]), positive))
"""T of each member, d / T, and H / T; and C by the sum of all T."""

Team = tuple[list[tuple[float, float, float]], float]


def numbers(team: Team) -> tuple[list[float], list[float], list[float], float]:
    given_members, share = team
    own = [one[0] for one in given_members]
    demand, highest = ([one[0] * one[part] for one in given_members] for part in (1, 2))
    return demand, own, highest, min(max(math.fsum(own) * share, 1e-6), 1e18)


@given(team=teams)
def test_the_level_is_that_of_water_poured_from_member_to_member(team: Team) -> None:
    """Sums that are nearly C leave a quotient of two small numbers: its last digits are those of C."""
    demand, own, highest, bound = numbers(team)
    found, expected = level(demand, own, highest, bound), poured(demand, own, highest, bound)
    wanted = np.minimum(demand, highest)
    if math.isinf(found) or math.isinf(expected):
        assert found == expected or math.fsum(wanted) == pytest.approx(bound, rel=1e-14)
        return
    got = [np.minimum(wanted, of * np.array(own)) for of in (found, expected)]
    np.testing.assert_allclose(got[0], got[1], rtol=1e-13, atol=1e-13 * bound)


@given(data=st.data(), some=st.lists(teams, min_size=1, max_size=6))
def test_the_order_of_members_and_other_tenants_change_no_bit(data: st.DataObject, some: list[Team]) -> None:
    rows = [(*row, at) for at, team in enumerate(some) for row in zip(*numbers(team)[:3], strict=True)]
    bounds = np.array([numbers(team)[3] for team in some])
    mixed = data.draw(st.permutations(rows))
    of_all = levels_of(*map(np.array, zip(*mixed, strict=True)), bounds=bounds)
    assert of_all.tolist() == [level(*numbers(team)) for team in some]
    alone = data.draw(st.integers(0, len(some) - 1))
    padded = [*rows[:1], *((0.0, 1.0, INF, row[3]) for row in rows), *rows[1:]]  # who wants nothing
    assert levels_of(*map(np.array, zip(*padded, strict=True)), bounds=bounds)[alone] == of_all[alone]


def test_tenants_of_every_size_are_as_they_are_alone() -> None:
    """Members are computed in rows of 1, 2, 4, 8, and so on."""
    draws = np.random.default_rng(1)
    some = [(draws.lognormal(0, 1, size), draws.lognormal(0, 2, size), draws.lognormal()) for size in range(1, 40)]
    tenants = np.concatenate([np.full(len(own), at) for at, (own, _, _) in enumerate(some)])
    own, wanted = (np.concatenate([one[part] for one in some]) for part in (0, 1))
    no_end = np.full(len(own), INF)
    of_all = levels(wanted, own, no_end, tenants, np.array([bound for _, _, bound in some]))
    assert of_all.tolist() == [level(list(d), list(t), [INF] * len(t), c) for t, d, c in some]


# The eight promises. `test_tenants_proved` proves them for real numbers; here they are of doubles, and of the module.

SLACK = 1e-9


class Shares:
    """What the members of one tenant may use, and what they get."""

    def __init__(self, demand: list[float], own: list[float], highest: list[float], bound: float) -> None:
        self.demand, self.own, self.highest, self.bound = np.array(demand), np.array(own), np.array(highest), bound
        of_all = np.array([level(demand, own, highest, bound)])
        self.bounds = bounds_in_force(self.own, self.highest / self.own, of_all, np.array([bound]))
        self.wanted = np.minimum(self.demand, self.highest)
        self.got = np.minimum(self.demand, self.bounds)

    def but(self, **changes: Any) -> "Shares":
        ours = {name: getattr(self, name) for name in ("demand", "own", "highest", "bound")}
        return Shares(**{**ours, **changes})


@example(team=([(1.0, INF, INF), (1.0, 0.1, INF), (2.0, 0.05, INF)], 1.0), first=0.5)
@example(team=([(1.0, 0.3, 1.0), (1.0, 0.9, 1.5), (2.0, 100.0, 4.0)], 0.6), first=3.0)
@example(team=([(2.0, 5.0, 1e9)] * 4, 0.5), first=0.0)
@given(team=teams, first=st.sampled_from([0.0, 0.5, 3.0]))
def test_what_the_level_promises(team: Team, first: float) -> None:
    """`first`: how many times as much the first member wants in another world."""
    shares = Shares(*numbers(team))
    bound, own, got, wanted = shares.bound, shares.own, shares.got, shares.wanted
    slack = SLACK * bound
    assert got.sum() <= bound + slack, "the sum is C at most"
    assert got.sum() == pytest.approx(min(bound, wanted.sum()), rel=SLACK), "nothing is idle while somebody wants it"
    if own.sum() <= bound:
        assert (shares.bounds >= own * (1 - SLACK)).all(), "no member is below its own bound while all fit"
    is_hungry = got < wanted - slack
    if is_hungry.any():
        least = (got[is_hungry] / own[is_hungry]).min()
        assert (got <= least * own * (1 + SLACK) + slack).all(), "who gets less than it wants gets the largest part"
    wanted_now = shares.demand[0] * first if shares.demand[0] < INF else 0.0
    other = shares.but(demand=[wanted_now, *shares.demand[1:]])
    lower, upper = (other, shares) if other.demand[0] < shares.demand[0] else (shares, other)
    assert (upper.bounds[1:] <= lower.bounds[1:] * (1 + SLACK)).all(), "who wants less takes nothing from others"
    raised = shares.but(bound=bound * 1.3)
    assert (raised.bounds >= shares.bounds * (1 - SLACK)).all(), "a raised C lowers no bound"
    lie = shares.but(demand=[INF, *shares.demand[1:]])
    assert min(shares.demand[0], lie.bounds[0]) <= got[0] + slack, "to ask for more than needed gives nothing"
    wider = {name: getattr(shares, name) * 8 for name in ("demand", "own", "highest", "bound")}
    scaled = shares.but(**wider)
    assert (scaled.bounds == shares.bounds * 8).all(), "in another unit all is the same"


@pytest.mark.parametrize(
    ("before", "target", "rest", "since_ms", "after"),
    [
        pytest.param(2.0, 2.0, 9.0, 1_000, 2.0, id="equal"),
        pytest.param(2.0, 1.0, 9.0, 0, 1.0, id="below: at once"),
        pytest.param(2.0, 5.0, 9.0, 1_000, 2.2, id="above: a tenth a second"),
        pytest.param(2.0, INF, 9.0, 1_000, 2.2, id="all fits: a tenth a second"),
        pytest.param(2.0, 2.1, 9.0, 1_000, 2.1, id="above, and near"),
        pytest.param(2.0, 5.0, 9.0, 250, 2.05, id="a part of a second"),
        pytest.param(2.0, 9.0, 20.0, 20_000, 6.0, id="of the level at the step before, not of each second's"),
        pytest.param(2.0, 5.0, 9.0, 0, 2.0, id="no time has passed"),
        pytest.param(INF, 3.0, 9.0, 0, 3.0, id="from rest"),
        pytest.param(INF, INF, 9.0, 1_000, INF, id="at rest"),
        pytest.param(INF, INF, 9.0, 0, INF, id="at rest, and no time has passed"),
        pytest.param(INF, 9.0, 9.0, 0, INF, id="exactly where no member is held back"),
        pytest.param(INF, 8.75, 9.0, 0, 8.75, id="just below that"),
        pytest.param(2.0, INF, 2.25, 1_000, 2.2, id="risen to just below rest"),
        pytest.param(2.0, INF, 2.2, 1_000, INF, id="risen to rest"),
        pytest.param(2.0, 1.0, 1.0, 1_000, INF, id="fallen, but rest is lower still"),
    ],
)
def test_the_level_falls_at_once_and_rises_by_a_tenth_a_second(
    before: float, target: float, rest: float, since_ms: int, after: float
) -> None:
    (found,) = moved(*map(np.array, ([before], [target], [rest], [since_ms]))).tolist()
    assert found == pytest.approx(after, rel=1e-15)


@pytest.mark.parametrize(
    ("factor", "level_now", "bound", "expected"),
    [
        pytest.param(1.0, INF, 100.0, 8.0, id="T, without lend and at rest"),
        pytest.param(1.0, 0.5, 100.0, 4.0, id="less than T where not all T fit"),
        pytest.param(1.0, 2.0, 100.0, 8.0, id="no more than T without lend"),
        pytest.param(2.0, 1.5, 100.0, 12.0, id="lent"),
        pytest.param(2.0, INF, 100.0, 16.0, id="the ceiling"),
        pytest.param(INF, INF, 100.0, 100.0, id="C"),
        pytest.param(1.0, INF, 6.0, 6.0, id="C is below T"),
    ],
)
def test_the_bound_in_force_is_the_least_of_ceiling_share_and_c(
    factor: float, level_now: float, bound: float, expected: float
) -> None:
    found = bounds_in_force(*(np.array([number]) for number in (8.0, factor, level_now, bound)))
    assert found.tolist() == [expected]


def tenant(name: str, users: tuple[str, ...] = (), client_ids: tuple[str, ...] = ()) -> Tenant:
    return Tenant(name, users, client_ids, (1.0, None, None), (0.1, None, None))


PATTERNS = (
    tenant("a", ("team-*", "alice", "x-*")),
    tenant("b", ("team-b-*", "team-b", "alice-*")),
    tenant("c", ("team-b-7", "é*", "😀-*", "*"), ("alice",)),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("team-1", "a"),
        ("team-", "a"),
        ("team", "c"),  # shorter than the beginning is
        ("team-b", "b"),  # a name before the beginning of one
        ("team-b-1", "b"),  # the longer beginning before the shorter
        ("team-b-7", "c"),
        ("team-b-70", "b"),
        ("alice", "a"),
        ("alice-", "b"),
        ("ALICE", "c"),
        ("x-", "a"),
        ("x-*", "a"),
        ("été", "c"),
        ("😀-1", "c"),
        ("<default>", "c"),
        ("", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_the_most_specific_pattern_wins(kind: pa.DataType, name: str | None, expected: str | None) -> None:
    (at,) = Patterns(PATTERNS, "users").match(pa.array([name], pa.string()).cast(kind)).tolist()
    assert (None if at == NO_TENANT else PATTERNS[at].name) == expected


def test_patterns_of_a_client_id_say_nothing_of_users_and_none_match_without_tenants() -> None:
    names = pa.array(["alice", "team-1"])
    assert Patterns(PATTERNS, "client_ids").match(names).tolist() == [2, NO_TENANT]
    assert Patterns((), "users").match(names).tolist() == [NO_TENANT] * 2
    assert Patterns(PATTERNS, "users").match(names[:0]).tolist() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tenant": ""}, "tenant '': it has no name"),
        ({"tenant": None}, "tenant None: it has no name"),
        ({"user_patterns": []}, "tenant 'team': it has no pattern, so it has no members"),
        ({"user_patterns": None}, "tenant 'team': it has no pattern, so it has no members"),
        ({"user_patterns": ["a", ""]}, "tenant 'team': user_patterns has ''; a pattern is a name, or"),
        (
            {"client_id_patterns": ["<default>"]},
            "tenant 'team': client_id_patterns has '<default>'; a pattern is a name, or",
        ),
        ({"user_patterns": ["a*b"]}, "tenant 'team': user_patterns has 'a*b'; a pattern is a name, or"),
        ({"user_patterns": ["**"]}, "tenant 'team': user_patterns has '**'; a pattern is a name, or"),
        ({"producer_byte_rate": None}, "tenant 'team': it has no bound; set one of producer_byte_rate, consumer"),
        ({"consumer_byte_rate": 0}, "tenant 'team': consumer_byte_rate is 0, not a finite number above 0"),
        ({"producer_byte_rate": math.nan}, "tenant 'team': producer_byte_rate is nan, not a finite number above 0"),
        ({"member_producer_byte_rate": -1}, "tenant 'team': member_producer_byte_rate is -1, not a finite number"),
        ({"lend": True, "ceiling": 0.5}, "tenant 'team': ceiling is 0.5; it can be 1 or more, with lend"),
        ({"ceiling": 2.0}, "tenant 'team': ceiling is 2.0; it can be 1 or more, with lend"),
        ({"lend": True, "ceiling": INF}, "tenant 'team': ceiling is inf, not a finite number above 0"),
        ({"mode": "exempt"}, "tenant 'team': unknown mode 'exempt'; known are enforce, shadow"),
    ],
)
def test_a_row_that_can_not_be_a_tenant_is_refused_with_the_reason(changes: dict[str, Any], problem: str) -> None:
    rows = [tenant_row(**changes), tenant_row("b", user_patterns=["u", "v", "u"]), tenant_row("c", user_patterns=["v"])]
    with pytest.raises(InvalidQuotas) as refused:
        read_tenants(rows, version=3)
    first, second = refused.value.problems
    assert first.startswith(problem)
    assert second == "user pattern 'v' is in the tenants 'b' and 'c'"
    assert str(refused.value).startswith("tenants v3: tenant ")


def test_a_tenant_has_one_row_and_a_pattern_may_be_of_users_and_client_ids() -> None:
    rows = [tenant_row(), tenant_row("b", user_patterns=["u"], client_id_patterns=["u"]), tenant_row()]
    with pytest.raises(InvalidQuotas) as refused:
        read_tenants(rows, version=3)
    assert refused.value.problems == ("tenant 'team' has several rows",)


def test_what_a_tenant_does_not_say_is_no_lend_enforce_and_a_tenth_of_its_bound() -> None:
    sparse = {"tenant": "b", "client_id_patterns": ["c-*"], "request_percentage": 50.0, "lend": None, "mode": None}
    full = tenant_row(lend=True, ceiling=4.0, mode="shadow", member_producer_byte_rate=2, consumer_byte_rate=80)
    found = read_tenants([full, sparse], version=3)
    assert found == (
        Tenant("b", (), ("c-*",), (None, None, 50.0), (None, None, 5.0)),
        Tenant("team", ("team-*",), (), (100.0, 80.0, None), (2.0, 8.0, None), True, 4.0, "shadow"),
    )
    assert [one.factor for one in found] == [1.0, 4.0]
    assert Tenant("c", (), (), NONE, NONE, lend=True).factor == INF


@pytest.mark.parametrize(("mode", "expected"), [("enforce", ["enforce", "shadow"]), ("shadow", ["shadow", "shadow"])])
def test_a_table_in_shadow_mode_has_shadow_tenants_only(
    mode: Literal["enforce", "shadow"], expected: list[str]
) -> None:
    rows = [tenant_row(), tenant_row("z", mode="shadow")]
    assert [one.mode for one in read_tenants(rows, 3, mode)] == expected
