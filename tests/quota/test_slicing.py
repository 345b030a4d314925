"""The rule of a throttle at its boundaries, and by columns beside one throttle at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.entity import QUOTA_TYPES
from quota.throttle_time import Slicing, Step, ThrottleCaps
from tests.quota import one_throttle

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
def test_a_look_holds_on_only_by_what_a_client_can_obey(owed_ms: int, left_ms: int, at_end: bool, step: Step) -> None:
    assert SLICING.at_look(np.array([owed_ms]), np.array([left_ms]), np.array([at_end])).tolist() == [step]


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


CAPS = st.sampled_from(("window", "sample_window", "none", 700, 5_000))
CLAIM = st.tuples(st.integers(0, 100_000), st.integers(1, 12_000), st.integers(0, 2))


@given(producer=CAPS, request_time=CAPS, lead_ms=st.integers(0, 2_000), claims=st.lists(CLAIM))
def test_many_slices_are_as_long_as_each_by_itself(
    producer: str | int, request_time: str | int, lead_ms: int, claims: list[tuple[int, int, int]]
) -> None:
    slicing = Slicing(lead_ms, 1_000, ThrottleCaps(producer_byte_rate=producer, request_percentage=request_time), 1_000)
    columns = np.array(claims, np.int64).reshape(-1, 3).T
    wanted = [one_throttle.slice_ms(slicing, owed_ms, window_ms, QUOTA_TYPES[of]) for owed_ms, window_ms, of in claims]
    assert slicing.slices_ms(*columns).tolist() == wanted
