"""Which bounds Kafka 4.3.1's controller takes and refuses, at the edges. Found by altering quotas of a real broker."""

import math

import pytest

from quota.units import bound_mistake

TOO_LARGE = "Proposed value for producer_byte_rate is too large for a LONG"
FRACTION = "producer_byte_rate cannot be a fractional value"
NOT_POSITIVE = "Quota producer_byte_rate must be greater than 0"
NOT_FINITE = "Quota producer_byte_rate must be a finite number"


@pytest.mark.parametrize(
    ("value", "mistake"),
    [
        (1.0, None),
        (1e-7, None),
        (0.5, FRACTION),
        (0.0, NOT_POSITIVE),
        (-0.0, NOT_POSITIVE),
        (-1.0, NOT_POSITIVE),
        (10_000.0000009, None),
        (10_000.000001, FRACTION),
        (9_999.9999999, FRACTION),
        (9.223372036854775807e18, None),
        (math.nextafter(2.0**63, math.inf), TOO_LARGE),
        (9.3e18, TOO_LARGE),
        (math.nan, NOT_FINITE),
        (math.inf, NOT_FINITE),
    ],
)
def test_byte_rates(value: float, mistake: str | None) -> None:
    assert bound_mistake("producer_byte_rate", value) == mistake


@pytest.mark.parametrize(
    ("value", "mistake"),
    [
        (1e-300, None),
        (0.5, None),
        (9.9e18, None),
        (1e19, "below 1e+19"),
        (0.0, "greater than 0"),
        (math.inf, "finite"),
        (math.nan, "finite"),
    ],
)
def test_a_percentage_may_be_any_number_above_0_and_below_1e19(value: float, mistake: str | None) -> None:
    answer = bound_mistake("request_percentage", value)
    assert answer is None if mistake is None else mistake in str(answer)
