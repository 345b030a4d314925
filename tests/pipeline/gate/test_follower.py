"""The follower of the throttle topic.

Its contract, of the one in memory and the one of a real topic; each record once and in order, whatever becomes of
connection and topic; and what a tail shows."""

import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Protocol
from uuid import UUID

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.demo.broker import EmbeddedBroker
from pipeline.gate import follower as topic_reader
from pipeline.gate.follower import (
    Found,
    KafkaFollower,
    ThrottleTail,
    ThrottleTopicReader,
)
from pipeline.throttle.publisher import Marker, ThrottleTopic
from pipeline.throttle.topic import KafkaThrottleTopic
from schemas.throttle_record import ThrottleRecord
from tests.fakes.follower import MemoryFollower
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.pipeline.throttle.factories import record, release
from tests.throttle_records import message, rows_of
from tests.waiting import PATIENCE_SECONDS, never, wait_until


class Pair(Protocol):
    """A topic and how to follow it."""

    topic: ThrottleTopic

    def follower(self) -> KafkaFollower: ...


class MemoryPair:
    def __init__(self) -> None:
        self._broker = TopicBroker()
        self.topic: ThrottleTopic = MemoryTopic(self._broker)

    def follower(self) -> KafkaFollower:
        return MemoryFollower(self._broker)


class KafkaPair:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.name = f"follower.{time.time_ns()}"
        marker = f"{self.name}.marker"
        admin: Any = KafkaAdminClient(bootstrap_servers=servers)
        create_topics(admin, topic_specs(1, 1_000, throttle_topic=self.name, marker_topic=marker)[1:])
        admin.close()
        self.topic: ThrottleTopic = KafkaThrottleTopic(self.name, self.name, marker, ClusterAccess(servers), 60_000)

    def follower(self) -> KafkaFollower:
        return KafkaFollower(self.servers, self.name)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    in_memory = request.param == "memory"
    made: Pair = MemoryPair() if in_memory else KafkaPair(request.getfixturevalue("broker").bootstrap_servers)
    made.topic.open()
    yield made
    made.topic.close()


class Taken(list[ThrottleRecord]):
    def take(self, records: Sequence[ThrottleRecord], is_new_topic: bool) -> None:
        """What a follower hands over; all before is void when the topic is a new one."""
        if is_new_topic:
            self.clear()
        self.extend(records)

    def wait_for(self, records: Sequence[ThrottleRecord]) -> None:
        wait_until(lambda: self == records, f"{len(records)} records to be handed over")


@pytest.mark.usefixtures("impatient")
def test_a_follower_that_reaches_no_broker_is_connecting() -> None:
    follower = KafkaFollower("127.0.0.1:1", "quota.throttle.v1")
    follower.start(lambda *_: None)
    assert not follower.wait_until_caught_up(0.2)
    assert follower.state == "connecting"
    follower.close(0.1)


@pytest.mark.broker
def test_partitions_that_are_added_to_the_topic_are_read_from_their_start(broker: EmbeddedBroker) -> None:
    pair = KafkaPair(broker.bootstrap_servers)
    pair.topic.open()
    taken, follower = Taken(), pair.follower()
    follower.start(taken.take)
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_partitions({pair.name: 8})
    admin.close()
    pair.topic.close()
    pair.topic.open()  # a new producer, which knows the new partitions
    records = [record(number, user=f"user-{number}") for number in range(40)]
    pair.topic.publish(rows_of(*records), Marker(40))
    wait_until(lambda: {each.user for each in taken} == {each.user for each in records}, "records of all partitions")
    follower.close()
    pair.topic.close()


@pytest.mark.broker
def test_a_topic_that_was_made_anew_is_read_from_its_start_and_all_before_is_void(broker: EmbeddedBroker) -> None:
    pair = KafkaPair(broker.bootstrap_servers)
    pair.topic.open()
    pair.topic.publish(
        rows_of(*(record(500_000 + number, user=f"user-{number}") for number in range(3))), Marker(500_003)
    )
    taken, follower = Taken(), pair.follower()
    follower.start(taken.take)
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    assert len(taken) == 3
    pair.topic.close()
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.delete_topics([pair.name])
    wait_until(lambda: pair.name not in admin.list_topics(), "the topic to be gone")
    create_topics(admin, topic_specs(1, 1_000, throttle_topic=pair.name, marker_topic=f"{pair.name}.marker")[1:])
    admin.close()
    anew = [record(number, user=f"user-{number}") for number in range(4)]
    pair.topic = KafkaThrottleTopic(
        pair.name, pair.name, f"{pair.name}.marker", ClusterAccess(broker.bootstrap_servers), 60_000
    )
    pair.topic.open()
    pair.topic.publish(rows_of(*anew), Marker(4))
    wait_until(lambda: {each.user: each for each in taken} == {each.user: each for each in anew}, "the new records")
    follower.close()
    pair.topic.close()


