"""The throttle time X: its edges, its rounding and its caps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.errors import InvalidArgument
from quota.throttle_time import NO_CAP, Cap, ThrottleCaps, debt_time_ms, java_round, throttle_time_ms

LONG_MAX = 2**63 - 1


def x(observed: float, bound: float, window_ms: int) -> int:
    return int(throttle_time_ms(np.array([observed]), np.array([bound]), np.array([window_ms]))[0])


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0.0, 0),
        (0.49999999999999994, 0),
        (0.5, 1),
        (1.5, 2),
        (2.5, 3),
        (-0.5, 0),
        (-2.5, -2),
        (-2.6, -3),
        (4503599627370495.5, 4503599627370496),
        (1e300, LONG_MAX),
        (2.0**63, LONG_MAX),
        (-1e300, -LONG_MAX - 1),
        (math.inf, LONG_MAX),
        (-math.inf, -LONG_MAX - 1),
        (math.nan, 0),
    ],
)
def test_rounding_is_that_of_java(value: float, rounded: int) -> None:
    assert java_round(np.array([value])).tolist() == [rounded]


@pytest.mark.parametrize(
    ("observed", "throttle_time"),
    [(0.0, 0), (999.9, 0), (1000.0, 0), (1000.0625, 1), (1000.04, 0), (1100.0, 1000), (2000.0, 10000)],
    ids=["nothing used", "below", "equal", "0.625 milliseconds", "less than that", "above", "twice the bound"],
)
def test_throttle_time_around_the_bound(observed: float, throttle_time: int) -> None:
    assert x(observed, 1000.0, 10000) == throttle_time


def test_throttle_time_saturates_and_needs_a_bound() -> None:
    assert x(1e300, 1e-300, 10000) == LONG_MAX
    assert x(1e300, math.inf, 10000) == 0


rates = st.floats(0, 1e15)
bounds = st.floats(1e-3, 1e12)
windows = st.integers(1, 12_000)


@given(rates, bounds, windows)
def test_throttle_time_is_zero_exactly_when_nothing_rounds_up(observed: float, bound: float, window_ms: int) -> None:
    exact_ms = (observed - bound) / bound * window_ms
    assert (x(observed, bound, window_ms) == 0) == (observed <= bound or exact_ms < 0.5)


@given(rates, rates, bounds, windows)
def test_using_more_never_shortens_a_throttle(one: float, other: float, bound: float, window_ms: int) -> None:
    assert x(min(one, other), bound, window_ms) <= x(max(one, other), bound, window_ms)


@given(rates, bounds, bounds, windows)
def test_a_higher_bound_never_lengthens_a_throttle(observed: float, one: float, other: float, window_ms: int) -> None:
    assert x(observed, max(one, other), window_ms) <= x(observed, min(one, other), window_ms)


@pytest.mark.parametrize(
    ("tokens", "debt_ms"), [(5.0, 0), (0.0, 0), (-5.0, 500), (-10.0, 1000), (-0.004, 0), (-0.005, 1)]
)
def test_debt_is_the_time_a_bucket_needs_to_come_back_to_zero(tokens: float, debt_ms: int) -> None:
    assert debt_time_ms(np.array([tokens]), np.array([10.0])).tolist() == [debt_ms]


@pytest.mark.parametrize(("cap", "expected"), [("sample_window", 2000), ("window", 10400), ("none", NO_CAP), (1, 1)])
def test_caps(cap: Cap, expected: int) -> None:
    caps = ThrottleCaps(consumer_byte_rate=cap)
    assert caps.max_throttle_time_ms(1, np.array([10400]), 2000).tolist() == [expected]


def test_caps_by_default_are_the_window_for_bytes_and_a_slice_for_time() -> None:
    caps = ThrottleCaps()
    assert [int(caps.max_throttle_time_ms(t, np.array([10400]), 1000)[0]) for t in range(3)] == [10400, 10400, 1000]


@pytest.mark.parametrize("cap", ["week", 0, -1, True, 1.5, None])
def test_what_is_no_cap_is_refused(cap: Cap) -> None:
    with pytest.raises(InvalidArgument) as refused:
        ThrottleCaps(request_percentage=cap)
    assert str(refused.value).startswith(f"the cap of request_percentage is {cap!r}; it can be ")
