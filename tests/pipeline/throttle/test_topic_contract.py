"""What every `ThrottleTopic` must do, held against the fake and the real one; and many records of one transaction."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.cluster.transactions import Mark, MarkedTransactions
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import MessageTooLarge, TransactionFenced, TransactionUndecided
from pipeline.throttle.publisher import Marker, ThrottleTopic, TopicEnd
from pipeline.throttle.topic import KafkaThrottleTopic
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.throttle_records import message, record, release, rows_of
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS, wait_until

JOB = "nightly"
TIMEOUT_MS = 60_000


def made_topic(broker: EmbeddedBroker, partitions: int = 1, **settings: str) -> str:
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


@pytest.mark.broker
def test_a_reader_finds_each_record_as_it_was_given_in_the_order_of_its_partition(broker: EmbeddedBroker) -> None:
    records = [
        *(record(number, user=f"user-{number % 97}", cluster="a c", broker_id="3") for number in range(300)),
        *(record(300 + number, client_id="x" * 150_000) for number in range(2)),  # more than a batch of the library
        *(release(302 + number, user=f"náïve\n✓{number}", bound=None, tokens=-0.0) for number in range(50)),
    ]
    topic = writer(broker, name := made_topic(broker, partitions=3))
    topic.open()
    topic.publish(rows_of(*records), Marker(len(records)))
    topic.close()
    found = list(read_topic(broker.bootstrap_servers, name))
    assert sorted((one.key, one.value, one.headers) for one in found) == sorted(
        tuple(message(one, JOB)) for one in records
    )
    for partition in range(3):
        of_partition = [json.loads(one.value)["publish_seq"] for one in found if one.partition == partition]
        assert of_partition == sorted(of_partition) != []


@pytest.mark.broker
def test_a_transaction_that_ends_in_the_middle_shows_no_record_and_leaves_the_mark(broker: EmbeddedBroker) -> None:
    name = made_topic(broker)
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
    assert [*read_topic(broker.bootstrap_servers, name)] == []
    transactions.commit(lambda producer: [producer.send(name, b"3")], Mark(1))
    transactions.close()
    assert [one.value for one in read_topic(broker.bootstrap_servers, name)] == [b"3"]


@pytest.mark.broker
def test_a_message_that_is_too_large_is_told_as_such_when_the_next_send_finds_out(broker: EmbeddedBroker) -> None:
    name = made_topic(broker, max_message_bytes="60000")
    transactions = MarkedTransactions(JOB, f"{name}.marker", name, ClusterAccess(broker.bootstrap_servers), TIMEOUT_MS)
    transactions.open()

    def send(producer: Any) -> list[Any]:
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(name, bytes(90_000)).get(timeout=PATIENCE_SECONDS)
        return [producer.send(name, b"the library knows already that this transaction has failed")]

    with pytest.raises(MessageTooLarge):
        transactions.commit(send, Mark(1))


NewTopic = Callable[[], ThrottleTopic]


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def new_topic(request: pytest.FixtureRequest) -> NewTopic:
    """Another writer of the same topic, not opened yet; each call is another driver of the job."""
    if request.param == "memory":
        memory = TopicBroker()
        return lambda: MemoryTopic(memory, JOB)
    broker = request.getfixturevalue("broker")
    name = made_topic(broker)
    return lambda: writer(broker, name)


def test_marker_and_end_are_those_of_the_last_transaction_and_its_job(new_topic: NewTopic) -> None:
    topic = new_topic()
    assert (topic.open(), topic.end()) == (None, TopicEnd(-1, ""))
    topic.publish(rows_of(), marker=Marker(3, "a table"))
    assert (topic.open(), topic.end()) == (Marker(3, "a table"), TopicEnd(-1, ""))
    topic.publish(rows_of(record(3), record(4)), marker=Marker(5))
    assert (topic.open(), topic.end()) == (Marker(5), TopicEnd(4, JOB))
    topic.close()


def test_the_marker_is_read_without_taking_the_topic_from_its_writer(new_topic: NewTopic) -> None:
    topic, looker = new_topic(), new_topic()
    topic.open()
    assert looker.committed() is None
    topic.publish(rows_of(record(0)), marker=Marker(1, "a table"))
    wait_until(lambda: looker.committed() == Marker(1, "a table"), "the marker of the transaction")
    topic.publish(rows_of(record(1)), marker=Marker(2, "a table"))
    assert topic.end().publish_seq == 1
    topic.close()


def test_a_record_that_is_too_large_publishes_nothing_of_its_transaction(new_topic: NewTopic) -> None:
    topic = new_topic()
    topic.open()
    too_large = record(1, user="x" * 600_000)
    with pytest.raises(MessageTooLarge):
        topic.publish(rows_of(record(0), too_large, record(2)), marker=Marker(3))
    assert topic.end() == TopicEnd(-1, "")
    topic.publish(rows_of(record(0)), marker=Marker(1))
    assert topic.end().publish_seq == 0
    with pytest.raises(MessageTooLarge):
        topic.publish(rows_of(too_large), marker=Marker(2))
    second = new_topic()
    second.open()
    topic.publish(rows_of(), marker=Marker(1))
    with pytest.raises(TransactionFenced):
        second.publish(rows_of(), marker=Marker(2))
    with pytest.raises(MessageTooLarge):
        topic.publish(rows_of(too_large), marker=Marker(2))
    second.open()
    second.publish(rows_of(), marker=Marker(2))
    with pytest.raises(TransactionFenced):
        topic.publish(rows_of(), marker=Marker(2))
    topic.close()
    second.close()


def test_a_writer_that_was_fenced_publishes_nothing_until_it_opens_again(new_topic: NewTopic) -> None:
    first, second = new_topic(), new_topic()
    first.open()
    second.open()
    with pytest.raises(TransactionFenced):
        first.publish(rows_of(record(0)), marker=Marker(1))
    assert first.open() is None
    first.publish(rows_of(record(0)), marker=Marker(1))
    with pytest.raises(TransactionFenced):
        second.publish(rows_of(record(1)), marker=Marker(2))
    first.close()
    second.close()
