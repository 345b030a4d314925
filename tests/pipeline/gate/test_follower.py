"""The contract of a follower: the one in memory and the one of a real topic pass the same tests."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.demo.broker import EmbeddedBroker
from pipeline.gate.follower import Follower, KafkaFollower
from pipeline.throttle.publisher import Marker, ThrottleTopic
from pipeline.throttle.topic import KafkaThrottleTopic
from schemas.throttle_record import ThrottleRecord
from tests.fakes.follower import MemoryFollower
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.pipeline.throttle.factories import record, release
from tests.waiting import PATIENCE_SECONDS, never, wait_until


class Pair(Protocol):
    """A topic and how to follow it."""

    topic: ThrottleTopic

    def follower(self) -> Follower: ...


class MemoryPair:
    def __init__(self) -> None:
        self._broker = TopicBroker()
        self.topic: ThrottleTopic = MemoryTopic(self._broker)

    def follower(self) -> Follower:
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

    def follower(self) -> Follower:
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


def test_old_and_new_records_are_handed_over_in_order(pair: Pair) -> None:
    first, second = record(0, 5_000), record(1, 9_000, user="bob")
    pair.topic.publish([first, second], Marker(2))
    taken, follower = Taken(), pair.follower()
    states = [follower.state]
    follower.start(taken.take)
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    assert taken == [first, second]
    states.append(follower.state)
    assert states == ["connecting", "following"]
    pair.topic.publish([release(2)], Marker(3))
    taken.wait_for([first, second, release(2)])
    follower.close()


def test_records_published_together_are_handed_over_together(pair: Pair) -> None:
    handed_over: list[Sequence[ThrottleRecord]] = []
    follower = pair.follower()
    follower.start(lambda records, _: handed_over.append(records))
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    together = [record(seq, 5_000, user=f"team-{seq}") for seq in range(50)]
    pair.topic.publish(together, Marker(50))
    wait_until(lambda: bool(handed_over), "the records to be handed over")
    assert list(map(list, handed_over)) == [together]
    follower.close()


def test_the_follower_of_an_empty_topic_is_caught_up_at_once(pair: Pair) -> None:
    follower = pair.follower()
    follower.start(lambda *_: None)
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    follower.close()


def test_nothing_is_handed_over_after_the_close(pair: Pair) -> None:
    taken, follower = Taken(), pair.follower()
    follower.start(taken.take)
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    follower.close()
    follower.close()
    assert follower.state == "closed"
    pair.topic.publish([record(0)], Marker(1))
    assert never(lambda: bool(taken))


def test_a_follower_that_was_never_started_can_be_closed(pair: Pair) -> None:
    follower = pair.follower()
    follower.close()
    assert follower.state == "closed"


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
    pair.topic.publish(records, Marker(40))
    wait_until(lambda: {each.user for each in taken} == {each.user for each in records}, "records of all partitions")
    follower.close()
    pair.topic.close()


@pytest.mark.broker
def test_a_topic_that_was_made_anew_is_read_from_its_start_and_all_before_is_void(broker: EmbeddedBroker) -> None:
    pair = KafkaPair(broker.bootstrap_servers)
    pair.topic.open()
    pair.topic.publish([record(500_000 + number, user=f"user-{number}") for number in range(3)], Marker(500_003))
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
    pair.topic.publish(anew, Marker(4))
    wait_until(lambda: {each.user: each for each in taken} == {each.user: each for each in anew}, "the new records")
    follower.close()
    pair.topic.close()
