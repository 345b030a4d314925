"""Messages for the tests of reading, both paths of reading, and the same reading in plain Python with `UsageEvent`."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession

from pipeline.stream.reading.aggregate import LARGEST_SUM
from pipeline.stream.reading.collect import collect, collect_on_driver
from pipeline.stream.reading.collected_batch import CollectedBatch
from pipeline.stream.reading.event_columns import EVENT_SCHEMA
from pipeline.stream.reading.reading_rules import ReadingRules
from schemas.usage import UsageEvent

APPENDED_AT_MS = 1_700_000_010_000
DAY_MS = 86_400_000
RULES = ReadingRules(sample_window_ms=1_000, max_event_age_ms=DAY_MS)
TOPIC = "quota.usage.v1"
PARTITION = 3
LARGEST = 2**40
TOO_OLD = "'event_time_ms' must be at most 86400000 ms before the append time of its record"
KEYS = ("sample_start_ms", "broker_id", "user", "client_id")


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


def packed(*events: dict[str, Any], schema: pa.Schema = EVENT_SCHEMA, compression: str | None = None) -> bytes:
    """A packed message of several events."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(list(events), schema))
    return bytes(sink.getvalue().to_pybytes())


def the_row(batch: CollectedBatch) -> dict[str, Any]:
    """The only row of usage."""
    rows: list[dict[str, Any]] = batch.usage.to_pylist()
    assert len(rows) == 1
    return rows[0]


def twice(fields: str) -> bytes:
    """A good event with further fields after its own."""
    return message()[:-1] + f",{fields}}}".encode()


def raw_frame(
    spark: SparkSession, values: Sequence[bytes | None], appended_at_ms: int | Sequence[int] = APPENDED_AT_MS
) -> DataFrame:
    """The messages as the source hands them over: the message at offset n is values[n].

    The append time is one for all messages, or one for each.
    """
    count = len(values)
    return spark.createDataFrame(
        pa.table(
            {
                "value": pa.array(values, pa.binary()),
                "topic": pa.array([TOPIC] * count, pa.string()),
                "partition": pa.array([PARTITION] * count, pa.int32()),
                "offset": pa.array(range(count), pa.int64()),
                "timestamp": pa.array(
                    [time_ms * 1000 for time_ms in _for_each(appended_at_ms, count)], pa.timestamp("us", "UTC")
                ),
            }
        )
    )


@dataclass
class Expected:
    """What plain Python reads from the messages."""

    usage: dict[tuple[Any, ...], dict[str, int | None]] = field(default_factory=dict)
    dead: list[tuple[int, int | None]] = field(default_factory=list)
    good_count: int = 0
    clamped_count: int = 0
    ignored_count: int = 0


@dataclass(frozen=True)
class Dated:
    """A usage event and the time at which it counts."""

    event: UsageEvent
    time_ms: int

    @property
    def is_clamped(self) -> bool:
        return self.time_ms < self.event.event_time_ms


def expected_of(
    values: Sequence[bytes | None], appended_at_ms: int | Sequence[int] = APPENDED_AT_MS, limit_ms: int = 2**63
) -> Expected:
    """Read the messages with json and `UsageEvent`; event times after the limit count as of the limit."""
    expected = Expected()
    groups: dict[tuple[Any, ...], list[Dated]] = defaultdict(list)
    for offset, (value, appended_ms) in enumerate(zip(values, _for_each(appended_at_ms, len(values)), strict=True)):
        elements = [] if value is None else _elements(value)
        if elements is None:
            expected.dead.append((offset, None))
            continue
        expected.ignored_count += not elements
        for index, element in elements:
            usage_event = _usage_event(element)
            if usage_event is None or usage_event.event_time_ms < appended_ms - RULES.max_event_age_ms:
                expected.dead.append((offset, index))
                continue
            dated = Dated(usage_event, min(usage_event.event_time_ms, appended_ms, limit_ms))
            expected.good_count += 1
            expected.clamped_count += dated.is_clamped
            start_ms = dated.time_ms - dated.time_ms % 1000
            groups[start_ms, usage_event.broker_id, usage_event.user, usage_event.client_id].append(dated)
    expected.usage = {key: _sums(events) for key, events in groups.items()}
    return expected


def _elements(value: bytes) -> list[tuple[int | None, Any]] | None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        parsed = json.loads(value.decode(), parse_constant=refuse)
        if b"\\ud" in value.lower():  # a lone surrogate is read as a question mark
            parsed = json.loads(json.dumps(parsed, ensure_ascii=False).encode(errors="replace"))
    except ValueError:
        return None
    if isinstance(parsed, dict):
        return [(None, parsed)]
    return list(enumerate(parsed)) if isinstance(parsed, list) else None


def _usage_event(element: Any) -> UsageEvent | None:
    try:
        return UsageEvent.model_validate(element)
    except ValidationError:
        return None


def _for_each(one_or_each: int | Sequence[int], count: int) -> Sequence[int]:
    return [one_or_each] * count if isinstance(one_or_each, int) else one_or_each


def _sums(dated: Sequence[Dated]) -> dict[str, int | None]:
    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return min(sum(known), LARGEST_SUM) if known else None

    events = [one.event for one in dated]
    exempt = [e for e in events if e.throttle_exempt]
    charged = [e for e in events if not e.throttle_exempt]
    return {
        "produced_bytes": total([e.produced_bytes for e in events]),
        "fetched_bytes": total([e.fetched_bytes for e in events]),
        "io_time_ns": total([e.io_time_ns for e in charged]),
        "network_time_ns": total([e.network_time_ns for e in charged]),
        "exempt_time_ns": total([t for e in exempt for t in (e.io_time_ns, e.network_time_ns)]),
        "request_count": total([e.request_count for e in events]),
        "event_count": len(events),
        "clamped_count": sum(one.is_clamped for one in dated),
        "last_event_ms": max(one.time_ms for one in dated),
    }


def dead(batch: CollectedBatch) -> list[tuple[int, int | None, str]]:
    """Dead letters: offset, element and cause."""
    return [(row["offset"], row["element_index"], row["cause"]) for row in batch.dead_letters.to_pylist()]


def usage(batch: CollectedBatch) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by their keys; checks that each key is there once."""
    rows = {}
    for row in batch.usage.to_pylist():
        key = tuple(row.pop(name) for name in KEYS)
        assert key not in rows
        rows[key] = row
    return rows


def collect_twice(raw: DataFrame, rules: ReadingRules) -> CollectedBatch:
    """Collect a batch by Spark and on the driver. Both must have found the same."""
    by_spark, on_driver = collect(raw, rules), collect_on_driver(raw, rules, raw.count())
    assert usage(on_driver) == usage(by_spark)
    assert on_driver.dead_letters.equals(by_spark.dead_letters)
    for name in (
        "good_count",
        "clamped_count",
        "ignored_count",
        "dead_count",
        "newest_event_ms",
        "packed_event_count",
        "others_count",
    ):
        assert getattr(on_driver, name) == getattr(by_spark, name), name
    return on_driver
