"""Each record once, in the order of each partition, whatever becomes of connection and topic. No Kafka."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka import TopicPartition

from pipeline.gate import follower as topic_reader
from pipeline.gate.follower import KafkaFollower, ThrottleTopicReader
from schemas.throttle_record import ThrottleRecord
from tests.pipeline.throttle.factories import record, release
from tests.waiting import PATIENCE_SECONDS, wait_until


class Broker:
    """The logs of a topic, and as much of a KafkaConsumer as the reader uses."""

    def __init__(self) -> None:
        self.make_anew(UUID(int=1))

    def make_anew(self, topic_id: UUID | None) -> None:
        self.topic_id = topic_id
        self.logs: dict[int, list[bytes]] = {0: [], 1: []}

    def write(self, partition: int, *records: ThrottleRecord) -> None:
        self.logs[partition] += [each.to_value() for each in records]

    def consumer(self, *_args: Any, **_options: Any) -> "Consumer":
        return Consumer(self)


class Consumer:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._positions: dict[Any, int] = {}
        self._cluster = SimpleNamespace(topic_id=lambda _topic: broker.topic_id)

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return set(self._broker.logs)

    def assignment(self) -> set[Any]:
        return set(self._positions)

    def assign(self, partitions: list[Any]) -> None:
        self._positions = {each: self._positions.get(each, 0) for each in partitions}

    def seek(self, partition: Any, offset: int) -> None:
        self._positions[partition] = offset

    def seek_to_beginning(self, *partitions: Any) -> None:
        self._positions |= dict.fromkeys(partitions, 0)

    def position(self, partition: Any) -> int:
        return self._positions[partition]

    def end_offsets(self, partitions: list[Any], timeout_ms: int = 0) -> dict[Any, int]:
        del timeout_ms
        return {each: len(self._broker.logs[each.partition]) for each in partitions}

    def poll(self, _wait_ms: int) -> dict[Any, list[Any]]:
        found = {}
        for each, position in self._positions.items():
            log = self._broker.logs[each.partition]
            begin = position if position <= len(log) else 0  # out of range: from the earliest
            if log[begin:]:
                found[each] = [SimpleNamespace(offset=begin + at, value=value) for at, value in enumerate(log[begin:])]
                self._positions[each] = len(log)
        return found

    def close(self) -> None:
        pass


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(topic_reader, "open_client", lambda _class, _servers, **_options: made.consumer())
    return made


@pytest.fixture
def reader(broker: Broker) -> ThrottleTopicReader:
    made = ThrottleTopicReader("broker:9092", "throttles")
    broker.write(0, record(500_000), release(500_001))
    made.open()
    assert [found.record.publish_seq for found in made.poll(0)] == [500_000, 500_001]
    return made


def seqs(reader: ThrottleTopicReader) -> list[int]:
    reader.add_partitions()
    return [found.record.publish_seq for _ in range(3) for found in reader.poll(0)]


def test_after_a_lost_connection_it_goes_on_where_it_was(broker: Broker, reader: ThrottleTopicReader) -> None:
    broker.write(0, record(0))
    reader.close()
    reader.open()
    assert seqs(reader) == [0]
    assert not reader.take_is_new_topic()


@pytest.mark.parametrize("topic_id", [UUID(int=2), UUID(int=1), None], ids=["another id", "the same id", "no ids"])
@pytest.mark.parametrize("reopened", [False, True], ids=["running", "after a lost connection"])
def test_a_topic_made_anew_is_read_from_its_start(
    broker: Broker, reader: ThrottleTopicReader, topic_id: UUID | None, reopened: bool
) -> None:
    broker.make_anew(topic_id)
    broker.write(0, record(0))
    broker.write(1, record(1, user="bob"))
    if reopened:
        reader.close()
        reader.open()
    assert sorted(seqs(reader)) == [0, 1]
    assert reader.take_is_new_topic()
    assert not reader.take_is_new_topic()


def test_a_longer_topic_with_another_id_is_read_from_its_start(broker: Broker, reader: ThrottleTopicReader) -> None:
    broker.make_anew(UUID(int=2))
    broker.write(0, *(record(seq) for seq in range(5)))
    assert seqs(reader) == [0, 1, 2, 3, 4]
    assert reader.take_is_new_topic()


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ([record(500_000), record(0)], [], 0),
        ([record(7), release(8)], [record(3)], 8),
        ([record(3)], [record(7), release(8)], 8),
    ],
    ids=["a new life of the job", "moved to another partition", "moved, read first"],
)
def test_of_the_first_reading_the_last_record_of_a_client_counts(
    broker: Broker, first: list[ThrottleRecord], second: list[ThrottleRecord], kept: int
) -> None:
    broker.write(0, *first)
    broker.write(1, *second)
    taken: list[ThrottleRecord] = []
    follower = KafkaFollower("broker:9092", "throttles")
    follower.start(lambda records, _: taken.extend(records))
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    assert [each.publish_seq for each in taken] == [kept]
    broker.make_anew(UUID(int=2))
    broker.write(0, record(0))
    wait_until(lambda: [each.publish_seq for each in taken] == [kept, 0], "the record of the topic made anew")
    follower.close()


def test_partitions_are_named_by_topic_and_number(reader: ThrottleTopicReader) -> None:
    assert set(reader.ends()) == {TopicPartition("throttles", 0), TopicPartition("throttles", 1)}
