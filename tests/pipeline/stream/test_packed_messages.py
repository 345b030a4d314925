"""Packed messages are read as arrays of JSON with the same events; what is no packed message is one dead letter."""

import json
import struct
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pipeline.stream.reading.collect import collect_on_driver, largest_bytes
from pipeline.stream.reading.collector import Collector
from pipeline.stream.reading.event_columns import EVENT_SCHEMA
from pipeline.stream.reading.packed_stream import COMPRESSED, NO_STREAM
from pipeline.stream.reading.small_batch import SmallBatch, read_small_batch
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    DAY_MS,
    LARGEST,
    RULES,
    array,
    collect_twice,
    event,
    message,
    packed,
    raw_frame,
)
from tests.pipeline.stream.test_small_batch import fetched

measures = st.none() | st.integers(0, LARGEST) | st.sampled_from([-1, LARGEST + 1, 2**63 - 1, -(2**63)])
names = st.none() | st.sampled_from(["", "alice", "bob", "\u00e9" * 16_383, "\u00e9" * 16_384, "a'b"])
random_events = st.fixed_dictionaries(
    {},
    optional={
        "event_time_ms": st.none()
        | st.integers(APPENDED_AT_MS - 5_000, APPENDED_AT_MS + 5_000)
        | st.sampled_from([-1, 0, APPENDED_AT_MS - DAY_MS, APPENDED_AT_MS - DAY_MS - 1, 2**63 - 1]),
        "user": names,
        "client_id": names,
        "broker_id": names,
        "produced_bytes": measures,
        "fetched_bytes": measures,
        "io_time_ns": measures,
        "network_time_ns": measures,
        "request_count": measures,
        "throttle_exempt": st.none() | st.booleans(),
        "schema_version": st.none() | st.sampled_from([0, 1, 2]),
    },
)


def plain(events: list[dict[str, Any]]) -> bytes:
    """An array without escapes, which the driver leaves to Spark."""
    return json.dumps(events, ensure_ascii=False).encode()


def found(read: SmallBatch) -> tuple[Any, ...]:
    """Usage, dead letters without their texts, and how many messages were ignored; in one order."""
    order = [(name, "ascending") for name in ("sample_start_ms", "broker_id", "user", "client_id", "io_time_ns")]
    letters = read.part.dead_letters.drop_columns("value").to_pylist()
    return read.part.usage.sort_by(order), sorted(letters, key=str), read.part.ignored_count


@given(batch=st.lists(st.lists(random_events.map(lambda fields: event(**fields)), min_size=1, max_size=4), max_size=4))
def test_the_same_events_are_read_packed_as_in_json(batch: list[list[dict[str, Any]]]) -> None:
    in_json = read_small_batch(fetched([plain(events) for events in batch]), RULES)
    assert not in_json.left
    read = read_small_batch(fetched([packed(*events) for events in batch]), RULES)
    assert found(read) == found(in_json)
    assert read.part.packed_event_count == sum(map(len, batch))
    assert not read.left


def schema_with(name: str, kind: pa.DataType | None) -> pa.Schema:
    """The columns of an event, one of them of another type; None for one that is not there."""
    fields = [one if one.name != name else pa.field(name, kind) for one in EVENT_SCHEMA if one.name != name or kind]
    return pa.schema(fields)


GOOD = packed(event())
BODY = GOOD[pa.ipc.read_message(GOOD).serialize().size :]
REFUSED = [
    (b"\xff\xff\xff\xff", NO_STREAM),
    (GOOD[:100], NO_STREAM),
    (GOOD[:-30], NO_STREAM),
    (GOOD + b"x", NO_STREAM),
    (GOOD + GOOD, NO_STREAM),
    (GOOD[:-8] + BODY, NO_STREAM),
    (BODY, NO_STREAM),
    (packed(*[event()] * 50_000, compression="zstd"), COMPRESSED),
    (packed(event(), compression="lz4"), COMPRESSED),
    (
        packed(event(), schema=schema_with("user", pa.large_string())),
        "'user' must be one column of Arrow's type string",
    ),
    (packed(event(), schema=schema_with("user", pa.dictionary(pa.int8(), pa.string()))), "'user' must be one column"),
    (
        packed(event(), schema=schema_with("io_time_ns", pa.int32())),
        "'io_time_ns' must be one column of Arrow's type int",
    ),
    (packed(event(), schema=schema_with("client_id", None)), "'client_id' must be present"),
    (packed(event(user="alice")).replace(b"alice", b"\xffalic"), NO_STREAM),
]


@pytest.mark.parametrize(("value", "cause"), REFUSED)
def test_what_is_no_packed_message_is_one_dead_letter_with_all_its_bytes(value: bytes, cause: str) -> None:
    read = read_small_batch(fetched([GOOD, value, GOOD]), RULES)
    (letter,) = read.part.dead_letters.to_pylist()
    assert letter["cause"].startswith(cause)
    assert (letter["offset"], letter["element_index"], letter["value"]) == (1, None, value)
    assert read.part.usage["event_count"].to_pylist() == [2]


