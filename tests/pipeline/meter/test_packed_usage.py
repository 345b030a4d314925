"""Packed messages of the meter: the job reads from them what it reads from JSON, row for row."""

import json
from typing import Any

import pyarrow as pa
import pytest

from pipeline.meter.request_log import RequestLogParser
from pipeline.meter.usage_messages import JSON, PACKED, UsageBatch, UsageCodec
from pipeline.stream.usage_columns import EVENT_SCHEMA, ReadingRules
from pipeline.stream.usage_reader import read_usage
from tests.pipeline.meter.logged_requests import FETCH, PRODUCE, api, event_of, line_of
from tests.pipeline.meter.metered_broker import events_of
from tests.pipeline.meter.request_lines import RequestLines
from tests.pipeline.meter.test_usage_element import EVERY_KIND
from tests.pipeline.stream.messages import fetched

RULES = ReadingRules(sample_window_ms=1_000, max_event_age_ms=2**53)
KEYS = [(name, "ascending") for name in ("sample_start_ms", "broker_id", "user", "client_id")]


def batch_of(lines: list[bytes], codec: UsageCodec, **limits: int) -> UsageBatch:
    batch = UsageBatch(2, codec, **limits)
    parser = RequestLogParser("1", codec=codec)
    batch.add(parser.elements(lines, lambda error, line: pytest.fail(f"{error}: {line!r}")))
    assert len(batch) == parser.counts.events
    return batch


def usage_of(lines: list[bytes], codec: UsageCodec) -> pa.Table:
    """What the job reads of the messages."""
    batch = read_usage(fetched([message.value for message in batch_of(lines, codec).messages()]), RULES)
    assert batch.dead_count == 0
    return batch.usage.sort_by(KEYS)


def test_the_job_reads_the_same_usage_from_both_codecs() -> None:
    lines = [line.encode().rstrip() for line in RequestLines().take(3_000)] + [line_of(logged) for logged in EVERY_KIND]
    by_json = usage_of(lines, JSON)

    assert usage_of(lines, PACKED).equals(by_json)
    assert by_json.num_rows > 200


@pytest.mark.parametrize("logged", EVERY_KIND)
def test_a_packed_event_says_what_the_event_says(logged: dict[str, Any]) -> None:
    line = line_of(logged)
    event = event_of(RequestLogParser("1"), line)
    ((_, value),) = batch_of([line], PACKED).messages()

    assert event is not None
    assert events_of(value) == [event.model_dump(exclude={"schema_version"}, exclude_none=True)]


def test_a_packed_message_has_the_columns_that_the_job_reads_at_once() -> None:
    ((_, value),) = batch_of([line_of(PRODUCE)], PACKED).messages()
    assert pa.ipc.open_stream(value).schema.equals(EVENT_SCHEMA)


@pytest.mark.parametrize(("events", "sizes"), [(2, [2]), (1_000, [1_000]), (1_001, [1_000, 1])])
def test_a_packed_message_has_at_most_a_thousand_events(events: int, sizes: list[int]) -> None:
    messages = batch_of([line_of(PRODUCE)] * events, PACKED).messages()
    assert [len(events_of(message.value)) for message in messages] == sizes


@pytest.mark.parametrize("name", ["a", "\u00e9\x07" * 40, "x" * 32_000])
@pytest.mark.parametrize("largest", [20_000, 70_000, 512 * 1024])
def test_a_packed_message_is_closed_before_it_grows_too_large(name: str, largest: int) -> None:
    lines = [line_of(each | {"principal": f"User:{name}"}) for each in (PRODUCE, FETCH, api("METADATA"))] * 400
    messages = batch_of(lines, PACKED, max_message_bytes=largest).messages()

    counts = [len(events_of(message.value)) for message in messages]
    assert sum(counts) == 1_200
    assert len(counts) > 1
    for message, count in zip(messages, counts, strict=True):
        assert len(message.value) <= largest or count == 1


@pytest.mark.parametrize("events", [1, 2, 63, 65, 1_000])
def test_a_packed_message_is_never_larger_than_was_said_of_it(events: int) -> None:
    parser = RequestLogParser("1", codec=PACKED)
    values = [value for _, value in parser.elements([line_of(api("METADATA"))] * events, lambda *_: None)]
    assert len(PACKED.message(values)) <= PACKED.opening_bytes + sum(map(PACKED.size_bytes, values))


def test_packed_messages_are_smaller_than_json() -> None:
    lines = [line.encode().rstrip() for line in RequestLines().take(2_000)]
    sizes = [sum(len(message.value) for message in batch_of(lines, codec).messages()) for codec in (PACKED, JSON)]
    assert sizes[0] < sizes[1] < sum(map(len, lines)), json.dumps(sizes)
