"""A micro-batch, from bytes to the two tables: what is summed, what is refused, and that every element is counted."""

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.stream.aggregate import LARGEST_SUM
from pipeline.stream.collect import collect
from pipeline.stream.collected_batch import DEAD_LETTER_SCHEMA, USAGE_SCHEMA, CollectedBatch
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    DAY_MS,
    PARTITION,
    RULES,
    TOPIC,
    dead,
    event,
    message,
    raw_frame,
    usage,
)

pytestmark = pytest.mark.spark

LARGEST = 2**40
TOO_OLD = "'event_time_ms' must be at most 86400000 ms before the append time of its record"


def array(*elements: Any) -> bytes:
    return json.dumps(elements).encode()


def the_row(batch: CollectedBatch) -> dict[str, Any]:
    rows: list[dict[str, Any]] = batch.usage.to_pylist()
    assert len(rows) == 1
    return rows[0]


def twice(fields: str) -> bytes:
    """A good event with further fields after its own."""
    return message()[:-1] + f",{fields}}}".encode()


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
    batch = collect(raw_frame(spark, values), RULES)
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
    batch = collect(raw_frame(spark, values), RULES)
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


def test_of_a_field_written_twice_the_last_one_counts(spark: SparkSession) -> None:
    fields = (
        '"produced_bytes":7',
        '"produced_bytes":[],"produced_bytes":7',
        '"produced_bytes":1e3,"produced_bytes":-0',
    )
    values = [twice(field) for field in fields]
    batch = collect(raw_frame(spark, [*values, b"[" + b",".join(values) + b"]"]), RULES)
    assert (batch.good_count, batch.dead_count, the_row(batch)["produced_bytes"]) == (6, 0, 28)


def test_null_and_empty_array_are_ignored_and_counted(spark: SparkSession) -> None:
    batch = collect(raw_frame(spark, [None, b"[]", b" [ ]\n", message()]), RULES)
    assert (batch.ignored_count, batch.good_count, batch.dead_count) == (3, 1, 0)


def test_no_bracket_in_a_value_opens_the_frame_it_is_parsed_in(spark: SparkSession) -> None:
    one = message()
    values = [
        b"[" + one + b'],"e":[' + one + b"]",
        one + b'],"x":[' + one,
        one + b"],[" + one,
        b"[" + one + b']],"x":[[' + one + b"]",
        b'1],"e":[' + one,
        one + b'}, "x":{"y":1}',
    ]
    batch = collect(raw_frame(spark, values), RULES)
    assert dead(batch) == [(offset, None, "value must be JSON") for offset in range(len(values))]
    assert batch.good_count == 0


def test_what_is_not_ours_in_a_message_does_no_harm(spark: SparkSession) -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    values = [
        message(unknown={"a": [1, {"b": "}],["}]}),
        message(unknown=deep),
        message(unknown="x" * 1_500_000),
        message()[:-1] + b', "n": 1e999999}',
        message()[:-1] + b', "n": ' + b"9" * 900 + b"}",
        message()[:-1] + b', "n": "\xff"}',
        b"\n " + message() + b" \n",
        array(event(), event(unknown=[{}])),
    ]
    batch = collect(raw_frame(spark, values), RULES)
    assert dead(batch) == []
    assert batch.good_count == len(values) + 1


def test_null_in_place_of_an_optional_field_is_its_default(spark: SparkSession) -> None:
    nothing = dict.fromkeys(
        ["broker_id", "produced_bytes", "io_time_ns", "request_count", "throttle_exempt", "schema_version"]
    )
    batch = collect(raw_frame(spark, [message(**nothing), message(produced_bytes=...)]), RULES)
    row = the_row(batch)
    assert (row["broker_id"], row["request_count"], row["event_count"]) == ("", 2, 2)


def test_a_sum_is_null_only_if_no_event_had_the_measure(spark: SparkSession) -> None:
    values = [
        message(user="none", produced_bytes=...),
        message(user="zero", produced_bytes=0, io_time_ns=0),
        message(user="mixed", produced_bytes=...),
        message(user="mixed", produced_bytes=7),
    ]
    rows = usage(collect(raw_frame(spark, values), RULES))
    by_user = {key[2]: row for key, row in rows.items()}
    assert [by_user[user]["produced_bytes"] for user in ("none", "zero", "mixed")] == [None, 0, 7]
    assert [by_user[user]["io_time_ns"] for user in ("none", "zero", "mixed")] == [None, 0, None]
    assert [by_user[user]["exempt_time_ns"] for user in ("none", "zero", "mixed")] == [None, None, None]


def test_exempt_request_time_is_kept_apart_and_exempt_bytes_are_not(spark: SparkSession) -> None:
    values = [
        message(throttle_exempt=True, io_time_ns=10, network_time_ns=3),
        message(throttle_exempt=True, io_time_ns=...),
        message(throttle_exempt=True, network_time_ns=100),
        message(throttle_exempt=False, io_time_ns=1_000),
    ]
    row = the_row(collect(raw_frame(spark, values), RULES))
    assert (row["io_time_ns"], row["network_time_ns"], row["exempt_time_ns"]) == (1_000, None, 113)
    assert row["produced_bytes"] == 20


