"""Messages and elements that are refused, each with its cause, and that every one is counted."""

import json

import pytest
from pyspark.sql import SparkSession

from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA, USAGE_SCHEMA
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    DAY_MS,
    LARGEST,
    PARTITION,
    RULES,
    TOO_OLD,
    TOPIC,
    array,
    collect_twice,
    dead,
    event,
    message,
    raw_frame,
    the_row,
    twice,
    usage,
)

pytestmark = pytest.mark.spark

WHOLE_MESSAGES = [
    (b"", "value must be JSON"),
    (b"{", "value must be JSON"),
    (b"hello", "value must be JSON"),
    (b"\xff\xfe\x00", "value must be JSON"),
    (b"\xef\xbb\xbf" + message(), "value must be JSON"),
    (message() + b" x", "value must be JSON"),
    (message() + message(), "value must be JSON"),
    (message() + b"," + message(), "value must be JSON"),
    (b"[" + message() + b"] ]", "value must be JSON"),
    (b"[" + message() + b',{"user"', "value must be JSON"),
    (b"[" + message() + b",]", "value must be JSON"),
    (message()[:-1], "value must be JSON"),
    (message()[:-1] + b"]", "value must be JSON"),
    (b"[" + message() + b"}", "value must be JSON"),
    (message().replace(b'"', b"'"), "value must be JSON"),
    (message(produced_bytes=float("nan")), "value must be JSON"),
    (b"[" * 3000, "value must be JSON"),
    (b"[" * 3000 + b"]" * 3000, "value must be JSON"),
    (b"null", "value must be a JSON object or an array of objects"),
    (b"5", "value must be a JSON object or an array of objects"),
    (b'"text"', "value must be a JSON object or an array of objects"),
    (b"{}", "'event_time_ms' must be present"),
    (message(event_time_ms=...), "'event_time_ms' must be present"),
    (message(event_time_ms=None), "'event_time_ms' must be present"),
    (message(event_time_ms="1700000000500"), "'event_time_ms' must be a JSON integer"),
    (message(event_time_ms=1.5), "'event_time_ms' must be a JSON integer"),
    (message(event_time_ms=-1), "'event_time_ms' must be at least 0"),
    (message(event_time_ms=2**63), "'event_time_ms' must be at most 9223372036854775807"),
    (message(user=...), "'user' must be present"),
    (message(user=None), "'user' must be present"),
    (message(user=""), "'user' must not be empty"),
    (message(client_id=...), "'client_id' must be present"),
    (message(produced_bytes=-1), "'produced_bytes' must be at least 0"),
    (message(produced_bytes=LARGEST + 1), "'produced_bytes' must be at most 1099511627776"),
    (message(fetched_bytes=10**30), "'fetched_bytes' must be at most 1099511627776"),
    (message(fetched_bytes=-(10**30)), "'fetched_bytes' must be at least 0"),
    (message(io_time_ns=True), "'io_time_ns' must be a JSON integer"),
    (message(io_time_ns={"ns": 5}), "'io_time_ns' must be a JSON integer"),
    (message(network_time_ns=[1]), "'network_time_ns' must be a JSON integer"),
    (message(network_time_ns=5.0), "'network_time_ns' must be a JSON integer"),
    (message(request_count=-1), "'request_count' must be at least 0"),
    (message(throttle_exempt="yes"), "'throttle_exempt' must be true or false"),
    (message(throttle_exempt=1), "'throttle_exempt' must be true or false"),
    (twice('"produced_bytes":[]'), "'produced_bytes' must be a JSON integer"),
    (twice('"produced_bytes":' + "9" * 30), "'produced_bytes' must be at most 1099511627776"),
    (twice('"throttle_exempt":true,"throttle_exempt":1'), "'throttle_exempt' must be true or false"),
    (twice('"user":""'), "'user' must not be empty"),
    (message(schema_version=0), "'schema_version' must be at least 1"),
    (message(user="x" * 32_768), "'user' must be at most 32767 bytes of UTF-8"),
    (message(client_id="用" * 10_923), "'client_id' must be at most 32767 bytes of UTF-8"),
    (message(broker_id="😀" * 250_000), "'broker_id' must be at most 32767 bytes of UTF-8"),
    (message(user={"name": "x" * 32_768}), "'user' must be at most 32767 bytes of UTF-8"),
    (message(event_time_ms=APPENDED_AT_MS - DAY_MS - 1), TOO_OLD),
    (message(event_time_ms=0), TOO_OLD),
    (message().replace(b"alice", b"J\xe9r\xf4me"), "user, client_id and broker_id must be UTF-8"),
]


def test_a_bad_message_is_a_dead_letter_with_its_cause_and_its_own_bytes(spark: SparkSession) -> None:
    values = [value for value, _ in WHOLE_MESSAGES]
    batch = collect_twice(raw_frame(spark, values), RULES)
    assert dead(batch) == [(offset, None, cause) for offset, (_, cause) in enumerate(WHOLE_MESSAGES)]
    assert batch.dead_letters["value"].to_pylist() == values
    assert set(batch.dead_letters["topic"].to_pylist()) == {TOPIC}
    assert set(batch.dead_letters["partition"].to_pylist()) == {PARTITION}
    assert set(batch.dead_letters["appended_at_ms"].to_pylist()) == {APPENDED_AT_MS}
    assert (batch.dead_count, batch.good_count, batch.newest_event_ms) == (len(values), 0, None)
    assert batch.usage == USAGE_SCHEMA.empty_table()
    assert batch.dead_letters.schema == DEAD_LETTER_SCHEMA


def test_a_bad_element_costs_only_itself(spark: SparkSession) -> None:
    good = event()
    values = [
        array(good, 7, good, "x", None, [good], json.dumps(good), event(user=""), event(fetched_bytes="5"), good),
        array(good, event(produced_bytes=-1), event(produced_bytes=LARGEST + 1), good),
        array(event(user=...)),
    ]
    batch = collect_twice(raw_frame(spark, values), RULES)
    no_object = "element must be a JSON object"
    assert dead(batch) == [
        (0, 1, no_object),
        (0, 3, no_object),
        (0, 4, no_object),
        (0, 5, no_object),
        (0, 6, no_object),
        (0, 7, "'user' must not be empty"),
        (0, 8, "'fetched_bytes' must be a JSON integer"),
        (1, 1, "'produced_bytes' must be at least 0"),
        (1, 2, "'produced_bytes' must be at most 1099511627776"),
        (2, 0, "'user' must be present"),
    ]
    elements = [json.loads(values[offset])[index] for offset, index, _ in dead(batch)]
    assert [json.loads(value) for value in batch.dead_letters["value"].to_pylist()] == elements
    assert (batch.good_count, the_row(batch)["event_count"], the_row(batch)["produced_bytes"]) == (5, 5, 25)


def test_a_thousand_bad_messages_among_good_ones_are_all_accounted_for(spark: SparkSession) -> None:
    values: list[bytes] = []
    for number in range(1000):
        values += [message(user=f"u{number % 10}"), WHOLE_MESSAGES[number % len(WHOLE_MESSAGES)][0]]
    batch = collect_twice(raw_frame(spark, values), RULES)
    assert batch.dead_letters["offset"].to_pylist() == list(range(1, 2000, 2))
    assert (batch.good_count, batch.dead_count) == (1000, 1000)
    assert {row["produced_bytes"] for row in usage(batch).values()} == {500}
