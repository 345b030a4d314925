"""Messages for the tests of reading, and what was read of them."""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from pipeline.stream.query import collect_on_driver, collect_on_executors
from pipeline.stream.usage_columns import GROUP_KEYS, CollectedBatch, ReadingRules
from pipeline.stream.usage_reader import MESSAGE_SCHEMA, read_usage

APPENDED_AT_MS = 1_700_000_010_000
DAY_MS = 86_400_000
RULES = ReadingRules(sample_window_ms=1_000, max_event_age_ms=DAY_MS)
PARTITION = 3
LARGEST = 2**40
TOO_OLD = "'event_time_ms' must be at most 86400000 ms before the append time of its record"


def event(**fields: Any) -> dict[str, Any]:
    """A good event, 500 ms into a second; a field given as ... is left out."""
    good: dict[str, Any] = {
        "event_time_ms": 1_700_000_000_500,
        "user": "alice",
        "client_id": "etl",
        "produced_bytes": 5,
    }
    return {name: value for name, value in {**good, **fields}.items() if value is not ...}


def message(**fields: Any) -> bytes:
    """A message of one event."""
    return json.dumps(event(**fields)).encode()


def array(*elements: Any) -> bytes:
    """A message of several elements."""
    return json.dumps(elements).encode()


def the_row(batch: CollectedBatch) -> dict[str, Any]:
    """The only row of usage."""
    rows: list[dict[str, Any]] = batch.usage.to_pylist()
    assert len(rows) == 1
    return rows[0]


def twice(fields: str) -> bytes:
    """A good event with further fields after its own."""
    return message()[:-1] + f",{fields}}}".encode()


def fetched(values: Sequence[bytes | None], appended_at_ms: int | Sequence[int] = APPENDED_AT_MS) -> pa.Table:
    """The messages as the reader takes them: the message at offset n is values[n].

    The append time is one for all messages, or one for each.
    """
    count = len(values)
    times_ms = [appended_at_ms] * count if isinstance(appended_at_ms, int) else appended_at_ms
    columns = (values, [PARTITION] * count, range(count), times_ms)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, MESSAGE_SCHEMA.types, strict=True)]
    return pa.table(arrays, schema=MESSAGE_SCHEMA)


def read(
    *values: bytes | None, appended_at_ms: int | Sequence[int] = APPENDED_AT_MS, rules: ReadingRules = RULES
) -> CollectedBatch:
    """What the reader finds in messages."""
    return read_usage(fetched(values, appended_at_ms), rules)


def records(values: Sequence[bytes | None], appended_at_ms: int | Sequence[int] = APPENDED_AT_MS) -> pa.Table:
    """The messages of `fetched` as Spark has them."""
    table = fetched(values, appended_at_ms)
    timestamps = pc.multiply(table["appended_at_ms"], 1000).cast(pa.timestamp("us", "UTC"))
    return table.drop_columns(["appended_at_ms"]).append_column("timestamp", timestamps)


def raw_frame(
    spark: SparkSession, values: Sequence[bytes | None], appended_at_ms: int | Sequence[int] = APPENDED_AT_MS
) -> DataFrame:
    """The messages of `fetched` as the source hands them over."""
    return spark.createDataFrame(records(values, appended_at_ms))


def dead(batch: CollectedBatch) -> list[tuple[int, int | None, str]]:
    """Dead letters: offset, element and cause."""
    return [(row["offset"], row["element_index"], row["cause"]) for row in batch.dead_letters.to_pylist()]


def usage(batch: CollectedBatch) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by their keys; checks that each key is there once."""
    rows = {}
    for row in batch.usage.to_pylist():
        key = tuple(row.pop(name) for name in GROUP_KEYS)
        assert key not in rows
        rows[key] = row
    return rows


def collect_twice(raw: DataFrame, rules: ReadingRules) -> CollectedBatch:
    """Collect a batch on the executors and on the driver. Both must have found the same."""
    on_executors, on_driver = collect_on_executors(raw, rules, 200), collect_on_driver(raw, rules, raw.count())
    assert usage(on_driver) == usage(on_executors)
    assert on_driver.dead_letters.equals(on_executors.dead_letters)
    assert counts(on_driver) == counts(on_executors)
    return on_driver


def counts(batch: CollectedBatch) -> dict[str, Any]:
    """All of a batch but its tables."""
    return {one.name: getattr(batch, one.name) for one in fields(batch) if one.name not in {"usage", "dead_letters"}}