def test_an_event_later_than_its_record_is_taken_as_of_the_record(spark: SparkSession) -> None:
    #        sample windows   |9000 …… 9999|10000 = appended
    #        event times              x    =            > >
    times = (APPENDED_AT_MS - 1, APPENDED_AT_MS, APPENDED_AT_MS + 1, 2**63 - 1)
    batch = collect(raw_frame(spark, [message(event_time_ms=time_ms) for time_ms in times]), RULES)
    rows = {
        key[0]: (row["event_count"], row["clamped_count"], row["last_event_ms"]) for key, row in usage(batch).items()
    }
    assert rows == {
        APPENDED_AT_MS - 1000: (1, 0, APPENDED_AT_MS - 1),
        APPENDED_AT_MS: (3, 2, APPENDED_AT_MS),
    }
    assert (batch.clamped_count, batch.newest_event_ms) == (2, APPENDED_AT_MS)


def test_the_oldest_event_that_counts_is_a_day_older_than_its_record(spark: SparkSession) -> None:
    values = [
        message(event_time_ms=APPENDED_AT_MS - DAY_MS),
        array(event(event_time_ms=1_700_000_000), event(), event(event_time_ms=APPENDED_AT_MS - DAY_MS - 1)),
    ]
    batch = collect(raw_frame(spark, values), RULES)
    assert dead(batch) == [(1, 0, TOO_OLD), (1, 2, TOO_OLD)]
    assert {key[0] for key in usage(batch)} == {APPENDED_AT_MS - DAY_MS, 1_700_000_000_000}


def test_usage_of_a_backlog_counts_however_late_it_is_read(spark: SparkSession) -> None:
    long_ago_ms = 1_000_000_000_000
    batch = collect(raw_frame(spark, [message(event_time_ms=long_ago_ms)], appended_at_ms=long_ago_ms + 5), RULES)
    assert (batch.good_count, batch.newest_event_ms) == (1, long_ago_ms)


@pytest.mark.parametrize("name", ["user", "client_id", "broker_id"])
def test_a_name_of_the_largest_size_counts(spark: SparkSession, name: str) -> None:
    names = ["x" * 32_767, "用" * 10_922 + "x"]
    batch = collect(raw_frame(spark, [message(**{name: each}) for each in names]), RULES)
    assert sorted(batch.usage[name].to_pylist()) == sorted(names)


def test_sample_windows_start_at_multiples_of_their_span(spark: SparkSession) -> None:
    values = [message(event_time_ms=time_ms) for time_ms in (0, 699, 700, 1399, 1400)]
    rows = usage(collect(raw_frame(spark, values, appended_at_ms=2_000), replace(RULES, sample_window_ms=700)))
    assert {key[0]: row["event_count"] for key, row in rows.items()} == {0: 2, 700: 2, 1400: 1}


def test_the_largest_measure_counts_and_sums_stay_exact(spark: SparkSession) -> None:
    row = the_row(collect(raw_frame(spark, [message(produced_bytes=LARGEST), message(produced_bytes=1)]), RULES))
    assert row["produced_bytes"] == LARGEST + 1


def test_a_sum_stops_at_the_largest_sum(spark: SparkSession) -> None:
    elements = [array(*[event(produced_bytes=LARGEST)] * 1024)] * 8
    exact = the_row(collect(raw_frame(spark, elements), RULES))["produced_bytes"]
    beyond = the_row(collect(raw_frame(spark, [*elements, message(produced_bytes=1)]), RULES))["produced_bytes"]
    assert (exact, beyond) == (LARGEST_SUM, LARGEST_SUM)


@pytest.mark.parametrize("user", ["Jérôme", "用户", "😀", "a\u0000b", 'quote"\\', "\ufffd", "{", "null", " "])
def test_names_come_through_unchanged(spark: SparkSession, user: str) -> None:
    batch = collect(raw_frame(spark, [message(user=user), array(event(client_id=user, broker_id=user))]), RULES)
    assert {key[1:] for key in usage(batch)} == {("", user, "etl"), (user, "alice", user)}


def test_a_name_that_is_no_string_is_its_json_text(spark: SparkSession) -> None:
    batch = collect(raw_frame(spark, [message(user=5), message(user=True), message(user={"a": [1]})]), RULES)
    assert {key[2] for key in usage(batch)} == {"5", "true", '{"a":[1]}'}


def test_a_thousand_bad_messages_among_good_ones_are_all_accounted_for(spark: SparkSession) -> None:
    values: list[bytes] = []
    for number in range(1000):
        values += [message(user=f"u{number % 10}"), WHOLE_MESSAGES[number % len(WHOLE_MESSAGES)][0]]
    batch = collect(raw_frame(spark, values), RULES)
    assert batch.dead_letters["offset"].to_pylist() == list(range(1, 2000, 2))
    assert (batch.good_count, batch.dead_count) == (1000, 1000)
    assert {row["produced_bytes"] for row in usage(batch).values()} == {500}


def test_an_empty_micro_batch_has_empty_tables_with_the_same_columns(spark: SparkSession) -> None:
    batch = collect(raw_frame(spark, []), RULES)
    assert (batch.usage, batch.dead_letters) == (USAGE_SCHEMA.empty_table(), DEAD_LETTER_SCHEMA.empty_table())
    assert batch.newest_event_ms is None


def test_usage_keeps_its_columns_whether_or_not_something_was_refused(spark: SparkSession) -> None:
    clean = collect(raw_frame(spark, [message()]), RULES).usage
    mixed = collect(raw_frame(spark, [message(), array(event(), 7)]), RULES).usage
    assert isinstance(clean, pa.Table)
    assert (clean.schema, mixed.schema) == (USAGE_SCHEMA, USAGE_SCHEMA)
