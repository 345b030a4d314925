"""What every `UsageWriter` must do, held against the fake and the real one."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.cluster.transactions import Mark, MarkedTransactions
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import PipelineError, TransactionFenced, TransactionUndecided
from pipeline.meter.usage_messages import Message
from pipeline.meter.usage_topic import KafkaUsageTopic, UsageWriter
from tests.fakes.usage_topic import MemoryUsageTopic, UsageBroker
from tests.topic_reading import read_topic
from tests.waiting import wait_until


class Topic:
    """A usage topic; each writer is another meter, not opened yet."""

    def __init__(self, writer: Callable[[], UsageWriter], values: Callable[[], list[Any]]) -> None:
        self.writer = writer
        self.values = values


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def topic(request: pytest.FixtureRequest) -> Iterator[Topic]:
    made: list[UsageWriter] = []
    values: Callable[[], list[Any]]
    make: Callable[[], UsageWriter]
    if request.param == "memory":
        memory = UsageBroker()
        values, make = memory.events, lambda: MemoryUsageTopic(memory)
    else:
        servers, name = request.getfixturevalue("broker").bootstrap_servers, f"contract.{time.time_ns()}"
        new_topics(servers, name)
        values, make = (
            lambda: [event for record in read_topic(servers, name) for event in json.loads(record.value)],
            lambda: KafkaUsageTopic(name, f"{name}.marker", ClusterAccess(servers), 60_000),
        )

    def writer() -> UsageWriter:
        made.append(make())
        return made[-1]

    yield Topic(writer, values)
    for each in made:
        each.close()


def new_topics(servers: str, name: str) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)
    with closing(admin):
        create_topics(admin, [TopicSpec(each, "demo", 1, "any", {}, {}) for each in (name, f"{name}.marker")])


def messages(*numbers: int) -> list[Message]:
    return [Message(0, b"[%d]" % number) for number in numbers]


def test_a_new_topic_has_no_mark(topic: Topic) -> None:
    writer = topic.writer()
    assert writer.partition_count == 1
    assert (writer.open(), writer.committed()) == (None, None)  # a new broker creates its offsets topic at open


def test_messages_and_mark_are_stored_together(topic: Topic) -> None:
    writer = topic.writer()
    writer.open()
    writer.store(messages(1, 2), Mark(0, "first"))
    writer.store([], Mark(1, "none in it"))
    writer.store(messages(3), Mark(2, "é" * 500))
    assert topic.writer().open() == Mark(2, "é" * 500)
    assert topic.values() == [1, 2, 3]


def test_a_new_writer_fences_the_one_before_and_reading_the_mark_does_not(topic: Topic) -> None:
    first, second = topic.writer(), topic.writer()
    first.open()
    assert second.committed() is None
    first.store(messages(1), Mark(0, "a"))

    assert second.open() == Mark(0, "a")
    with pytest.raises((TransactionFenced, TransactionUndecided)):
        first.store(messages(2), Mark(1, "b"))
    second.store(messages(3), Mark(1, "c"))

    assert first.open() == Mark(1, "c")
    assert topic.values() == [1, 3]


def test_a_writer_that_was_closed_stores_nothing(topic: Topic) -> None:
    writer = topic.writer()
    writer.open()
    writer.close()
    with pytest.raises((TransactionFenced, TransactionUndecided)):
        writer.store(messages(1), Mark(0, "a"))
    assert (writer.open(), topic.values()) == (None, [])


@pytest.mark.broker
@pytest.mark.parametrize(("missing", "purpose"), [("", "usage"), (".marker", "marker")])
def test_a_missing_topic_is_named_with_the_command_that_makes_it(
    broker: EmbeddedBroker, missing: str, purpose: str
) -> None:
    name = f"missing.{time.time_ns()}"
    new_topics(broker.bootstrap_servers, f"{name}.there")
    usage, marker = (f"{name}{missing}", f"{name}.there") if purpose == "usage" else (f"{name}.there", f"{name}.marker")
    with pytest.raises(PipelineError, match="does not exist") as refused:
        KafkaUsageTopic(usage, marker, ClusterAccess(broker.bootstrap_servers), 5_000)
    assert f"--{purpose}-topic {name}{missing}" in refused.value.fix


@pytest.mark.broker
@pytest.mark.long
def test_a_transaction_that_was_open_for_too_long_is_aborted_and_the_mark_stays(broker: EmbeddedBroker) -> None:
    servers, name = broker.bootstrap_servers, f"pause.{time.time_ns()}"
    new_topics(servers, name)
    writer = MarkedTransactions(name, f"{name}.marker", name, ClusterAccess(servers), 2_000)
    writer.open()
    writer.commit(lambda producer: [producer.send(name, value=b"[1]")], Mark(1, "a"))
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)

    def pause(producer: Any) -> list[Any]:
        sent = producer.send(name, value=b"[2]")
        producer.flush()
        wait_until(lambda: "Abort" in str(admin.describe_transactions([name])), "the broker to end the transaction")
        return [sent, producer.send(name, value=b"[3]")]

    with closing(admin), pytest.raises((TransactionFenced, TransactionUndecided)):
        writer.commit(pause, Mark(2, "b"))

    assert writer.open() == Mark(1, "a")
    writer.commit(lambda producer: [producer.send(name, value=b"[4]")], Mark(2, "b"))
    assert [record.value for record in read_topic(servers, name)] == [b"[1]", b"[4]"]
    writer.close()
