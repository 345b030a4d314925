import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.entity import QUOTA_TYPES
from quota.slicing import Slicing, ends_clearly_later
from quota.throttle_time import ThrottleCaps
from tests.quota.one_renewal import renewal_ms


@pytest.mark.parametrize(
    ("later_ms", "slice_ms", "is_later"),
    [
        (1_000, 500, False),  # exactly a second
        (1_001, 500, True),
        (1_001, 10_009, True),  # a tenth of the slice, rounded down, is a second
        (1_001, 10_010, False),  # exactly a tenth
        (1_002, 10_010, True),
        (-5_000, 500, False),  # ends earlier
    ],
)
def test_an_end_is_clearly_later_by_more_than_a_second_and_a_tenth(
    later_ms: int, slice_ms: int, is_later: bool
) -> None:
    assert ends_clearly_later(later_ms, slice_ms) is is_later
    assert ends_clearly_later(np.array([later_ms]), np.array([slice_ms])).tolist() == [is_later]


CAPS = st.sampled_from(("window", "sample_window", "none", 700, 5_000))
CLAIM = st.tuples(st.integers(0, 100_000), st.integers(1, 12_000), st.integers(0, 2))


@given(producer=CAPS, request_time=CAPS, lead_ms=st.integers(0, 2_000), claims=st.lists(CLAIM))
def test_many_renewals_are_as_long_as_each_by_itself(
    producer: str | int, request_time: str | int, lead_ms: int, claims: list[tuple[int, int, int]]
) -> None:
    slicing = Slicing(lead_ms, 250, ThrottleCaps(producer_byte_rate=producer, request_percentage=request_time), 1_000)
    columns = np.array(claims, np.int64).reshape(-1, 3).T
    wanted = [renewal_ms(slicing, owed_ms, window_ms, QUOTA_TYPES[of]) for owed_ms, window_ms, of in claims]
    assert slicing.renewals_ms(*columns).tolist() == wanted
