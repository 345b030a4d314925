"""What the level of a tenant promises, proved by z3 for one to four members and all numbers there are.

A claim is proved if z3 finds no numbers that refute it, and says that there are none. Members may be named in any
order, so what is claimed of the first is claimed of each. Beyond four members, and in doubles, Hypothesis looks for
numbers that refute the same (`test_tenants`).

A member wants w = min(d, H), its demand, at most its ceiling. If all of that fits into C, no member is held back; the
claims are about all other cases. Infinity is no real number, but to want more than C is as good as to want all, which
is proved too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
import z3

_MOST_MS: Final = 60_000  # each takes a second or two at most

Claim = tuple[list[Any], list[Any]]  # what is given, and what follows


def least(one: Any, other: Any) -> Any:
    return z3.If(other < one, other, one)


@dataclass(frozen=True)
class Tenant:
    """What each member wants, its own bound T, and C; and the level."""

    wanted: Sequence[Any]
    own: Sequence[Any]
    bound: Any
    level: Any

    @classmethod
    def of(cls, members: int) -> "Tenant":
        wanted, own = ([z3.Real(f"{name}{number}") for number in range(members)] for name in ("wanted", "own"))
        return cls(wanted, own, z3.Real("bound"), z3.Real("level"))

    def shares(self, level: Any) -> list[Any]:
        """What each member gets at a level, min(w, x · T)."""
        return [least(wanted, level * own) for wanted, own in zip(self.wanted, self.own, strict=True)]

    @property
    def got(self) -> list[Any]:
        return self.shares(self.level)

    @property
    def numbers(self) -> list[Any]:
        """Not all fits; and which numbers there can be."""
        is_possible = [*(own > 0 for own in self.own), *(wanted >= 0 for wanted in self.wanted), self.bound > 0]
        return [*is_possible, z3.Sum(self.wanted) > self.bound]

    @property
    def rules(self) -> list[Any]:
        """The numbers, and the level as the first three claims have it."""
        return [*self.numbers, self.level >= 0, z3.Sum(self.got) == self.bound]

    def but(self, wants: Any | None = None, bound: Any | None = None) -> "Tenant":
        """The same, where the first member wants something else, or with another bound. It has its own level."""
        wanted = self.wanted if wants is None else [wants, *self.wanted[1:]]
        return Tenant(wanted, self.own, self.bound if bound is None else bound, z3.Real("other_level"))


def the_largest_quotient_is_the_level_at_which_all_of_c_is_given(members: int) -> Claim:
    """The quotients are those of `quota.tenants`, λ_i = (C − (w_1 + … + w_i)) / (T_(i + 1) + … + T_n)."""
    one = Tenant.of(members)
    in_order = [one.wanted[i] * one.own[i + 1] <= one.wanted[i + 1] * one.own[i] for i in range(members - 1)]
    quotients = [(one.bound - z3.Sum([z3.RealVal(0), *one.wanted[:i]]), z3.Sum(one.own[i:])) for i in range(members)]
    is_one_of_them = z3.Or(*(one.level * below == above for above, below in quotients))
    is_largest = [one.level * below >= above for above, below in quotients]
    return [*one.numbers, *in_order, is_one_of_them, *is_largest], [one.level > 0, z3.Sum(one.got) == one.bound]


def at_a_higher_level_more_than_c_is_given(members: int) -> Claim:
    one, higher = Tenant.of(members), z3.Real("higher")
    return [*one.rules, higher > one.level], [z3.Sum(one.shares(higher)) > one.bound]


def at_a_lower_level_less_than_c_is_given(members: int) -> Claim:
    one, lower = Tenant.of(members), z3.Real("lower")
    return [*one.rules, lower >= 0, lower < one.level], [z3.Sum(one.shares(lower)) < one.bound]


def a_member_that_wants_more_than_c_may_as_well_want_all(members: int) -> Claim:
    one = Tenant.of(members)
    other = one.but(wants=z3.Real("more"))
    return [*one.rules, *other.rules, one.wanted[0] > one.bound, other.wanted[0] > one.bound], [
        other.level == one.level
    ]


def no_member_is_below_its_own_bound_while_all_own_bounds_fit(members: int) -> Claim:
    one = Tenant.of(members)
    return [*one.rules, z3.Sum(one.own) <= one.bound], [one.level >= 1]


def who_gets_less_than_it_wants_gets_the_largest_part_of_its_own_bound(members: int) -> Claim:
    one = Tenant.of(members)
    is_fair = [one.got[0] * own >= got * one.own[0] for got, own in zip(one.got, one.own, strict=True)]
    return [*one.rules, one.got[0] < one.wanted[0]], is_fair


def who_wants_less_takes_nothing_from_others(members: int) -> Claim:
    """And read from the end: who wants more gives nothing to others."""
    one = Tenant.of(members)
    other = one.but(wants=z3.Real("less"))
    return [*one.rules, *other.rules, other.wanted[0] <= one.wanted[0]], [other.level >= one.level]


def a_raised_bound_lowers_no_bound(members: int) -> Claim:
    one = Tenant.of(members)
    other = one.but(bound=z3.Real("raised"))
    return [*one.rules, *other.rules, other.bound >= one.bound], [other.level >= one.level]


def to_ask_for_more_than_needed_gives_nothing(members: int) -> Claim:
    one = Tenant.of(members)
    other = one.but(wants=z3.Real("more"))
    needed, got = one.wanted[0], other.level * one.own[0]
    return [*one.rules, *other.rules, other.wanted[0] >= needed], [least(needed, got) <= one.got[0]]


def in_another_unit_the_level_is_the_same(members: int) -> Claim:
    one, factor = Tenant.of(members), z3.Real("factor")
    wanted, own = ([factor * number for number in numbers] for numbers in (one.wanted, one.own))
    other = Tenant(wanted, own, factor * one.bound, z3.Real("other_level"))
    return [*one.rules, *other.rules, factor > 0], [other.level == one.level]


CLAIMS: Final[list[Callable[[int], Claim]]] = [
    the_largest_quotient_is_the_level_at_which_all_of_c_is_given,
    at_a_higher_level_more_than_c_is_given,
    at_a_lower_level_less_than_c_is_given,
    a_member_that_wants_more_than_c_may_as_well_want_all,
    no_member_is_below_its_own_bound_while_all_own_bounds_fit,
    who_gets_less_than_it_wants_gets_the_largest_part_of_its_own_bound,
    who_wants_less_takes_nothing_from_others,
    a_raised_bound_lowers_no_bound,
    to_ask_for_more_than_needed_gives_nothing,
    in_another_unit_the_level_is_the_same,
]


@pytest.mark.parametrize("members", [1, 2, 3, 4])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_there_are_no_numbers_that_refute(claim: Callable[[int], Claim], members: int) -> None:
    given, follows = claim(members)
    solver = z3.Solver()
    solver.set("timeout", _MOST_MS)
    solver.add(*given)
    assert solver.check() == z3.sat, "what is given can be, so the proof is not empty"
    solver.add(z3.Not(z3.And(*follows)))
    found = solver.check()
    assert found == z3.unsat, solver.model() if found == z3.sat else solver.reason_unknown()
