"""The record batches that a generator has prepared: what was sent is what the oracle of the peers has summed."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from kafka.record import MemoryRecords

from bench.load import TimedBatch, partition_of, steady_batches
from bench.peers.messages import MEASURES, SHAPES, Backlog, Shape, difference, sums_of

START_MS = 1_763_712_000_000
PARTITIONS = 4


def records_of(batches: Iterable[bytes]) -> list[Any]:
    """Their records; each checksum is verified."""
    read = []
    for batch in batches:
        records: Any = MemoryRecords(batch)
        while (one := records.next_batch()) is not None:
            assert one.validate_crc()
            read += list(one)
    return read


def events_of(records: Iterable[Any]) -> list[Any]:
    values = [json.loads(record.value) for record in records]
    return [event for value in values for event in (value if isinstance(value, list) else [value])]


@pytest.mark.parametrize(("per_message", "messages"), [(1, 400), (100, 4)])
def test_a_batch_can_be_sent_again_with_another_time(per_message: int, messages: int) -> None:
    batch, *_ = steady_batches(20_000, 10_000, per_message, PARTITIONS)
    for now_ms in (START_MS, START_MS + 20):
        records = records_of([batch.at(now_ms)])
        assert len(records) == messages
        events = events_of(records)
        assert {event["event_time_ms"] for event in events} == {now_ms}
        assert len(events) == batch.event_count == 400


@pytest.mark.parametrize("per_message", [1, 100])
@pytest.mark.parametrize("clients", [1, 399, 401, 10_000])
def test_every_client_takes_its_turn(clients: int, per_message: int) -> None:
    batches = steady_batches(20_000, clients, per_message, PARTITIONS)
    names = [event["client_id"] for event in events_of(records_of(batch.at(START_MS) for batch in batches))]
    assert sorted(names) == sorted(f"client-{number}" for number in range(clients))


def test_a_batch_keeps_its_keys() -> None:
    batch = TimedBatch(0, [(b"k", b'{"event_time_ms":1000000000000}'), (None, b'{"event_time_ms":1000000000001}')])
    assert [(record.key, json.loads(record.value)["event_time_ms"]) for record in records_of([batch.at(START_MS)])] == [
        (b"k", START_MS),
        (None, START_MS),
    ]


def test_keys_are_partitioned_as_by_kafkas_own_clients() -> None:
    # Of org.apache.kafka.common.utils.Utils.murmur2, with 4 partitions; from Kafka's own UtilsTest.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert {key: partition_of(key, 4) for key in hashes} == {
        key: (value & 0x7FFFFFFF) % 4 for key, value in hashes.items()
    }


@pytest.fixture(scope="module")
def small() -> Backlog:
    return Backlog.build(2_050, clients=40, start_ms=START_MS, partitions=PARTITIONS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("copy", [0, 2])
def test_each_copy_of_a_backlog_gives_the_expected_sums_in_each_shape(small: Backlog, shape: Shape, copy: int) -> None:
    records = records_of(batch.shifted(copy * small.span_ms) for batch in small.batches[shape])
    assert difference(small.expected(copy), sums_of(record.value for record in records)) == ""
    assert sum(batch.event_count for batch in small.batches[shape]) == small.event_count == 2_050


def test_copies_of_a_backlog_do_not_meet_in_a_second(small: Backlog) -> None:
    seconds = [{second_ms for second_ms, _, _ in small.expected(copy)} for copy in (0, 1)]
    assert max(seconds[0]) < min(seconds[1])


def test_objects_are_on_the_partition_of_their_key(small: Backlog) -> None:
    for batch in small.batches["object"]:
        for record in records_of([batch.shifted(0)]):
            told = json.loads(record.value)
            assert record.key == f"{told['user']}/{told['client_id']}".encode()
            assert partition_of(record.key, PARTITIONS) == batch.partition


ALICE = (1_000, "alice", "etl")
BOB = (2_000, "bob", "")


def event(time_ms: int, user: str, client_id: str, *measured: int) -> dict[str, object]:
    names = {"event_time_ms": time_ms, "user": user, "client_id": client_id}
    return {**names, **dict(zip(MEASURES, measured, strict=True))}


def test_sums_are_by_second_user_and_client_of_objects_and_arrays_alike() -> None:
    events = [
        event(1_000, "alice", "etl", 1, 2, 3, 4, 1),
        event(1_999, "alice", "etl", 10, 20, 30, 40, 2),
        event(2_000, "bob", "", 5, 0, 0, 0, 1),
    ]
    expected = {ALICE: (11, 22, 33, 44, 3), BOB: (5, 0, 0, 0, 1)}
    assert sums_of(json.dumps(one).encode() for one in events) == expected
    assert sums_of([json.dumps(events).encode()]) == expected
    assert sums_of([b"[]"]) == {}


def test_sums_above_the_exact_doubles_are_exact() -> None:
    values = [json.dumps(event(1_000, "alice", "etl", used, 0, 0, 0, 1)).encode() for used in (2**53, 2**53, 2**53, 1)]
    assert sums_of(values)[ALICE][0] == 3 * 2**53 + 1


RIGHT = {ALICE: (11, 22, 33, 44, 3), BOB: (5, 0, 0, 0, 1)}


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (RIGHT, ""),
        (RIGHT | {BOB: (5, 0, 0, 0, 2)}, f"1 wrong, as {BOB}: (5, 0, 0, 0, 2), not (5, 0, 0, 0, 1)"),
        ({ALICE: RIGHT[ALICE]}, f"1 missing, as {BOB}: (5, 0, 0, 0, 1)"),
        (RIGHT | {(3_000, "eve", ""): (1, 0, 0, 0, 1)}, "1 unexpected, as (3000, 'eve', ''): (1, 0, 0, 0, 1)"),
    ],
)
def test_one_wrong_missing_or_unexpected_sum_is_found(
    got: dict[tuple[int, str, str], tuple[int, ...]], told: str
) -> None:
    assert difference(RIGHT, got) == told
