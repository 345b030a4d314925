"""Numbers as Java prints and reads them; quotas as the lines of kafka-configs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.quotas.edit import parse_added
from pipeline.cli.quotas.entity import described_line, java_double
from quota.units import Mistakes, parse_double


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1024.0, "1024.0"),
        (0.5, "0.5"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (0.00012345, "1.2345E-4"),
        (9_999_999.0, "9999999.0"),
        (10_000_000.0, "1.0E7"),
        (123_456_789_012.0, "1.23456789012E11"),
        (9_007_199_254_740_992.0, "9.007199254740992E15"),
        (1e300, "1.0E300"),
        (2e23, "2.0E23"),
        (5e-324, "4.9E-324"),
        (1e-323, "9.9E-324"),
        (2e-323, "2.0E-323"),
    ],
)
def test_a_double_prints_as_in_java(value: float, text: str) -> None:
    assert java_double(value) == text


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_what_is_printed_reads_back_as_the_same_number(value: float) -> None:
    assert parse_double(java_double(value)) == value


def test_what_kafka_does_not_have_follows_what_it_has() -> None:
    row: dict[str, Any] = {
        "user": "alice",
        "client_id": "<default>",
        "producer_byte_rate": 1.0,
        "consumer_byte_rate": 2.0,
        "request_percentage": None,
        "mode": "shadow",
        "owner": "team-a",
        "note": "until May, then a=less",
    }
    line = described_line(row)
    assert line == (
        "Quota configs for user-principal 'alice', the default client-id are consumer_byte_rate=2.0, "
        "producer_byte_rate=1.0, mode=shadow, owner=team-a, note=[until May, then a=less]"
    )
    kept = {name: value for name, value in row.items() if name not in {"user", "client_id"} and value is not None}
    mistakes = Mistakes()
    assert parse_added(line.partition(" are ")[2], ["users"], mistakes) == kept
    assert mistakes.found == ()
