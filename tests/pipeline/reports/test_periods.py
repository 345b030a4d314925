from datetime import UTC, datetime
from itertools import pairwise

import pytest

from pipeline.errors import UsageError
from pipeline.reports.periods import known_period, length_ms, periods, whole_minutes

DAY_MS = 86_400_000


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("by", "since", "until", "names"),
    [
        ("day", "2026-11-22T23:59:00", "2026-11-23T00:01:00", ["2026-11-22", "2026-11-23"]),
        ("day", "2026-11-22", "2026-11-23", ["2026-11-22"]),
        ("day", "2026-11-22", "2026-11-22", []),
        ("week", "2026-11-22T23:00:00", "2026-11-30T00:00:00", ["2026-W47", "2026-W48"]),
        ("week", "2026-12-31", "2027-01-05", ["2026-W53", "2027-W01"]),
        ("month", "2026-01-31", "2026-03-01T00:00:01", ["2026-01", "2026-02", "2026-03"]),
        ("month", "2026-12-01", "2027-01-01", ["2026-12"]),
    ],
)
def test_a_range_is_cut_into_its_periods(by: str, since: str, until: str, names: list[str]) -> None:
    found = list(periods(by, at(since), at(until)))
    assert [period.name for period in found] == names
    if found:
        assert (found[0].start_ms, found[-1].end_ms) == (at(since), at(until))
        assert all(one.end_ms == other.start_ms for one, other in pairwise(found))


@pytest.mark.parametrize(
    ("by", "day", "days"), [("day", "2026-11-23", 1), ("week", "2026-11-29", 7), ("month", "2024-02-29", 29)]
)
def test_the_whole_period_counts_also_where_it_is_cut(by: str, day: str, days: int) -> None:
    assert length_ms(by, at(day)) == days * DAY_MS


def test_the_minutes_of_a_range_are_those_that_begin_in_it() -> None:
    assert whole_minutes(0, 60_000) == (0, 60_000)
    assert whole_minutes(1, 60_001) == (60_000, 120_000)


def test_an_unknown_period_is_refused() -> None:
    assert known_period("week") == "week"
    with pytest.raises(UsageError, match="unknown period --by year; use day, week or month"):
        known_period("year")
