"""A micro-batch of arbitrary messages, compared with a plain reading of each message by itself."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    DAY_MS,
    RULES,
    collect_twice,
    dead,
    event,
    expected_of,
    raw_frame,
    usage,
)

pytestmark = pytest.mark.spark

LARGEST = 2**40

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
names = st.one_of(st.sampled_from(["a", "b", ""]), texts, st.integers(), st.none(), st.just(...))
measures = st.one_of(
    st.integers(0, 9),
    st.sampled_from([LARGEST, LARGEST + 1, -1, 2**63, -(2**64), 1.0, 0.5, "5", "", True, [], {}]),
    st.none(),
    st.just(...),
)
oldest_ms = APPENDED_AT_MS - DAY_MS
times = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_002_000),
    st.sampled_from([0, -1, oldest_ms - 1, oldest_ms, APPENDED_AT_MS, APPENDED_AT_MS + 1, 2**63 - 1, 2**63]),
    st.sampled_from(["x", 1.5, None, ...]),
)
events = st.fixed_dictionaries(
    {"event_time_ms": times, "user": names, "client_id": names},
    optional={
        "broker_id": names,
        "produced_bytes": measures,
        "fetched_bytes": measures,
        "io_time_ns": measures,
        "network_time_ns": measures,
        "request_count": measures,
        "throttle_exempt": st.sampled_from([True, False, None, 0, "true"]),
        "schema_version": st.sampled_from([1, 2, 0, None, "1"]),
        "unknown": st.recursive(st.none() | texts | st.booleans(), lambda inner: st.lists(inner, max_size=2)),
    },
).map(lambda fields: {name: value for name, value in fields.items() if value is not ...})
good_events = st.builds(event, user=st.sampled_from(["a", "b"]), fetched_bytes=st.integers(0, 9) | st.none())
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
elements = st.one_of(good_events, good_events, events, junk)
documents = st.one_of(elements, st.lists(elements, max_size=5)).map(lambda value: json.dumps(value).encode())
fragments = st.tuples(documents, st.integers(0, 12), st.binary(max_size=3)).map(
    lambda cut: cut[0][: -cut[1] or None] + cut[2]
)
values_strategy = st.one_of(documents, documents, fragments, st.binary(max_size=20), st.none())


@settings(max_examples=25)
@given(values=st.lists(values_strategy, min_size=20, max_size=60))
def test_spark_reads_as_the_model_does(spark: SparkSession, values: list[bytes | None]) -> None:
    batch = collect_twice(raw_frame(spark, values), RULES)
    expected = expected_of(values)
    assert [(offset, index) for offset, index, _ in dead(batch)] == expected.dead
    assert usage(batch) == expected.usage
    assert (batch.good_count, batch.clamped_count, batch.ignored_count) == (
        expected.good_count,
        expected.clamped_count,
        expected.ignored_count,
    )
