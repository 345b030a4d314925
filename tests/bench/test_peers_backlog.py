"""The messages that all peers read: what was sent is what the oracle has summed."""

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from kafka.record import MemoryRecords

from bench.load import TimedBatch
from bench.peers import messages as backlog_module
from bench.peers.messages import (
    CLOSING_USER,
    PARTITIONS,
    SHAPES,
    Backlog,
    Key,
    Shape,
    Sums,
    partition_of,
    sums_of,
)

START_MS = 1_700_000_000_000


def records_of(batches: Iterable[bytes]) -> list[Any]:
    read = []
    for batch in batches:
        records: Any = MemoryRecords(batch)
        while (one := records.next_batch()) is not None:
            assert one.validate_crc()
            read += list(one)
    return read


def sums_without_closing(values: Iterable[bytes]) -> dict[Key, Sums]:
    return {key: sums for key, sums in sums_of(values).items() if key[1] != CLOSING_USER}


@pytest.fixture(scope="module")
def small() -> Backlog:
    return Backlog.build(2_050, clients=40, start_ms=START_MS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("copy", [0, 2])
def test_each_copy_in_each_shape_gives_the_expected_sums(small: Backlog, shape: Shape, copy: int) -> None:
    records = records_of(batch.shifted(copy * small.span_ms) for batch in small.batches[shape])
    assert sums_without_closing(record.value for record in records) == small.expected(copy)
    assert small.event_count == 2_100  # whole arrays


def test_copies_do_not_meet_in_a_second(small: Backlog) -> None:
    seconds = [{second_ms for second_ms, _, _ in small.expected(copy)} for copy in (0, 1)]
    assert max(seconds[0]) < min(seconds[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_closing_events_are_the_last_of_every_partition_and_the_latest(small: Backlog, shape: Shape) -> None:
    last = {batch.partition: batch for batch in small.batches[shape]}
    assert sorted(last) == list(range(PARTITIONS))
    for batch in last.values():
        (record,) = records_of([batch.shifted(0)])
        assert CLOSING_USER.encode() in record.value
        time_ms = int(re.findall(rb'event_time_ms":(\d+)', record.value)[0])
        assert time_ms - max(second_ms for second_ms, _, _ in small.sums) >= 2_000


def test_objects_are_on_the_partition_of_their_key(small: Backlog) -> None:
    for batch in small.batches["object"]:
        for record in records_of([batch.shifted(0)]):
            told = json.loads(record.value)
            assert record.key == f"{told['user']}/{told['client_id']}".encode()
            assert partition_of(record.key) == batch.partition


def test_keys_are_partitioned_as_by_kafkas_own_clients() -> None:
    # Of org.apache.kafka.common.utils.Utils.murmur2, with 4 partitions; from Kafka's own UtilsTest.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert {key: partition_of(key) for key in hashes} == {
        key: (value & 0x7FFFFFFF) % backlog_module.PARTITIONS for key, value in hashes.items()
    }


def test_a_batch_can_have_all_its_events_now() -> None:
    batch = TimedBatch(0, [(b"k", b'{"event_time_ms":1000000000000}'), (None, b'{"event_time_ms":1000000000001}')])
    records = records_of([batch.at(START_MS + 7)])
    assert [(record.key, json.loads(record.value)["event_time_ms"]) for record in records] == [
        (b"k", START_MS + 7),
        (None, START_MS + 7),
    ]
