"""The throttle time X, its edges, rounding and caps; and the rule of a throttle at its boundaries."""

import math

import numpy as np
import pytest

from quota.throttle_time import NO_CAP, Cap, Slicing, Step, ThrottleCaps, java_round, throttle_time_ms

LONG_MAX = 2**63 - 1


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
    ("observed", "bound", "window_ms", "throttle_time"),
    [
        (0.0, 1000.0, 10_000, 0),
        (999.9, 1000.0, 10_000, 0),
        (1000.0, 1000.0, 10_000, 0),
        (1000.04, 1000.0, 10_000, 0),  # less than half a millisecond
        (1000.0625, 1000.0, 10_000, 1),
        (1100.0, 1000.0, 10_000, 1000),
        # The quotient first, then the product; the other order gives one ms more or less.
        (2025.0, 1000.0, 10_500, 10_762),
        (1290.0, 1000.0, 11_650, 3_378),
        (7.866, 3.0, 11_250, 18_248),
        (1e300, 1e-300, 10_000, LONG_MAX),
        (1e300, math.inf, 10_000, 0),
    ],
)
def test_the_throttle_time_is_computed_as_by_kafka(
    observed: float, bound: float, window_ms: int, throttle_time: int
) -> None:
    found = throttle_time_ms(np.array([observed]), np.array([bound]), np.array([window_ms]))
    assert found.tolist() == [throttle_time]


@pytest.mark.parametrize(("cap", "expected"), [("sample_window", 2000), ("window", 10400), ("none", NO_CAP), (1, 1)])
def test_caps(cap: Cap, expected: int) -> None:
    caps = ThrottleCaps(consumer_byte_rate=cap)
    assert caps.max_throttle_time_ms(1, np.array([10400]), 2000).tolist() == [expected]


def test_caps_by_default_are_the_window_for_bytes_and_a_slice_for_time() -> None:
    caps = ThrottleCaps()
    assert [int(caps.max_throttle_time_ms(t, np.array([10400]), 1000)[0]) for t in range(3)] == [10400, 10400, 1000]


SLICING = Slicing(lead_ms=300, min_hold_ms=1_000, caps=ThrottleCaps(), sample_window_ms=1_000)
ENDED = -3_000
"""So much is left of a throttle that ended as long ago as the rule looks back."""


@pytest.mark.parametrize(
    ("owed_ms", "slice_ms", "left_ms", "is_held", "is_published"),
    [
        (999, 999, ENDED, False, False),
        (1_000, 1_000, ENDED, False, True),
        (9_000, 900, ENDED, False, True),  # its cap is short: what is owed counts
        (0, 0, ENDED, False, False),
        (1_999, 1_999, ENDED + 1, False, False),  # soon after its release
        (2_000, 2_000, ENDED + 1, False, True),
        (1_999, 1_999, 5_000, False, False),  # an edit has released it
        (1_999, 1_999, 1_000, True, False),
        (2_000, 2_000, 1_000, True, True),
        (1_000, 1_000, -50, True, True),  # it has ended and waits for its last look
        (90_000, 10_000, 9_001, True, False),  # an extension counts by its slice
        (10_010, 10_010, 9_010, True, False),  # a second, but less than a tenth of the slice
        (10_010, 10_010, 9_009, True, True),
        (500, 500, 5_000, True, False),  # ends earlier
    ],
)
def test_a_violation_is_published_if_it_holds_clearly_longer(
    owed_ms: int, slice_ms: int, left_ms: int, is_held: bool, is_published: bool
) -> None:
    owed, slices, left = (np.array([number]) for number in (owed_ms, slice_ms, left_ms))
    assert SLICING.is_published(owed, slices, left, np.array([is_held])).tolist() == [is_published]


@pytest.mark.parametrize(
    ("owed_ms", "left_ms", "at_end", "step"),
    [
        (1_299, 300, False, Step.WAIT),
        (1_300, 300, False, Step.HOLD),
        (0, 300, False, Step.WAIT),
        (1_000, 0, True, Step.RELEASE),
        (1_001, 0, True, Step.HOLD),
        (0, 0, True, Step.RELEASE),
    ],
)
def test_a_check_holds_on_only_by_what_a_client_can_obey(owed_ms: int, left_ms: int, at_end: bool, step: Step) -> None:
    assert SLICING.at_check(np.array([owed_ms]), np.array([left_ms]), np.array([at_end])).tolist() == [step]


@pytest.mark.parametrize(
    ("owed_ms", "left_ms", "bound_fell", "step"),
    [
        (0, 5_000, True, Step.RELEASE),
        (5_999, 5_000, True, Step.WAIT),
        (6_000, 5_000, True, Step.HOLD),
        (4_001, 5_000, False, Step.WAIT),
        (4_000, 5_000, False, Step.HOLD),  # shortened
        (4_000, 5_000, True, Step.WAIT),  # a lower bound never shortens
        (1_001, 5_000, False, Step.HOLD),
        (1_000, 5_000, False, Step.RELEASE),  # what would be left of it cannot be obeyed
        (500, 1_499, False, Step.WAIT),
    ],
)
def test_an_edit_shortens_prolongs_releases_or_leaves(owed_ms: int, left_ms: int, bound_fell: bool, step: Step) -> None:
    assert SLICING.at_edit(np.array([owed_ms]), np.array([left_ms]), np.array([bound_fell])).tolist() == [step]
