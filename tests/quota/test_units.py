"""Bounds and ages as people write and read them: tables of boundaries.

Kafka's own rules of bounds were found by altering quotas of a real broker.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.errors import InvalidBound
from quota.units import (
    UNITS,
    Mistake,
    Mistakes,
    age_text,
    bound_mistake,
    bound_text,
    exact_text,
    parse_bound,
    rate_text,
    rounded_up,
)

RATE = "producer_byte_rate"
PERCENT = "request_percentage"


@pytest.mark.parametrize(
    ("quota_type", "typed", "bound"),
    [
        (RATE, "1MB", 1e6),
        (RATE, " 1.0 MB/s ", 1e6),
        (RATE, "1MiB/s", 1048576.0),
        (RATE, "1.5e3kB", 1.5e6),
        (RATE, "0.0009765625KiB", 1.0),
        (RATE, "9007199254740.992kB", 2.0**53),
        (RATE, "9223372036854775808B", 2.0**63),
        (RATE, "9007199254740993", 2.0**53),
        (RATE, "0x1p3", 8.0),
        (PERCENT, "0.1 %", 0.1),
        (PERCENT, "1e3%", 1e3),
        (PERCENT, 0.1, 0.1),
    ],
)
def test_a_bound_is_read_with_and_without_a_unit(quota_type: str, typed: object, bound: float) -> None:
    assert parse_bound(quota_type, typed) == bound


FRACTION, NO_NUMBER = "is not a whole number of bytes", "Cannot parse quota configuration value for producer_byte_rate"


@pytest.mark.parametrize(
    ("quota_type", "typed", "words"),
    [
        (RATE, "0.0005kB", f"0.0005kB {FRACTION}"),
        (RATE, f"1.{'0' * 70}1kB", FRACTION),
        (RATE, "9007199254740.993kB", "stored exactly; the nearest producer_byte_rate is 9007199254740992"),
        (RATE, "1e-400MB", "must be greater than 0; got 1e-400MB"),
        (RATE, "0MB", "must be greater than 0; got 0MB"),
        (RATE, "9223372036854777856B", "is too large for a LONG; got 9223372036854777856B"),
        (RATE, "1e999999999MB", "must be a finite number; got 1e999999999MB"),
        (RATE, "NaN", "must be a finite number; got NaN"),
        (RATE, 10**400, "must be a finite number; got 1000"),
        (RATE, "NaNMB", f"{NO_NUMBER}: NaNMB; write it like 1048576, 1MB/s"),
        (RATE, "1 0MB", NO_NUMBER),
        (RATE, "١MB", NO_NUMBER),
        (RATE, "", NO_NUMBER),
        (RATE, True, f"{NO_NUMBER}: true"),
        (RATE, [1], f"{NO_NUMBER}: [1]"),
        (RATE, "1KB", "1KB has an unknown unit; those of producer_byte_rate are B, kB, MB, GB (thousands)"),
        (PERCENT, "1MB", "1MB is not a percentage; write request_percentage like 50 or 50%"),
        (PERCENT, "0%", "must be greater than 0; got 0%"),
        (PERCENT, "1e19%", "must be below 1e+19; got 1e19%"),
        (PERCENT, "%", "write it like 50 or 50%"),
    ],
)
def test_what_is_no_bound_is_refused_with_the_reason(quota_type: str, typed: object, words: str) -> None:
    with pytest.raises(InvalidBound) as refused:
        parse_bound(quota_type, typed)
    assert words in str(refused.value)
    assert (refused.value.quota_type, refused.value.given) == (quota_type, typed)


@given(st.integers(1, 2**53), st.sampled_from(sorted(UNITS)))
def test_whole_bytes_with_a_unit_are_never_rounded(count: int, unit: str) -> None:
    exact = count * UNITS[unit]
    if exact > 2**63 or float(exact) != exact:
        with pytest.raises(InvalidBound):
            parse_bound(RATE, f"{count}{unit}")
    else:
        assert parse_bound(RATE, f"{count}{unit}/s") == exact


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0 B/s"),
        (1000.0, "1.0 kB/s"),
        (1050000.0, "1.1 MB/s"),
        (999_950.0, "1.0 MB/s"),
    ],
)
def test_a_rate_is_shown_in_the_largest_unit_that_fits(value: float, text: str) -> None:
    assert rate_text(RATE, value) == text


@pytest.mark.parametrize(
    ("quota_type", "value", "text"),
    [
        (RATE, 1048576.0, "1048576 (1.0 MB/s)"),
        (RATE, 999.0, "999 B/s"),
        (RATE, 2.0**63, "9223372036854776000 (9223372036.9 GB/s)"),
        (PERCENT, 50.0, "50 %"),
        (PERCENT, 0.0001, "0.0001 %"),
    ],
)
def test_a_bound_is_shown_exactly_with_its_size_beside_it(quota_type: str, value: float, text: str) -> None:
    assert bound_text(quota_type, value) == text


@given(st.floats(min_value=5e-324, max_value=1e300))
def test_an_exact_text_reads_back_as_the_same_number(value: float) -> None:
    assert float(exact_text(value)) == value
    assert "e" not in exact_text(value).lower()


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (-5, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_660_000, "1 h 1 min"),
        (86_400_000, "1 d"),
        (31_536_000_000, "365 d"),
    ],
)
def test_an_age_has_one_or_two_units(age_ms: float, text: str) -> None:
    assert age_text(age_ms) == text


@pytest.mark.parametrize(
    ("value", "quota_type", "rounded"),
    [
        (100.0, RATE, 100.0),
        (121.0, RATE, 130.0),
        (0.01, RATE, 1.0),
        (1.2, RATE, 2.0),
        (987_654_321.0, "consumer_byte_rate", 990_000_000.0),
        (0.0123, PERCENT, 0.013),
    ],
)
def test_a_suggestion_has_two_digits_and_is_never_too_small(value: float, quota_type: str, rounded: float) -> None:
    assert rounded_up(value, quota_type) == rounded


@pytest.mark.parametrize(
    ("quota_type", "value", "mistake"),
    [
        (RATE, 1.0, None),
        (RATE, 1e-7, None),
        (RATE, 0.5, "cannot be a fractional value"),
        (RATE, 0.0, "must be greater than 0"),
        (RATE, 10_000.0000009, None),
        (RATE, 10_000.000001, "cannot be a fractional value"),
        (RATE, 9.223372036854775807e18, None),
        (RATE, math.nextafter(2.0**63, math.inf), "too large for a LONG"),
        (RATE, math.nan, "must be a finite number"),
        (PERCENT, 1e-300, None),
        (PERCENT, 9.9e18, None),
        (PERCENT, 1e19, "below 1e+19"),
        (PERCENT, 0.0, "greater than 0"),
        (PERCENT, math.inf, "finite"),
    ],
)
def test_bounds_are_refused_as_by_kafka(quota_type: str, value: float, mistake: str | None) -> None:
    found = bound_mistake(quota_type, value)
    assert found is None if mistake is None else mistake in str(found)


def test_a_bound_that_is_refused_is_a_mistake_at_its_place_and_the_rest_goes_on() -> None:
    mistakes, read = Mistakes(), []
    for number, text in enumerate(["1MB", "1KB", "2MB"]):
        with mistakes.at(number).bound():
            read.append(parse_bound("producer_byte_rate", text))
    assert read == [1e6, 2e6]
    assert [one.path for one in mistakes.found] == [(1,)]
    assert str(Mistake("bad", ("quotas", 2, "values", 0))) == "quotas[2].values[0]: bad"
