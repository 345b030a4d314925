"""Many records of one transaction: a reader finds all of them or none."""

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.cluster.transactions import Mark, MarkedTransactions
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import MessageTooLarge, TransactionUndecided
from pipeline.throttle.publisher import Marker
from pipeline.throttle.topic import KafkaThrottleTopic
from schemas.throttle_record import ThrottleRecord
from tests.pipeline.throttle.factories import record, release
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

JOB = "many"
TIMEOUT_MS = 60_000


def new_topic(broker: EmbeddedBroker, partitions: int = 1, **settings: str) -> str:
    name = f"many.{time.time_ns()}"
    configs = {key.replace("_", "."): value for key, value in settings.items()}
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    with closing(admin):
        create_topics(admin, [TopicSpec(name, "throttle", partitions, "any", configs, {})])
        create_topics(admin, [TopicSpec(f"{name}.marker", "marker", 1, "any", {}, {})])
    return name


def writer(broker: EmbeddedBroker, name: str) -> KafkaThrottleTopic:
    access = ClusterAccess(broker.bootstrap_servers)
    return KafkaThrottleTopic(JOB, name, f"{name}.marker", access, TIMEOUT_MS)


def clients(count: int, first_seq: int = 0, **changes: Any) -> list[ThrottleRecord]:
    return [record(first_seq + place, user=f"user-{place % 97}", **changes) for place in range(count)]


def messages_of(records: Sequence[ThrottleRecord]) -> list[tuple[bytes, bytes, list[tuple[str, bytes]]]]:
    return [(one.key(), one.to_value(), one.headers(JOB)) for one in records]


def read(broker: EmbeddedBroker, name: str) -> dict[int, list[Any]]:
    """Committed records by partition, in order."""
    found: dict[int, list[Any]] = defaultdict(list)
    for one in read_topic(broker.bootstrap_servers, name):
        found[one.partition].append(one)
    assert all(before.offset < after.offset for some in found.values() for before, after in pairwise(some))
    return found


def partition_count(broker: EmbeddedBroker, name: str) -> int:
    consumer: Any = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    with closing(consumer):
        return len(consumer.partitions_for_topic(name))


def test_a_reader_finds_each_record_as_it_was_given(broker: EmbeddedBroker) -> None:
    records = [
        *clients(300, cluster="a c", broker_id="3"),
        *clients(2, 300, client_id="x" * 150_000),  # the two together are more than a batch of the library may have
        *(release(302 + place, user=f"náïve\n✓{place}", bound=None, tokens=-0.0) for place in range(50)),
    ]
    topic = writer(broker, name := new_topic(broker, partitions=3))
    topic.open()
    began_ms = time.time_ns() // 1_000_000
    topic.publish(records, Marker(len(records)))
    ended_ms = time.time_ns() // 1_000_000
    topic.close()
    found = [one for some in read(broker, name).values() for one in some]
    assert all(began_ms <= one.timestamp <= ended_ms for one in found)
    assert sorted((one.key, one.value, one.headers) for one in found) == sorted(messages_of(records))


def test_a_transaction_that_ends_in_the_middle_shows_no_record_and_leaves_the_mark(broker: EmbeddedBroker) -> None:
    name = new_topic(broker)
    transactions = MarkedTransactions(JOB, f"{name}.marker", name, ClusterAccess(broker.bootstrap_servers), TIMEOUT_MS)

    def send(producer: Any) -> list[Any]:
        for value in (b"1", b"2"):
            producer.send(name, value).get(timeout=PATIENCE_SECONDS)
        message = "the connection is gone"
        raise KafkaTimeoutError(message)

    transactions.open()
    with pytest.raises(TransactionUndecided, match="the connection is gone"):
        transactions.commit(send, Mark(1))
    assert transactions.open() is None
    consumer: Any = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    with closing(consumer):
        assert consumer.end_offsets([TopicPartition(name, 0)])[TopicPartition(name, 0)] >= 2, "they were on the topic"
    assert read(broker, name) == {}
    transactions.commit(lambda producer: [producer.send(name, b"3")], Mark(1))
    transactions.close()
    assert [one.value for one in read(broker, name)[0]] == [b"3"]


def test_a_topic_with_small_batches_gets_all_records_once_and_in_order(broker: EmbeddedBroker) -> None:
    records = clients(600)
    name = new_topic(broker, max_message_bytes="60000")
    topic = writer(broker, name)
    topic.open()
    topic.publish(records[:400], Marker(400))
    topic.publish(records[400:], Marker(600))
    topic.close()
    found = [(one.key, one.value, one.headers) for one in read(broker, name)[0]]
    assert found == messages_of(records)


def test_a_record_that_the_topic_does_not_take_publishes_none_of_the_others(broker: EmbeddedBroker) -> None:
    name = new_topic(broker, max_message_bytes="60000")
    topic = writer(broker, name)
    topic.open()
    with pytest.raises(MessageTooLarge):
        topic.publish([*clients(20), record(20, user="x" * 40_000), *clients(200, 21)], Marker(221))
    assert (topic.open(), read(broker, name)) == (None, {})
    topic.publish(clients(20), Marker(20))
    topic.close()
    assert len(read(broker, name)[0]) == 20


def test_a_message_that_is_too_large_is_told_as_such_when_the_next_send_finds_out(broker: EmbeddedBroker) -> None:
    name = new_topic(broker, max_message_bytes="60000")
    transactions = MarkedTransactions(JOB, f"{name}.marker", name, ClusterAccess(broker.bootstrap_servers), TIMEOUT_MS)
    transactions.open()

    def send(producer: Any) -> list[Any]:
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(name, bytes(90_000)).get(timeout=PATIENCE_SECONDS)
        return [producer.send(name, b"the library knows already that this transaction has failed")]

    with pytest.raises(MessageTooLarge):
        transactions.commit(send, Mark(1))
