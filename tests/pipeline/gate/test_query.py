"""The query of a throttle request."""

import re
from typing import Any

import pytest

from pipeline.web import QueryRefused

http = pytest.importorskip("pipeline.gate.http", reason="the extra gate is not installed")
ThrottleQuery, read_query = http.ThrottleQuery, http.read_query


@pytest.mark.parametrize(
    ("parameters", "query"),
    [
        ([("user", "alice")], ThrottleQuery("alice")),
        ([("user", "alice"), ("client_id", "")], ThrottleQuery("alice")),
        (
            [("wait_ms", "60000"), ("broker_id", "1"), ("client_id", "etl & co"), ("user", "älice")],
            ThrottleQuery("älice", "etl & co", "1", 60_000),
        ),
        ([("user", "alice"), ("wait_ms", "0")], ThrottleQuery("alice", wait_ms=0)),
    ],
)
def test_a_query_is_read(parameters: list[tuple[str, str]], query: Any) -> None:
    assert read_query(parameters) == query


@pytest.mark.parametrize(
    ("parameters", "mistake"),
    [
        ([], "'user' must be given; got none"),
        ([("user", "")], "'user' must not be empty; got ''"),
        ([("user", "a"), ("user", "b")], "'user' must be given once; got it again"),
        ([("user", "a"), ("id", "x")], "'id' must be one of user, client_id, broker_id, wait_ms; got 'id'"),
        ([("user", "a"), ("wait_ms", "60001")], "'wait_ms' must be a whole number from 0 to 60000; got '60001'"),
        ([("user", "a"), ("wait_ms", "1.5")], "'wait_ms' must be a whole number from 0 to 60000; got '1.5'"),
        ([("user", "a"), ("wait_ms", "")], "'wait_ms' must be a whole number from 0 to 60000; got ''"),
        ([("user", "a"), ("wait_ms", "²")], "'wait_ms' must be a whole number from 0 to 60000; got '²'"),
        ([("user", "a"), ("wait_ms", "9" * 5_000)], "'wait_ms' must be a whole number"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(parameters: list[tuple[str, str]], mistake: str) -> None:
    with pytest.raises(QueryRefused, match=re.escape(mistake)):
        read_query(parameters)
