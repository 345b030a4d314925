"""What every `ThrottleTopic` must do, held against the fake and the real one."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.errors import MessageTooLarge, TransactionFenced, TransactionUndecided
from pipeline.throttle.publisher import Marker, ThrottleTopic, TopicEnd
from pipeline.throttle.topic import KafkaThrottleTopic
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.pipeline.throttle.factories import record
from tests.waiting import wait_until

NewTopic = Callable[[], ThrottleTopic]


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def new_topic(request: pytest.FixtureRequest) -> NewTopic:
    """Another writer of the same topic, not opened yet; each call is another driver of the job `nightly`."""
    if request.param == "memory":
        memory = TopicBroker()
        return lambda: MemoryTopic(memory, "nightly")
    servers = request.getfixturevalue("broker").bootstrap_servers
    name = f"contract.{time.time_ns()}"
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)
    create_topics(admin, topic_specs(1, 1_000, throttle_topic=name, marker_topic=f"{name}.marker")[1:])
    admin.close()
    return lambda: KafkaThrottleTopic("nightly", name, f"{name}.marker", ClusterAccess(servers), 60_000)


def test_the_end_of_an_empty_topic_is_before_its_first_number(new_topic: NewTopic) -> None:
    topic = new_topic()
    assert topic.open() is None
    assert topic.end() == TopicEnd(-1, "")
    topic.close()


def test_the_end_is_the_highest_number_with_the_job_that_published_it(new_topic: NewTopic) -> None:
    topic = new_topic()
    topic.open()
    topic.publish([record(3), record(4)], marker=Marker(5))
    assert topic.end() == TopicEnd(4, "nightly")
    assert topic.open() == Marker(5)
    topic.close()


def test_a_transaction_without_records_moves_the_marker(new_topic: NewTopic) -> None:
    topic = new_topic()
    topic.open()
    topic.publish([], marker=Marker(7, "a table"))
    assert (topic.open(), topic.end()) == (Marker(7, "a table"), TopicEnd(-1, ""))
    topic.close()


def test_the_marker_is_read_without_taking_the_topic_from_its_writer(new_topic: NewTopic) -> None:
    topic, looker = new_topic(), new_topic()
    topic.open()
    assert looker.committed() is None
    topic.publish([record(0)], marker=Marker(1, "a table"))
    wait_until(lambda: looker.committed() == Marker(1, "a table"), "the marker of the transaction")
    topic.publish([record(1)], marker=Marker(2, "a table"))
    assert topic.end().publish_seq == 1
    topic.close()


def test_a_record_that_is_too_large_publishes_nothing_of_its_transaction(new_topic: NewTopic) -> None:
    topic = new_topic()
    topic.open()
    too_large = record(1, user="x" * 600_000)
    with pytest.raises(MessageTooLarge):
        topic.publish([record(0), too_large, record(2)], marker=Marker(3))
    with pytest.raises(TransactionUndecided):
        topic.publish([record(0)], marker=Marker(1))
    assert (topic.open(), topic.end()) == (None, TopicEnd(-1, ""))
    topic.publish([record(0)], marker=Marker(1))
    assert topic.end().publish_seq == 0
    topic.close()


def test_a_writer_that_was_fenced_publishes_nothing_until_it_opens_again(new_topic: NewTopic) -> None:
    first, second = new_topic(), new_topic()
    first.open()
    second.open()
    with pytest.raises(TransactionFenced):
        first.publish([record(0)], marker=Marker(1))
    assert first.open() is None
    first.publish([record(0)], marker=Marker(1))
    with pytest.raises(TransactionFenced):
        second.publish([record(1)], marker=Marker(2))
    first.close()
    second.close()
