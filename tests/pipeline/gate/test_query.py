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
        ([], "'user' is missing"),
        ([("user", "")], "cannot read 'user' ''; give a name that is not empty"),
        ([("user", "a"), ("user", "b")], "'user' is given twice"),
        ([("user", "a"), ("id", "x")], "unknown parameter 'id'; use user, client_id, broker_id, wait_ms"),
        ([("user", "a"), ("wait_ms", "60001")], \"cannot read 'wait_ms' '60001'; use a whole number from 0 to 60000\"),
        ([("user", "a"), ("wait_ms", "1.5")], \"cannot read 'wait_ms' '1.5'; use a whole number from 0 to 60000\"),
        ([("user", "a"), ("wait_ms", "")], \"cannot read 'wait_ms' ''; use a whole number from 0 to 60000\"),
        ([("user", "a"), ("wait_ms", "²")], \"cannot read 'wait_ms' '²'; use a whole number from 0 to 60000\"),
        ([("user", "a"), ("wait_ms", "9" * 5_000)], "use a whole number"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(parameters: list[tuple[str, str]], mistake: str) -> None:
    with pytest.raises(QueryRefused, match=re.escape(mistake)):
        read_query(parameters)
