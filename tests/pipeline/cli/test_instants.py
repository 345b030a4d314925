import pytest

from pipeline.cli.options import parse_instant
from pipeline.errors import UsageError

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "instant_ms"),
    [
        ("0s", NOW_MS),
        ("90s", NOW_MS - 90_000),
        ("30m", NOW_MS - 1_800_000),
        ("2h", NOW_MS - 7_200_000),
        ("7d", NOW_MS - 604_800_000),
        ("-2h", NOW_MS - 7_200_000),
        ("1w", NOW_MS - 604_800_000),
        ("99999999w", 0),
        ("1700000000123", 1_700_000_000_123),
        ("253402300799999", 253_402_300_799_999),
        ("2023-11-14T22:13:20", NOW_MS),
        ("2023-11-14T23:13:20+01:00", NOW_MS),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_ages_times_and_epoch_milliseconds_are_instants(given: str, instant_ms: int) -> None:
    assert parse_instant("--since", given, NOW_MS) == instant_ms


@pytest.mark.parametrize("given", ["", "2 hours", "--2h", "yesterday", "170000", "2023-13-01", "253402300800000"])
def test_anything_else_is_refused_with_the_option_and_the_text(given: str) -> None:
    with pytest.raises(UsageError, match="cannot read --since"):
        parse_instant("--since", given, NOW_MS)
