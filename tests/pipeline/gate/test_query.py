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
        ([("user", "alice")], ThrottleQuery(user="alice")),
        ([("user", "alice"), ("client_id", "")], ThrottleQuery(user="alice")),
        (
            [("wait_ms", "60000"), ("broker_id", "1"), ("client_id", "etl & co"), ("user", "älice")],
            ThrottleQuery(user="älice", client_id="etl & co", broker_id="1", wait_ms=60_000),
        ),
        ([("user", "alice"), ("wait_ms", "0")], ThrottleQuery(user="alice", wait_ms=0)),
    ],
)
def test_a_query_is_read(parameters: list[tuple[str, str]], query: Any) -> None:
    assert read_query(parameters) == query


@pytest.mark.parametrize(
    ("parameters", "mistake"),
    [
        ([], "'user' is missing"),
        ([("user", "")], "'user' is empty"),
        ([("user", "a"), ("user", "b")], "'user' is given twice"),
        ([("user", "a"), ("id", "x")], "unknown parameter 'id'; use user, client_id, broker_id, wait_ms"),
        ([("user", "a"), ("wait_ms", "60001")], "'wait_ms' is not a whole number from 0 to 60000: '60001'"),
        ([("user", "a"), ("wait_ms", "1.5")], "'wait_ms' is not a whole number from 0 to 60000: '1.5'"),
        ([("user", "a"), ("wait_ms", "")], "'wait_ms' is not a whole number from 0 to 60000: ''"),
        ([("user", "a"), ("wait_ms", "²")], "'wait_ms' is not a whole number from 0 to 60000: '²'"),
        ([("user", "a"), ("wait_ms", "9" * 5_000)], "is not a whole number"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(parameters: list[tuple[str, str]], mistake: str) -> None:
    with pytest.raises(QueryRefused, match=re.escape(mistake)):
        read_query(parameters)