class Logs:
    """The logs of a topic, and as much of a KafkaConsumer as the reader uses."""

    def __init__(self) -> None:
        self.make_anew(UUID(int=1))

    def make_anew(self, topic_id: UUID | None) -> None:
        self.topic_id = topic_id
        self.logs: dict[int, list[bytes]] = {0: [], 1: []}

    def write(self, partition: int, *records: ThrottleRecord) -> None:
        self.logs[partition] += [message(each).value for each in records]

    def consumer(self, *_args: Any, **_options: Any) -> "Consumer":
        return Consumer(self)


class Consumer:
    def __init__(self, logs: Logs) -> None:
        self._broker = logs
        self._positions: dict[Any, int] = {}
        self._cluster = SimpleNamespace(topic_id=lambda _topic: logs.topic_id)

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
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    made = Logs()
    monkeypatch.setattr(topic_reader, "open_client", lambda _class, _servers, **_options: made.consumer())
    return made


@pytest.fixture
def reader(logs: Logs) -> ThrottleTopicReader:
    made = ThrottleTopicReader("broker:9092", "throttles")
    logs.write(0, record(500_000), release(500_001))
    made.open()
    assert [found.record.publish_seq for found in made.poll(0)] == [500_000, 500_001]
    return made


def seqs(reader: ThrottleTopicReader) -> list[int]:
    reader.add_partitions()
    return [found.record.publish_seq for _ in range(3) for found in reader.poll(0)]


def test_after_a_lost_connection_it_goes_on_where_it_was(logs: Logs, reader: ThrottleTopicReader) -> None:
    logs.write(0, record(0))
    reader.close()
    reader.open()
    assert seqs(reader) == [0]
    assert not reader.take_is_new_topic()


@pytest.mark.parametrize("topic_id", [UUID(int=2), UUID(int=1), None], ids=["another id", "the same id", "no ids"])
@pytest.mark.parametrize("reopened", [False, True], ids=["running", "after a lost connection"])
def test_a_topic_made_anew_is_read_from_its_start(
    logs: Logs, reader: ThrottleTopicReader, topic_id: UUID | None, reopened: bool
) -> None:
    logs.make_anew(topic_id)
    logs.write(0, record(0))
    logs.write(1, record(1, user="bob"))
    if reopened:
        reader.close()
        reader.open()
    assert sorted(seqs(reader)) == [0, 1]
    assert reader.take_is_new_topic()
    assert not reader.take_is_new_topic()


def of_user(seq: int, **changes: Any) -> ThrottleRecord:
    return record(seq, client_id=None, except_client_ids=(), **changes)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ([record(500_000), record(0)], [], [0]),
        ([record(7), release(8)], [record(3)], [8]),
        ([record(3)], [record(7), release(8)], [8]),
        ([of_user(1), of_user(2, quota_type="request_percentage"), record(3), of_user(4)], [], [2, 3, 4]),
    ],
    ids=["a new life of the job", "moved to another partition", "moved, read first", "a user, and its client"],
)
def test_of_the_first_reading_the_last_record_of_a_target_counts(
    logs: Logs, first: list[ThrottleRecord], second: list[ThrottleRecord], kept: list[int]
) -> None:
    logs.write(0, *first)
    logs.write(1, *second)
    taken: list[ThrottleRecord] = []
    follower = KafkaFollower("broker:9092", "throttles")
    follower.start(lambda records, _: taken.extend(records))
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    assert sorted(each.publish_seq for each in taken) == kept
    logs.make_anew(UUID(int=2))
    logs.write(0, record(0))
    wait_until(lambda: len(taken) > len(kept), "the record of the topic made anew")
    assert [each.publish_seq for each in taken[len(kept) :]] == [0]
    follower.close()