def test_a_batch_that_says_it_is_longer_than_its_columns_is_refused_without_the_memory() -> None:
    schema = pa.schema([EVENT_SCHEMA.field(name) for name in ("event_time_ms", "user", "client_id")])
    value = packed(*[event()] * 77, schema=schema)
    assert value.count(struct.pack("<q", 77)) > 3, "length of the batch and of its columns"
    read = read_small_batch(fetched([value.replace(struct.pack("<q", 77), struct.pack("<q", 2**40))]), RULES)
    assert read.part.dead_letters["cause"].to_pylist() == [NO_STREAM]


def test_columns_that_are_no_fields_are_ignored_and_optional_ones_may_be_missing() -> None:
    required = ["event_time_ms", "user", "client_id", "produced_bytes"]
    schema = pa.schema([pa.field("extra", pa.list_(pa.float64())), *map(EVENT_SCHEMA.field, required)])
    read = read_small_batch(fetched([packed(event(extra=[1.5]), event(extra=None), schema=schema)]), RULES)
    assert found(read) == found(read_small_batch(fetched([array(event(), event())]), RULES))


def test_a_column_that_is_no_field_may_hold_anything() -> None:
    schema = pa.schema([pa.field("extra", pa.string()), *EVENT_SCHEMA])
    value = packed(event(extra="abcd"), schema=schema).replace(b"abcd", b"\xffbcd")
    read = read_small_batch(fetched([value]), RULES)
    assert (read.part.usage["event_count"].to_pylist(), read.part.dead_letters.num_rows) == ([1], 0)


def test_a_message_without_events_is_ignored() -> None:
    part = read_small_batch(fetched([packed(), GOOD]), RULES).part
    assert (part.ignored_count, part.dead_letters.num_rows, part.usage["event_count"].to_pylist()) == (1, 0, [1])


def test_the_dead_letter_of_an_event_is_its_json() -> None:
    read = read_small_batch(fetched([packed(event(), event(user="", throttle_exempt=True))]), RULES)
    (letter,) = read.part.dead_letters.to_pylist()
    assert (letter["element_index"], letter["cause"]) == (1, "'user' must not be empty")
    assert letter["value"] == (
        b'{"event_time_ms":1700000000500,"user":"","client_id":"etl","produced_bytes":5,"throttle_exempt":true}'
    )


def test_broken_bytes_end_nothing_and_spoil_no_other_message() -> None:
    random, good = Random(5), packed(*[event(), event(user="bob"), event(throttle_exempt=True)] * 3)
    for _ in range(400):
        broken = bytearray(good)
        for _ in range(random.choice([1, 1, 2, 8])):
            broken[random.randrange(4, len(broken))] = random.choice([0, 1, 127, 128, 255, random.randrange(256)])
        value = bytes(broken[: random.choice([len(broken), len(broken), random.randrange(4, len(broken))])])
        read = read_small_batch(fetched([GOOD, value, message()]), RULES)
        whole = [row for row in read.part.dead_letters.to_pylist() if row["element_index"] is None]
        events = sum(read.part.usage["event_count"].to_pylist()) - 2 + read.part.dead_letters.num_rows - len(whole)
        assert (events, len(whole)) == (0, 1) or whole == [], value
        assert sum(row["event_count"] for row in read.part.usage.to_pylist() if row["user"] == "alice") >= 2


@pytest.mark.spark
def test_spark_and_the_driver_take_packed_messages_alike(spark: SparkSession) -> None:
    large = packed(*[event(client_id=str(number), broker_id="1" * 300) for number in range(400)])
    assert len(large) > largest_bytes(3)
    values = [
        GOOD,
        message(),
        b"no JSON",
        packed(),
        None,
        large,
        BODY,
        packed(event(user=""), event()),
        array(event(), 7),
    ]
    batch = collect_twice(raw_frame(spark, values), RULES)
    assert (batch.good_count, batch.dead_count, batch.ignored_count) == (1 + 1 + 400 + 1 + 1, 4, 2)
    assert batch.packed_event_count == 1 + 400 + 2
    for capped in (
        Collector(RULES, 100)(raw_frame(spark, values), None),
        collect_on_driver(raw_frame(spark, values), RULES, 9),
    ):
        assert capped.good_count == batch.good_count


@pytest.mark.spark
def test_the_driver_takes_more_packed_events_at_once_than_others(spark: SparkSession) -> None:
    collector = Collector(RULES, 100)
    collector(raw_frame(spark, [packed(*[event()] * 1_000)] * 2), 2)
    assert [collector.is_small(count) for count in (1_000, 1_001)] == [True, False]
