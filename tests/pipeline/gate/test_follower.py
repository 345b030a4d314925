"""The follower of the throttle topic.

Its contract, of the one in memory and the one of a real topic; each record once and in order, whatever becomes of
connection and topic; and what a tail shows."""

import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.demo.broker import EmbeddedBroker
from pipeline.gate import follower as topic_reader
from pipeline.gate.follower import KafkaFollower, ThrottleTail, ThrottleTopicReader
from pipeline.throttle.publisher import Marker, ThrottleTopic
from pipeline.throttle.topic import KafkaThrottleTopic
from schemas.throttle_record import ThrottleRecord
from tests.fakes.follower import MemoryFollower
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.throttle_records import message, record, release, rows_of
from tests.waiting import PATIENCE_SECONDS, never, wait_until


class KafkaPair:
    """A topic and how to follow it."""

    def __init__(self, servers: str) -> None:
        self.access = ClusterAccess(servers)
        self.name = f"follower.{time.time_ns()}"
        self._specs = topic_specs(1, 1_000, throttle_topic=self.name, marker_topic=f"{self.name}.marker")[1:]
        self.make()

    def make(self) -> None:
        with self.access.admin() as admin:
            create_topics(admin, self._specs)
        self.topic = KafkaThrottleTopic(self.name, self.name, f"{self.name}.marker", self.access, 60_000)

    def follower(self) -> KafkaFollower:
        return KafkaFollower(self.access.bootstrap_servers, self.name)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[ThrottleTopic, KafkaFollower]]:
    if request.param == "memory":
        broker = TopicBroker()
        made: tuple[ThrottleTopic, KafkaFollower] = MemoryTopic(broker), MemoryFollower(broker)
    else:
        of_kafka = KafkaPair(request.getfixturevalue("broker").bootstrap_servers)
        made = of_kafka.topic, of_kafka.follower()
    yield made
    for one in reversed(made):
        one.close()


def test_what_is_published_together_is_handed_over_together_and_none_after_the_close(
    pair: tuple[ThrottleTopic, KafkaFollower],
) -> None:
    handed_over: list[Sequence[ThrottleRecord]] = []
    topic, follower = pair
    topic.open()
    follower.start(lambda records, _: handed_over.append(records))
    assert follower.wait_until_caught_up(PATIENCE_SECONDS), "the topic is empty"
    together = [record(seq, 5_000, user=f"team-{seq}") for seq in range(50)]
    topic.publish(rows_of(*together), Marker(50))
    wait_until(lambda: bool(handed_over), "the records to be handed over")
    assert list(map(list, handed_over)) == [together]
    follower.close()
    follower.close()
    assert follower.state == "closed"
    topic.publish(rows_of(record(50)), Marker(51))
    assert never(lambda: len(handed_over) > 1)


@pytest.mark.broker
def test_new_partitions_and_a_topic_made_anew_are_read_from_their_start(
    broker: EmbeddedBroker, request: pytest.FixtureRequest
) -> None:
    def publish(first: int, count: int) -> list[ThrottleRecord]:
        records = [record(first + number, user=f"user-{number}") for number in range(count)]
        pair.topic.open()  # a new producer, which knows the partitions of now
        request.addfinalizer(pair.topic.close)
        pair.topic.publish(rows_of(*records), Marker(first + count))
        pair.topic.close()
        return records

    def take(records: Sequence[ThrottleRecord], is_new_topic: bool) -> None:
        """All that was handed over before is void when the topic is a new one."""
        if is_new_topic:
            taken.clear()
        taken.update({one.user: one for one in records})

    taken: dict[str, ThrottleRecord] = {}
    pair = KafkaPair(broker.bootstrap_servers)
    follower = pair.follower()
    request.addfinalizer(follower.close)
    follower.start(take)
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    with pair.access.admin() as admin:
        admin.create_partitions({pair.name: 8})
        sent = publish(500_000, 40)
        wait_until(lambda: taken == {one.user: one for one in sent}, "records of all partitions")
        admin.delete_topics([pair.name])
        wait_until(lambda: pair.name not in admin.list_topics(), "the topic to be gone")
    pair.make()
    anew = publish(0, 4)
    wait_until(lambda: taken == {one.user: one for one in anew}, "the new records, and no old one")


