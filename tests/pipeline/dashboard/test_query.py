"""The parameters of the API."""

import pytest

from pipeline.dashboard.api import Query, read_query
from pipeline.web import QueryRefused

NOW_MS = 1_700_000_000_000
TIMES = "use 15m, 6h, 7d, 03:12, 2026-01-31T03:12 (UTC) or epoch milliseconds"
ALL = ("user", "client_id", "owner", "since", "until", "limit", "view", "sort")


def read(*parameters: tuple[str, str]) -> Query:
    return read_query(parameters, ALL, NOW_MS)


def test_names_are_taken_as_they_are() -> None:
    name = "<img src=x onerror=alert(1)>"
    assert read(("user", name), ("client_id", "")) == Query(user=name, client_id="")


@pytest.mark.parametrize(
    ("text", "since_ms"),
    [("0", 0), ("1699999999999", 1_699_999_999_999), ("90s", NOW_MS - 90_000), ("15m", NOW_MS - 900_000),
     ("6h", NOW_MS - 21_600_000), ("7d", NOW_MS - 604_800_000), ("22:13:20", NOW_MS), ("22:13", NOW_MS - 20_000),
     ("22:14", NOW_MS + 40_000 - 86_400_000), ("03:12", NOW_MS - 68_480_000), ("2023-11-14T22:13:20", NOW_MS),
     ("2023-11-14 22:13", NOW_MS - 20_000), ("2023-11-14T22:13:20Z", NOW_MS), ("2023-11-14", 1_699_920_000_000)],
)  # fmt: skip
def test_an_instant_is_epoch_milliseconds_an_age_or_a_time_in_utc(text: str, since_ms: int) -> None:
    assert read(("since", text)).since_ms == since_ms


@pytest.mark.parametrize(
    ("name", "text", "mistake"),
    [
        ("since", "yesterday", f"unknown time range 'yesterday'; {TIMES}"),
        ("since", "-1", f"unknown time range '-1'; {TIMES}"),
        ("since", "24:00", f"unknown time range '24:00'; {TIMES}"),
        ("since", "2023-02-30", f"unknown time range '2023-02-30'; {TIMES}"),
        ("sort", "age", "unknown sort 'age'; use used, name, owner or level"),
        ("limit", "0", "'limit' is not a whole number from 1 to 10000: '0'"),
        ("limit", "10001", "'limit' is not a whole number from 1 to 10000: '10001'"),
        ("limit", "٣", "'limit' is not a whole number from 1 to 10000: '٣'"),
        ("view", "all", "unknown view 'all'; use now or head"),
        ("usr", "alice", "unknown parameter 'usr'; use user, client_id, owner, since, until, limit, view, sort"),
    ],
)
def test_a_mistake_is_named(name: str, text: str, mistake: str) -> None:
    with pytest.raises(QueryRefused) as refused:
        read((name, text))
    assert refused.value.mistakes == (mistake,)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(QueryRefused) as refused:
        read(("user", "a"), ("user", "b"), ("limit", "x"))
    assert len(refused.value.mistakes) == 2


def test_the_largest_limit_is_taken() -> None:
    assert read(("limit", "10000")).limit == 10_000
