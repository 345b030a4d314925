import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.broker_level import broker_level, broker_levels
from quota.errors import InvalidArgument

INF = math.inf
RATES = st.floats(0.0, 1e12, allow_nan=False)
BOUNDS = st.floats(1e-3, 1e12, allow_nan=False)
BROKERS = st.lists(st.tuples(RATES, st.booleans()), min_size=1, max_size=30)


def level(demand: list[float], bound: float, saturated: list[bool] | None = None) -> float:
    return broker_level(np.array(demand, np.float64), np.array(saturated or [False] * len(demand), np.bool_), bound)


@pytest.mark.parametrize(
    ("demand", "bound", "expected"),
    [
        ([60.0, 30.0, 90.0], 100.0, 35.0),
        ([0.0, 0.0], 100.0, 100.0),
        ([50.0, 50.0], 100.0, 100.0),  # all fits, exactly
        ([50.0, 50.5], 100.0, 50.0),  # 50 is what the first wants and what each gets
        ([40.0, 61.0], 100.0, 60.0),
        ([INF, INF], 100.0, 50.0),
        ([0.0, INF], 100.0, 100.0),
        ([100.0, INF], 100.0, 50.0),
        ([150.0], 100.0, 100.0),
        ([INF], 100.0, 100.0),
        ([], 100.0, 100.0),
        ([5.0, 0.0], 0.0, 0.0),
        ([0.0, 0.0], 0.0, 0.0),
    ],
)
def test_the_level_at_the_edges(demand: list[float], bound: float, expected: float) -> None:
    assert level(demand, bound) == expected


def test_a_broker_that_throttles_counts_as_unbounded_whatever_it_takes() -> None:
    assert level([60.0, 30.0, 5.0], 100.0, [False, False, True]) == level([60.0, 30.0, INF], 100.0) == 35.0


@given(brokers=BROKERS, bound=BOUNDS)
def test_no_broker_may_give_more_than_the_bound_nor_less_than_its_even_share(
    brokers: list[tuple[float, bool]], bound: float
) -> None:
    demand, saturated = map(list, zip(*brokers, strict=True))
    assert bound / len(demand) <= level(demand, bound, saturated) <= bound


@given(brokers=BROKERS, bound=BOUNDS)
def test_the_brokers_give_the_bound_together_or_all_that_is_wanted(
    brokers: list[tuple[float, bool]], bound: float
) -> None:
    demand, saturated = map(list, zip(*brokers, strict=True))
    found = level(demand, bound, saturated)
    wanted = [INF if hidden else rate for rate, hidden in brokers]
    given_together = math.fsum(min(rate, found) for rate in wanted)
    assert given_together == pytest.approx(min(bound, math.fsum(wanted)), rel=1e-9)  # a few sums and one quotient


@given(brokers=BROKERS, bounds=st.tuples(BOUNDS, BOUNDS))
def test_a_larger_bound_never_gives_a_lower_level(
    brokers: list[tuple[float, bool]], bounds: tuple[float, float]
) -> None:
    demand, saturated = map(list, zip(*brokers, strict=True))
    smaller, larger = sorted(bounds)
    assert level(demand, smaller, saturated) <= level(demand, larger, saturated)


@given(brokers=BROKERS, bound=BOUNDS, data=st.data())
def test_equal_inputs_give_equal_levels_in_any_order_and_company(
    brokers: list[tuple[float, bool]], bound: float, data: st.DataObject
) -> None:
    mixed = data.draw(st.permutations(brokers))
    rows = np.array([[rate for rate, _ in row] for row in (brokers, mixed, brokers)])
    hidden = np.array([[throttles for _, throttles in row] for row in (brokers, mixed, brokers)])
    found = broker_levels(rows, hidden, np.array([bound, bound, bound]))
    assert len(set(found.tolist())) == 1
    assert found[0] == level(rows[0].tolist(), bound, hidden[0].tolist())


@pytest.mark.parametrize(
    ("demand", "bound", "message"),
    [
        ([-1.0, 2.0], 5.0, "the demand on a broker is -1.0; it can be 0 or more"),
        ([math.nan], 5.0, "the demand on a broker is nan; it can be 0 or more"),
        ([1.0], -5.0, "the bound is -5.0; it can be a finite number of 0 or more"),
        ([1.0], INF, "the bound is inf; it can be a finite number of 0 or more"),
    ],
)
def test_what_is_no_rate_is_refused(demand: list[float], bound: float, message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        level(demand, bound)
    assert str(raised.value) == message