class Logs:
    """The logs of a topic, and as much of a KafkaConsumer of it as the reader uses."""

    def __init__(self) -> None:
        self.make_anew(UUID(int=1))
        self._cluster = SimpleNamespace(topic_id=lambda _topic: self.topic_id)

    def make_anew(self, topic_id: UUID | None) -> None:
        self.topic_id = topic_id
        self.logs: dict[int, list[bytes]] = {0: [], 1: []}

    def write(self, partition: int, *records: ThrottleRecord) -> None:
        self.logs[partition] += [message(each).value for each in records]

    def new_consumer(self, *_arguments: Any, **_options: Any) -> "Logs":
        self._positions: dict[Any, int] = {}
        return self

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return set(self.logs)

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

    def end_offsets(self, partitions: list[Any], **_options: Any) -> dict[Any, int]:
        return {each: len(self.logs[each.partition]) for each in partitions}

    def poll(self, _wait_ms: int) -> dict[Any, list[Any]]:
        """Partitions are read one after the other."""
        for each, position in self._positions.items():
            log = self.logs[each.partition]
            begin = position if position <= len(log) else 0  # out of range: from the earliest
            if log[begin:]:
                self._positions[each] = len(log)
                return {each: [SimpleNamespace(offset=at, value=log[at]) for at in range(begin, len(log))]}
        return {}

    def close(self) -> None:
        pass


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    made = Logs()
    monkeypatch.setattr(topic_reader, "open_client", made.new_consumer)
    return made


def opened() -> ThrottleTopicReader:
    made = ThrottleTopicReader("broker:9092", "throttles")
    made.open()
    return made


@pytest.fixture
def reader(logs: Logs) -> ThrottleTopicReader:
    logs.write(0, record(500_000), release(500_001))
    made = opened()
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


@pytest.mark.parametrize(
    ("topic_id", "count"),
    [(UUID(int=2), 2), (UUID(int=2), 5), (UUID(int=1), 2), (None, 2)],
    ids=["another id", "another id and longer", "the same id", "no ids"],
)
@pytest.mark.parametrize("reopened", [False, True], ids=["running", "after a lost connection"])
def test_a_topic_made_anew_is_read_from_its_start(
    logs: Logs, reader: ThrottleTopicReader, topic_id: UUID | None, count: int, reopened: bool
) -> None:
    logs.make_anew(topic_id)
    logs.write(0, *(record(seq) for seq in range(1, count)))
    logs.write(1, record(0, user="bob"))
    if reopened:
        reader.close()
        reader.open()
    assert sorted(seqs(reader)) == list(range(count))
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
    logs: Logs,
    first: list[ThrottleRecord],
    second: list[ThrottleRecord],
    kept: list[int],
    request: pytest.FixtureRequest,
) -> None:
    logs.write(0, *first)
    logs.write(1, *second)
    taken: list[ThrottleRecord] = []
    follower = KafkaFollower("broker:9092", "throttles")
    request.addfinalizer(follower.close)
    follower.start(lambda records, _: taken.extend(records))
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    assert sorted(each.publish_seq for each in taken) == kept
    logs.make_anew(UUID(int=2))
    logs.write(0, record(0))
    wait_until(lambda: len(taken) > len(kept), "the record of the topic made anew")
    assert [each.publish_seq for each in taken[len(kept) :]] == [0]


def test_a_record_of_another_version_is_counted_and_holds_no_client(logs: Logs) -> None:
    for number, version in enumerate((b"1", b"2", b"3", b"null")):
        value = message(record(number, user=f"user-{number}")).value
        logs.logs[0].append(value.replace(b'"schema_version":2', b'"schema_version":' + version))
    reader = opened()
    assert [found.record.user for found in reader.poll(0)] == ["user-1"]
    assert reader.unreadable == 3


def steps(tail: ThrottleTail) -> list[int]:
    return [one.publish_seq for _ in range(4) for one in tail.step(0)]


def test_a_tail_shows_from_now_on_only_what_comes(logs: Logs) -> None:
    logs.write(0, record(0), record(1))
    tail = ThrottleTail(opened(), since_ms=None)
    assert steps(tail) == []
    logs.write(0, record(2))
    logs.write(1, record(3, client_id="new"))
    assert steps(tail) == [2, 3]


def test_a_tail_shows_the_partitions_in_the_jobs_order(logs: Logs) -> None:
    logs.write(0, record(0), record(2))
    logs.write(1, record(1))
    assert steps(ThrottleTail(opened(), since_ms=0)) == [0, 1, 2]


@pytest.mark.parametrize(("later_ms", "told"), [(-1, [0]), (0, [0]), (1, [])])
def test_since_an_instant_means_written_at_it_or_later(logs: Logs, later_ms: int, told: list[int]) -> None:
    first = record(0)
    logs.write(0, first)
    assert steps(ThrottleTail(opened(), first.written_ms + later_ms)) == told