def test_a_record_of_another_version_is_counted_and_holds_no_client(
    logs: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    sent = [message(record(number, user=f"user-{number}")).value for number in range(4)]
    versions = (b"1", b"2", b"3", b"null")
    logs.logs[0] = [
        value.replace(b'"schema_version":2', b'"schema_version":' + each)
        for value, each in zip(sent, versions, strict=True)
    ]
    reader = ThrottleTopicReader("broker:9092", "throttles")
    reader.open()
    assert [found.record.user for found in reader.poll(0)] == ["user-1"]
    assert reader.unreadable == 3
    assert len(caplog.messages) == 1
    assert "schema_version" in caplog.text


class GivenReader:
    """Gives one list of records at each poll. The topic ends, at the start, where `ends` says."""

    def __init__(self, ends: dict[Any, int], *polls: list[Found]) -> None:
        self._ends = ends
        self._polls = list(polls)
        self._read: dict[Any, int] = {}

    def ends(self) -> dict[Any, int]:
        return self._ends

    def has_read(self, ends: dict[Any, int]) -> bool:
        return all(self._read.get(partition, 0) >= end for partition, end in ends.items())

    def keep_up(self) -> bool:
        return False

    def take_is_new_topic(self) -> bool:
        return False

    def poll(self, wait_ms: int) -> list[Found]:
        found = self._polls.pop(0) if self._polls else []
        self._read |= {one.partition: one.offset + 1 for one in found}
        return found


def tailed(reader: Any, since_ms: int | None) -> list[int]:
    tail = ThrottleTail(reader, since_ms)
    return [one.publish_seq for _ in range(4) for one in tail.step(0)]


def violation(seq: int, decision_id: str, client_id: str = "etl") -> ThrottleRecord:
    return record(seq, 5_000, client_id=client_id, decision_id=decision_id, cause="violation")


def test_from_now_on_only_what_comes_is_shown() -> None:
    reader = GivenReader(
        {0: 2},
        [Found(0, 0, violation(0, "a")), Found(0, 1, violation(1, "b", "web"))],
        [Found(0, 2, violation(2, "a"))],
        [Found(1, 0, violation(3, "c", "new"))],
    )
    assert tailed(reader, None) == [2, 3]


def test_partitions_that_are_read_one_after_the_other_are_told_in_the_jobs_order() -> None:
    reader = GivenReader(
        {0: 2, 1: 1},
        [Found(0, 0, violation(0, "a")), Found(0, 1, violation(2, "a"))],
        [Found(1, 0, violation(1, "b", "web"))],
    )
    assert tailed(reader, 0) == [0, 1, 2]


@pytest.mark.parametrize(("later_ms", "told"), [(-1, [0, 1]), (0, [0, 1]), (1, [])])
def test_since_an_instant_means_written_at_it_or_later(later_ms: int, told: list[int]) -> None:
    first = violation(0, "a")
    reader = GivenReader({0: 2}, [Found(0, 0, first), Found(0, 1, violation(1, "a"))])
    assert tailed(reader, first.written_ms + later_ms) == told


def test_records_published_together_are_handed_over_together_and_none_after_the_close(pair: Pair) -> None:
    handed_over: list[Sequence[ThrottleRecord]] = []
    follower = pair.follower()
    follower.start(lambda records, _: handed_over.append(records))
    assert follower.wait_until_caught_up(PATIENCE_SECONDS), "the topic is empty"
    together = [record(seq, 5_000, user=f"team-{seq}") for seq in range(50)]
    pair.topic.publish(rows_of(*together), Marker(50))
    wait_until(lambda: bool(handed_over), "the records to be handed over")
    assert list(map(list, handed_over)) == [together]
    follower.close()
    follower.close()
    assert follower.state == "closed"
    pair.topic.publish(rows_of(record(50)), Marker(51))
    assert never(lambda: len(handed_over) > 1)


def test_a_longer_topic_with_another_id_is_read_from_its_start(logs: Logs, reader: ThrottleTopicReader) -> None:
    logs.make_anew(UUID(int=2))
    logs.write(0, *(record(seq) for seq in range(5)))
    assert seqs(reader) == [0, 1, 2, 3, 4]
    assert reader.take_is_new_topic()
