"""A micro-batch, from bytes to the two tables: what is summed, and what counts."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.stream.reading.aggregate import LARGEST_SUM
from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA, USAGE_SCHEMA
from pipeline.stream.reading.source import newest_append_ms
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    DAY_MS,
    LARGEST,
    RULES,
    TOO_OLD,
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


def test_of_a_field_written_twice_the_last_one_counts(spark: SparkSession) -> None:
    fields = (
        '"produced_bytes":7',
        '"produced_bytes":[],"produced_bytes":7',
        '"produced_bytes":1e3,"produced_bytes":-0',
    )
    values = [twice(field) for field in fields]
    batch = collect_twice(raw_frame(spark, [*values, b"[" + b",".join(values) + b"]"]), RULES)
    assert (batch.good_count, batch.dead_count, the_row(batch)["produced_bytes"]) == (6, 0, 28)


def test_null_and_empty_array_are_ignored_and_counted(spark: SparkSession) -> None:
    batch = collect_twice(raw_frame(spark, [None, b"[]", b" [ ]\n", message()]), RULES)
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
    batch = collect_twice(raw_frame(spark, values), RULES)
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
    batch = collect_twice(raw_frame(spark, values), RULES)
    assert dead(batch) == []
    assert batch.good_count == len(values) + 1


@pytest.mark.parametrize(("levels", "is_read"), [(998, True), (999, True), (1_000, True), (1_001, False)])
def test_a_message_of_a_thousand_nested_levels_is_read_whoever_reads_it(
    spark: SparkSession, levels: int, is_read: bool
) -> None:
    def around(text: bytes, count: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
        return opening * count + text + closing * count

    values = [
        message()[:-1] + b', "n": ' + around(b"1", levels - 1) + b"}",
        message()[:-1] + b', "n": ' + around(b"1", levels - 1, b'{"a":', b"}") + b"}",
        b"[" + message()[:-1] + b', "n": ' + around(b"1", levels - 2) + b"}]",
        b'{"n": ' + around(b"1", levels - 1) + b"}",
        b"[" + message() + b"," + around(b"1", levels - 1) + b"]",
    ]
    batch = collect_twice(raw_frame(spark, values), RULES)
    no_json = "value must be JSON"
    faults = [(3, None, "'event_time_ms' must be present"), (4, 1, "element must be a JSON object")]
    assert dead(batch) == (faults if is_read else [(offset, None, no_json) for offset in range(len(values))])
    assert batch.good_count == (4 if is_read else 0)


def test_null_in_place_of_an_optional_field_is_its_default(spark: SparkSession) -> None:
    nothing = dict.fromkeys(
        ["broker_id", "produced_bytes", "io_time_ns", "request_count", "throttle_exempt", "schema_version"]
    )
    batch = collect_twice(raw_frame(spark, [message(**nothing), message(produced_bytes=...)]), RULES)
    row = the_row(batch)
    assert (row["broker_id"], row["request_count"], row["event_count"]) == ("", 2, 2)


def test_a_sum_is_null_only_if_no_event_had_the_measure(spark: SparkSession) -> None:
    values = [
        message(user="none", produced_bytes=...),
        message(user="zero", produced_bytes=0, io_time_ns=0),
        message(user="mixed", produced_bytes=...),
        message(user="mixed", produced_bytes=7),
    ]
    rows = usage(collect_twice(raw_frame(spark, values), RULES))
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
    row = the_row(collect_twice(raw_frame(spark, values), RULES))
    assert (row["io_time_ns"], row["network_time_ns"], row["exempt_time_ns"]) == (1_000, None, 113)
    assert row["produced_bytes"] == 20


def test_an_event_later_than_its_record_is_taken_as_of_the_record(spark: SparkSession) -> None:
    #        sample windows   |9000 …… 9999|10000 = appended
    #        event times              x    =            > >
    times = (APPENDED_AT_MS - 1, APPENDED_AT_MS, APPENDED_AT_MS + 1, 2**63 - 1)
    batch = collect_twice(raw_frame(spark, [message(event_time_ms=time_ms) for time_ms in times]), RULES)
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
    batch = collect_twice(raw_frame(spark, values), RULES)
    assert dead(batch) == [(1, 0, TOO_OLD), (1, 2, TOO_OLD)]
    assert {key[0] for key in usage(batch)} == {APPENDED_AT_MS - DAY_MS, 1_700_000_000_000}


def test_usage_of_a_backlog_counts_however_late_it_is_read(spark: SparkSession) -> None:
    long_ago_ms = 1_000_000_000_000
    batch = collect_twice(raw_frame(spark, [message(event_time_ms=long_ago_ms)], appended_at_ms=long_ago_ms + 5), RULES)
    assert (batch.good_count, batch.newest_event_ms) == (1, long_ago_ms)


@pytest.mark.parametrize("name", ["user", "client_id", "broker_id"])
def test_a_name_of_the_largest_size_counts(spark: SparkSession, name: str) -> None:
    names = ["x" * 32_767, "用" * 10_922 + "x"]
    batch = collect_twice(raw_frame(spark, [message(**{name: each}) for each in names]), RULES)
    assert sorted(batch.usage[name].to_pylist()) == sorted(names)


def test_sample_windows_start_at_multiples_of_their_span(spark: SparkSession) -> None:
    values = [message(event_time_ms=time_ms) for time_ms in (0, 699, 700, 1399, 1400)]
    rows = usage(collect_twice(raw_frame(spark, values, appended_at_ms=2_000), replace(RULES, sample_window_ms=700)))
    assert {key[0]: row["event_count"] for key, row in rows.items()} == {0: 2, 700: 2, 1400: 1}


def test_the_largest_measure_counts_and_sums_stay_exact(spark: SparkSession) -> None:
    row = the_row(collect_twice(raw_frame(spark, [message(produced_bytes=LARGEST), message(produced_bytes=1)]), RULES))
    assert row["produced_bytes"] == LARGEST + 1


def test_a_sum_stops_at_the_largest_sum(spark: SparkSession) -> None:
    elements = [array(*[event(produced_bytes=LARGEST)] * 1024)] * 8
    exact = the_row(collect_twice(raw_frame(spark, elements), RULES))["produced_bytes"]
    beyond = the_row(collect_twice(raw_frame(spark, [*elements, message(produced_bytes=1)]), RULES))["produced_bytes"]
    assert (exact, beyond) == (LARGEST_SUM, LARGEST_SUM)


@pytest.mark.parametrize("user", ["Jérôme", "用户", "😀", "a\u0000b", 'quote"\\', "\ufffd", "{", "null", " "])
def test_names_come_through_unchanged(spark: SparkSession, user: str) -> None:
    batch = collect_twice(raw_frame(spark, [message(user=user), array(event(client_id=user, broker_id=user))]), RULES)
    assert {key[1:] for key in usage(batch)} == {("", user, "etl"), (user, "alice", user)}


def test_a_name_that_is_no_string_is_its_json_text(spark: SparkSession) -> None:
    batch = collect_twice(raw_frame(spark, [message(user=5), message(user=True), message(user={"a": [1]})]), RULES)
    assert {key[2] for key in usage(batch)} == {"5", "true", '{"a":[1]}'}


def test_an_empty_micro_batch_has_empty_tables_with_the_same_columns(spark: SparkSession) -> None:
    batch = collect_twice(raw_frame(spark, []), RULES)
    assert (batch.usage, batch.dead_letters) == (USAGE_SCHEMA.empty_table(), DEAD_LETTER_SCHEMA.empty_table())
    assert batch.newest_event_ms is None


def test_usage_keeps_its_columns_whether_or_not_something_was_refused(spark: SparkSession) -> None:
    clean = collect_twice(raw_frame(spark, [message()]), RULES).usage
    mixed = collect_twice(raw_frame(spark, [message(), array(event(), 7)]), RULES).usage
    assert isinstance(clean, pa.Table)
    assert (clean.schema, mixed.schema) == (USAGE_SCHEMA, USAGE_SCHEMA)


def test_the_newest_append_time_of_a_batch_is_known_to_the_millisecond(spark: SparkSession) -> None:
    appended_at_ms = [APPENDED_AT_MS, APPENDED_AT_MS + 1_234_567, APPENDED_AT_MS - 1]
    assert newest_append_ms(raw_frame(spark, [b"", None, b"[]"], appended_at_ms)) == APPENDED_AT_MS + 1_234_567
    assert newest_append_ms(raw_frame(spark, [b""]).limit(0)) is None
