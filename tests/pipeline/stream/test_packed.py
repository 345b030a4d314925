"""Packed messages are read as arrays of JSON with the same events; what is no packed message is one dead letter."""

import struct
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stream.packed import COMPRESSED, NO_STREAM
from pipeline.stream.usage_columns import EVENT_SCHEMA, CollectedBatch
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    DAY_MS,
    LARGEST,
    RULES,
    array,
    event,
    message,
    packed,
    read,
)

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
        "broker_throttle_ms": measures,
        "throttle_exempt": st.none() | st.booleans(),
        "schema_version": st.none() | st.sampled_from([0, 1, 2]),
    },
)


def found(batch: CollectedBatch) -> tuple[Any, ...]:
    """Usage, dead letters without their texts, and how many messages were ignored; in one order."""
    order = [(name, "ascending") for name in ("sample_start_ms", "broker_id", "user", "client_id", "io_time_ns")]
    return batch.usage.sort_by(order), batch.dead_letters.drop_columns("value").to_pylist(), batch.ignored_count


@given(batch=st.lists(st.lists(random_events.map(lambda fields: event(**fields)), min_size=1, max_size=4), max_size=4))
def test_the_same_events_are_read_packed_as_in_json(batch: list[list[dict[str, Any]]]) -> None:
    in_json = read(*[array(*events) for events in batch])
    in_columns = read(*[packed(*events) for events in batch])
    assert found(in_columns) == found(in_json)
    assert in_columns.packed_event_count == sum(map(len, batch))


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
    batch = read(GOOD, value, GOOD)
    (letter,) = batch.dead_letters.to_pylist()
    assert letter["cause"].startswith(cause)
    assert (letter["offset"], letter["element_index"], letter["value"]) == (1, None, value)
    assert batch.usage["event_count"].to_pylist() == [2]


def test_a_batch_that_says_it_is_longer_than_its_columns_is_refused_without_the_memory() -> None:
    schema = pa.schema([EVENT_SCHEMA.field(name) for name in ("event_time_ms", "user", "client_id")])
    value = packed(*[event()] * 77, schema=schema)
    assert value.count(struct.pack("<q", 77)) > 3, "length of the batch and of its columns"
    batch = read(value.replace(struct.pack("<q", 77), struct.pack("<q", 2**40)))
    assert batch.dead_letters["cause"].to_pylist() == [NO_STREAM]


def test_columns_that_are_no_fields_are_ignored_and_optional_ones_may_be_missing() -> None:
    required = ["event_time_ms", "user", "client_id", "produced_bytes"]
    schema = pa.schema([pa.field("extra", pa.list_(pa.float64())), *map(EVENT_SCHEMA.field, required)])
    batch = read(packed(event(extra=[1.5]), event(extra=None), schema=schema))
    assert found(batch) == found(read(array(event(), event())))


def test_a_column_that_is_no_field_may_hold_anything() -> None:
    schema = pa.schema([pa.field("extra", pa.string()), *EVENT_SCHEMA])
    value = packed(event(extra="abcd"), schema=schema).replace(b"abcd", b"\xffbcd")
    batch = read(value)
    assert (batch.usage["event_count"].to_pylist(), batch.dead_letters.num_rows) == ([1], 0)


def test_a_message_without_events_is_ignored() -> None:
    batch = read(packed(), GOOD)
    assert (batch.ignored_count, batch.dead_count, batch.usage["event_count"].to_pylist()) == (1, 0, [1])


def test_the_dead_letter_of_an_event_is_its_json() -> None:
    batch = read(packed(event(), event(user="", throttle_exempt=True)))
    (letter,) = batch.dead_letters.to_pylist()
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
        batch = read(GOOD, value, message())
        whole = [row for row in batch.dead_letters.to_pylist() if row["element_index"] is None]
        events = sum(batch.usage["event_count"].to_pylist()) - 2 + batch.dead_letters.num_rows - len(whole)
        assert (events, len(whole)) == (0, 1) or whole == [], value
        assert sum(row["event_count"] for row in batch.usage.to_pylist() if row["user"] == "alice") >= 2


def test_the_first_dead_events_of_a_message_are_kept_and_the_others_counted() -> None:
    values = [packed(event(), *[event(user="")] * 5), GOOD, packed(event(user=""))]
    batch = read(*values, rules=replace(RULES, letters_per_message=2))
    assert (batch.good_count, batch.dead_count, batch.packed_event_count) == (2, 6, 8)
    assert batch.dead_letters["element_index"].to_pylist() == [1, 2, 0]
    assert batch.dead_letters["cause"].to_pylist() == [
        "'user' must not be empty",
        "'user' must not be empty; 3 more refused elements, up to element 5",
        "'user' must not be empty",
    ]
