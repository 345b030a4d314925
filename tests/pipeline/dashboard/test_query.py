"""The parameters of the API."""

import pytest

from pipeline.dashboard.views import Query, read_query
from pipeline.web import QueryRefused

ALL = ("user", "client_id", "owner", "range", "limit", "sort")


def read(*parameters: tuple[str, str]) -> Query:
    return read_query(parameters, ALL)


def test_names_are_taken_as_they_are() -> None:
    name = "<img src=x onerror=alert(1)>"
    assert read(("user", name), ("client_id", "")) == Query(user=name, client_id="")


@pytest.mark.parametrize(
    ("name", "text", "mistake"),
    [
        ("range", "9y", "unknown range '9y'; use 15m, 1h, 6h, 24h or 7d"),
        ("sort", "age", "unknown sort 'age'; use used, name, owner or level"),
        ("limit", "0", "'limit' is not a whole number from 1 to 10000: '0'"),
        ("limit", "10001", "'limit' is not a whole number from 1 to 10000: '10001'"),
        ("limit", "٣", "'limit' is not a whole number from 1 to 10000: '٣'"),
        ("usr", "alice", "unknown parameter 'usr'; use user, client_id, owner, range, limit, sort"),
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
