"""Prepared batches are the bytes of the batches that kafka-python makes of the same messages one by one."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import kafka
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.errors import MessageSizeTooLargeError
from kafka.partitioner.default import murmur2
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import TopicPartition

from pipeline.cluster.column_sender import TRIED_VERSION, Delivery, PreparedBatch, batch_of, can_prepare, prepared
from schemas.throttle_messages import Message, MessageColumns

LOCK = Path(__file__).parents[3] / "deploy" / "requirements.lock"
NOW_MS = 1_700_000_000_123
NO_LIMIT = 1 << 30

texts = st.binary(max_size=9) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 8_191, b"x" * 8_192])
header_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=5)


@st.composite
def message_columns(draw: st.DrawFn) -> MessageColumns:
    times = draw(st.sampled_from([1, 1, 30]))
    some = draw(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=4)) * times
    keys, values, varying = (pa.array(list(each), pa.binary()) for each in zip(*some, strict=True))
    names = draw(st.lists(header_names, max_size=3))
    return MessageColumns(keys, values, tuple((name, draw(texts | st.just(varying))) for name in names))


def one_by_one(messages: list[Message]) -> Any:
    """The library's own batch."""
    records = MemoryRecordsBuilder(2, 0, NO_LIMIT)
    for message in messages:
        assert records.append(NOW_MS, *message) is not None
    return records


def by_partition(messages: list[Message], count: int) -> dict[int, list[Message]]:
    found: dict[int, list[Message]] = defaultdict(list)
    for message in messages:
        found[(murmur2(message.key) & 0x7FFFFFFF) % count].append(message)
    return found


def sealed(records: Any) -> bytes:
    records.set_producer_state(7, 3, 40, True)
    records.close()
    return bytes(records.buffer())


def builder_of(batch: PreparedBatch) -> Any:
    return batch_of(TopicPartition("t", batch.partition), batch, 0).records


def state(builder: Any, slots: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(builder, name) for name in slots if name not in {"_batch_size", "_builder"}}


@settings(max_examples=40)
@given(message_columns(), st.integers(1, 4))
@example(MessageColumns(pa.array([b"k"] * 300), pa.array([b"v"] * 300), ()), 1)
def test_a_batch_has_the_bytes_of_the_librarys_own(columns: MessageColumns, count: int) -> None:
    batches = list(prepared(columns, np.arange(count), NO_LIMIT, NO_LIMIT, NOW_MS))
    expected = by_partition(columns.messages(), count)
    assert [batch.partition for batch in batches] == sorted(expected)
    for batch in batches:
        own, made = one_by_one(expected[batch.partition]), builder_of(batch)
        assert state(made, MemoryRecordsBuilder.__slots__) == state(own, MemoryRecordsBuilder.__slots__)
        slots = DefaultRecordBatchBuilder.__slots__
        assert state(made._builder, slots) == state(own._builder, slots)
        assert sealed(made) == sealed(own)


@settings(max_examples=40)
@given(message_columns(), st.integers(200, 20_000))
def test_smaller_batches_hold_the_same_records_in_order_and_keep_to_their_size(
    columns: MessageColumns, batch_bytes: int
) -> None:
    messages = columns.messages()
    read = []
    for batch in prepared(columns, np.array([5]), batch_bytes, NO_LIMIT, NOW_MS):
        content = sealed(builder_of(batch))
        assert batch.partition == 5
        assert len(content) <= batch_bytes or batch.count == 1
        [records] = MemoryRecords(content)
        found = list(records)
        assert [record.offset for record in found] == list(range(batch.count))
        read += [(record.key, record.value, record.headers, record.timestamp) for record in found]
    assert read == [(*message, NOW_MS) for message in messages]


def test_partitions_have_the_numbers_they_were_given() -> None:
    columns = MessageColumns(pa.array([b"a", b"b", b"c", b"d"]), pa.array([b"v"] * 4), ())
    batches = prepared(columns, np.array([3, 8]), NO_LIMIT, NO_LIMIT, NOW_MS)
    places = sorted(by_partition(columns.messages(), 2))
    assert [batch.partition for batch in batches] == [[3, 8][place] for place in places]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_message_is_refused_exactly_where_the_library_refuses_it(key: bytes, value: bytes) -> None:
    headers = [("name", b"value")]
    size = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers)
    columns = MessageColumns(pa.array([b"k", key]), pa.array([b"v", value]), (headers[0],))
    assert list(prepared(columns, np.arange(1), NO_LIMIT, max(size, 120), NOW_MS))
    if size > 120:
        with pytest.raises(MessageSizeTooLargeError, match=f"{size} bytes; the producer takes at most {size - 1}"):
            list(prepared(columns, np.arange(1), NO_LIMIT, size - 1, NOW_MS))


def accumulated() -> Any:
    """The library's own batch, as its accumulator has it."""
    accumulator: Any = RecordAccumulator()
    accumulator.append(TopicPartition("t", 0), NOW_MS, b"key", b"value", [])
    [batch] = accumulator._batches[TopicPartition("t", 0)]
    return batch


def a_prepared_batch() -> PreparedBatch:
    [batch] = prepared(
        MessageColumns(pa.array([b"key"] * 5), pa.array([b"value"] * 5), ()), np.arange(1), NO_LIMIT, NO_LIMIT, NOW_MS
    )
    return batch


def test_a_prepared_batch_has_the_attributes_of_the_librarys_own() -> None:
    made = batch_of(TopicPartition("t", 0), a_prepared_batch(), 0)
    assert vars(made).keys() == vars(accumulated()).keys()
    assert made.record_count == len(made._record_futures) == 5
    assert made.records.is_full()
    assert made.try_append(NOW_MS, b"key", b"value", []) is None


def test_a_batch_that_is_split_is_stored_when_all_its_parts_are() -> None:
    accumulator: Any = RecordAccumulator()
    partition = TopicPartition("t", 0)
    whole = batch_of(partition, a_prepared_batch(), 0)
    delivery: Delivery = whole._record_futures
    whole.records.close()
    accumulator.split_and_reenqueue(whole)
    first, second = accumulator._batches[partition]
    assert delivery.was_split
    assert [len(first._record_futures), len(second._record_futures)] == [3, 2]
    second.complete(3, -1)
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        delivery.get(0)
    first.complete_exceptionally(MessageSizeTooLargeError("no"), lambda _: MessageSizeTooLargeError("no"))
    with pytest.raises(MessageSizeTooLargeError):
        delivery.get(0)


def test_the_version_whose_inside_is_used_is_the_locked_and_the_installed_one() -> None:
    locked = re.search(r"^kafka-python==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    assert locked is not None
    # Another one? See whether prepared_batches.py fits its producer (the tests here and beside say so), then name it.
    assert [TRIED_VERSION, locked[1], kafka.__version__] == [TRIED_VERSION] * 3
    assert can_prepare()


def test_another_version_of_the_library_gets_its_records_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "__version__", "3.0.13")
    assert not can_prepare()
