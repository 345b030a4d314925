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
    ("typed", "bytes_per_second"),
    [
        ("1MB", 1e6),
        ("1MB/s", 1e6),
        (" 1.0 MB/s ", 1e6),
        ("1kB", 1e3),
        ("1MiB/s", 1048576.0),
        ("1B", 1.0),
        ("1.5e3kB", 1.5e6),
        ("0.001kB", 1.0),
        ("0.0009765625KiB", 1.0),
        ("9007199254740.992kB", 2.0**53),
        ("9223372036854775808B", 2.0**63),
        ("1048576", 1048576.0),
        ("9007199254740993", 2.0**53),
        ("0x1p3", 8.0),
        (1048576, 1048576.0),
    ],
)
def test_a_byte_rate_is_read_with_and_without_a_unit(typed: object, bytes_per_second: float) -> None:
    assert parse_bound(RATE, typed) == bytes_per_second


@pytest.mark.parametrize(
    ("typed", "percent"), [("50%", 50.0), ("0.1 %", 0.1), ("200.5", 200.5), ("1e3%", 1e3), (0.1, 0.1)]
)
def test_a_percentage_is_read_with_and_without_its_sign(typed: object, percent: float) -> None:
    assert parse_bound(PERCENT, typed) == percent


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("0.0005kB", "0.0005kB is not a whole number of bytes"),
        ("1.0000000000000001kB", "1.0000000000000001kB is not a whole number of bytes"),
        (
            "9007199254740.993kB",
            "9007199254740.993kB cannot be stored exactly; the nearest producer_byte_rate is 9007199254740992",
        ),
        ("1e-400MB", "must be greater than 0; got 1e-400MB"),
        (f"1.{'0' * 70}1kB", "is not a whole number of bytes"),
        ("0MB", "must be greater than 0; got 0MB"),
        ("-0.0001kB", "must be greater than 0; got -0.0001kB"),
        ("9223372036854777856B", "is too large for a LONG; got 9223372036854777856B"),
        ("1e999999999MB", "must be a finite number; got 1e999999999MB"),
        ("NaN", "must be a finite number; got NaN"),
        ("0x1p99999", "must be a finite number; got 0x1p99999"),
        ("NaNMB", "Cannot parse quota configuration value for producer_byte_rate: NaNMB; write it like 1048576, 1MB/s"),
        ("1 0MB", "Cannot parse quota configuration value"),
        ("1,5MB", "Cannot parse quota configuration value"),
        ("١MB", "Cannot parse quota configuration value"),
        ("", "Cannot parse quota configuration value"),
        (
            "1KB",
            "1KB has an unknown unit; those of producer_byte_rate are B, kB, MB, GB (thousands)",
        ),
        ("1mb", "unknown unit"),
        ("1.5", "cannot be a fractional value; got 1.5"),
        (1.5, "cannot be a fractional value; got 1.5"),
        (0, "must be greater than 0; got 0"),
        (10**400, "must be a finite number; got 1000"),
        (True, "Cannot parse quota configuration value for producer_byte_rate: true"),
        (None, "Cannot parse quota configuration value for producer_byte_rate: null"),
        ([1], "Cannot parse quota configuration value for producer_byte_rate: [1]"),
    ],
)
def test_what_is_no_byte_rate_is_refused_with_the_reason(typed: object, words: str) -> None:
    with pytest.raises(InvalidBound) as refused:
        parse_bound(RATE, typed)
    assert words in str(refused.value)
    assert (refused.value.quota_type, refused.value.given) == (RATE, typed.strip() if isinstance(typed, str) else typed)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("1MB", "1MB is not a percentage; write request_percentage like 50 or 50%"),
        ("50%/s", "50%/s is not a percentage"),
        ("0%", "must be greater than 0; got 0%"),
        ("1e400%", "must be a finite number; got 1e400%"),
        ("1e19%", "must be below 1e+19; got 1e19%"),
        ("%", "write it like 50 or 50%"),
    ],
)
def test_what_is_no_percentage_is_refused_with_the_reason(typed: str, words: str) -> None:
    with pytest.raises(InvalidBound) as refused:
        parse_bound(PERCENT, typed)
    assert words in str(refused.value)


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
        (0.05, "0.1 B/s"),
        (999.94, "999.9 B/s"),
        (1000.0, "1.0 kB/s"),
        (1048576.0, "1.0 MB/s"),
        (1050000.0, "1.1 MB/s"),
        (999_949.0, "999.9 kB/s"),
        (999_950.0, "1.0 MB/s"),
    ],
)
def test_a_rate_is_shown_in_the_largest_unit_that_fits(value: float, text: str) -> None:
    assert rate_text(RATE, value) == text


@pytest.mark.parametrize(
    ("quota_type", "value", "text"),
    [
        (RATE, 1048576.0, "1048576 (1.0 MB/s)"),
        (RATE, 1e6, "1000000 (1.0 MB/s)"),
        (RATE, 999.0, "999 B/s"),
        (RATE, 1.5, "1.5 B/s"),
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
        (0, "0 s"),
        (1_000, "1 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_600_000, "1 h"),
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
        (1.2 * 100, RATE, 120.0),
        (121.0, RATE, 130.0),
        (99.5, RATE, 100.0),
        (0.01, RATE, 1.0),
        (1.2, RATE, 2.0),
        (987_654_321.0, "consumer_byte_rate", 990_000_000.0),
        (0.0123, PERCENT, 0.013),
        (33.4, PERCENT, 34.0),
    ],
)
def test_a_suggestion_has_two_digits_and_is_never_too_small(value: float, quota_type: str, rounded: float) -> None:
    assert rounded_up(value, quota_type) == rounded


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
        (-1.0, NOT_POSITIVE),
        (10_000.0000009, None),
        (10_000.000001, FRACTION),
        (9.223372036854775807e18, None),
        (math.nextafter(2.0**63, math.inf), TOO_LARGE),
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


def test_a_mistake_is_printed_with_what_is_known_of_its_place() -> None:
    path = ("quotas", 2, "values", 0)
    assert str(Mistake("bad", path)) == "quotas[2].values[0]: bad"
    assert str(Mistake("bad", (0, "mode"))) == "[0].mode: bad"
    assert str(Mistake("bad")) == "bad"


def test_a_bound_that_is_refused_is_a_mistake_at_its_place_and_the_rest_goes_on() -> None:
    mistakes, read = Mistakes(), []
    for number, text in enumerate(["1MB", "1KB", "2MB"]):
        with mistakes.at(number).bound():
            read.append(parse_bound("producer_byte_rate", text))
    assert read == [1e6, 2e6]
    assert [one.path for one in mistakes.found] == [(1,)]
