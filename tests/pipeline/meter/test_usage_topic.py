"""How usage becomes messages, and how each batch is stored once, whatever becomes of its transaction.

What every `UsageWriter` must do is held against the fake and the real one.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.transactions import Mark
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Conflict, PipelineError, TransactionFenced, TransactionUndecided
from pipeline.meter.usage_topic import (
    MAX_MESSAGE_BYTES,
    KafkaUsageTopic,
    Message,
    UsagePublisher,
    UsageWriter,
    Used,
    messages_of,
    new_client,
)
from schemas.usage import UsageEvent
from tests.fakes.usage_topic import Failure, MemoryUsageTopic, UsageBroker
from tests.pipeline.meter.reported_broker import make_topics
from tests.topic_reading import read_topic

NAMES = [(user, client_id) for user in ("alice", 'b"\n\\é😀', "x" * 32_000) for client_id in ("", "c")]
CLIENTS = [new_client(user, client_id, "7") for user, client_id in NAMES]
AMOUNTS = st.one_of(st.none(), st.integers(1, 2**40))
ROWS = st.lists(st.tuples(st.integers(0, len(CLIENTS) - 1), st.integers(0, 2**62), AMOUNTS, AMOUNTS, AMOUNTS))
Row = tuple[int, int, int | None, int | None, int | None]


def usage_of(rows: Sequence[Row]) -> list[Used]:
    return [Used(CLIENTS[at], time_ms, [amount or 0 for amount in amounts]) for at, time_ms, *amounts in rows]


@given(ROWS.filter(bool))
def test_each_row_is_one_event_and_those_of_a_client_keep_their_order(rows: Sequence[Row]) -> None:
    found: dict[tuple[str, str], list[tuple[int, UsageEvent]]] = defaultdict(list)
    for partition, value in messages_of(usage_of(rows), 3):
        for event in map(UsageEvent.model_validate, json.loads(value)):
            found[event.user, event.client_id].append((partition, event))
    for at, (user, client_id) in enumerate(NAMES):
        partitions = {partition for partition, _ in found[user, client_id]}
        assert partitions <= {CLIENTS[at].partition(3)}
        assert [event for _, event in found[user, client_id]] == [
            UsageEvent(
                event_time_ms=row[1], user=user, client_id=client_id, broker_id="7", request_count=0,
                produced_bytes=row[2], fetched_bytes=row[3], io_time_ns=row[4],
            )
            for row in rows
            if row[0] == at
        ]  # fmt: skip


class Publishing:
    """A publisher that has taken over, and its clock."""

    def __init__(self, memory_broker: UsageBroker) -> None:
        self.topic = MemoryUsageTopic(memory_broker)
        self.publisher = UsagePublisher(self.topic, "usage at b:1")
        self.publisher.take_over()
        self.now_ms = 0

    def publish(self, number: int) -> bool:
        """A batch of one event."""
        self.now_ms += 10_000
        message = Message(0, b'[{"client_id":"c%d"}]' % number)
        return self.publisher.publish([message], 1, self.now_ms)


@pytest.fixture
def memory_broker() -> UsageBroker:
    return UsageBroker()


def test_a_second_meter_ends_the_first(memory_broker: UsageBroker) -> None:
    first = Publishing(memory_broker)
    first.publish(1)
    second = Publishing(memory_broker)

    assert not first.publish(2)
    with pytest.raises(Conflict, match="another meter of scrapes has taken over"):
        first.publish(2)

    assert second.publish(2)
    assert second.topic.opened == 1, "the one that ends does not disturb the other"
    assert memory_broker.client_ids() == ["c1", "c2"]


def test_a_meter_that_starts_while_the_other_takes_the_topic_back_wins_in_the_end(memory_broker: UsageBroker) -> None:
    first = Publishing(memory_broker)
    first.publish(1)
    second = MemoryUsageTopic(memory_broker)
    second.fail_next = "too old"  # the first one has opened the topic again, and stores a batch
    publisher = UsagePublisher(second, "usage at b:1")

    publisher.take_over()

    assert second.opened == 2
    assert not first.publish(2)
    with pytest.raises(Conflict):
        first.publish(2)


def test_while_the_broker_is_away_tries_are_rare(memory_broker: UsageBroker) -> None:
    meter = Publishing(memory_broker)
    meter.publish(1)
    memory_broker.is_away = True
    message, tried = Message(0, b'[{"client_id":"c2"}]'), []
    for now_ms in range(100_000, 112_000, 50):
        before = meter.publisher.counts.failures
        assert not meter.publisher.publish([message], 1, now_ms)
        if meter.publisher.counts.failures > before:
            tried.append(now_ms - 100_000)
    assert tried == [0, 250, 750, 1_750, 3_750, 7_750, 11_750]
    memory_broker.is_away = False
    assert meter.publisher.publish([message], 1, 120_000)
    assert memory_broker.client_ids() == ["c1", "c2"]


class Topic(NamedTuple):
    """A usage topic; each writer is another meter, not opened yet."""

    writer: Callable[[], UsageWriter]
    values: Callable[[], list[Any]]


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def topic(request: pytest.FixtureRequest) -> Topic:
    if request.param == "memory":
        memory = UsageBroker()
        return Topic(lambda: MemoryUsageTopic(memory), memory.events)
    broker, name = request.getfixturevalue("broker"), f"contract.{time.time_ns()}"
    servers = broker.bootstrap_servers
    make_topics(broker, name, f"{name}.marker")

    def writer() -> KafkaUsageTopic:
        made = KafkaUsageTopic(name, f"{name}.marker", ClusterAccess(servers), 60_000)
        request.addfinalizer(made.close)
        return made

    return Topic(writer, lambda: [event for record in read_topic(servers, name) for event in json.loads(record.value)])


def numbered(*numbers: int) -> list[Message]:
    return [Message(0, b"[%d]" % number) for number in numbers]


def test_a_new_writer_fences_the_one_before_and_reading_the_mark_does_not(topic: Topic) -> None:
    first, second = topic.writer(), topic.writer()
    first.open()
    assert second.committed() is None
    first.store(numbered(1), Mark(0, "a"))

    assert second.open() == Mark(0, "a")
    with pytest.raises((TransactionFenced, TransactionUndecided)):
        first.store(numbered(2), Mark(1, "b"))
    second.store(numbered(3), Mark(1, "c"))

    assert first.open() == Mark(1, "c")
    assert topic.values() == [1, 3]


@pytest.mark.broker
@pytest.mark.parametrize("purpose", ["usage", "marker"])
def test_a_missing_topic_is_named_with_the_command_that_makes_it(broker: EmbeddedBroker, purpose: str) -> None:
    there, gone = f"there.{time.time_ns()}", "not-there"
    make_topics(broker, there)
    usage, marker = (gone, there) if purpose == "usage" else (there, gone)
    with pytest.raises(PipelineError, match="does not exist") as refused:
        KafkaUsageTopic(usage, marker, ClusterAccess(broker.bootstrap_servers), 5_000)
    assert f"KQUOTA_KAFKA__{purpose.upper()}_TOPIC={gone} " in refused.value.fix


def test_columns_become_messages_that_are_not_too_large() -> None:
    small, large = ([(at, 5, 1, None, None)] * count for at, count in ((0, 2_500), (4, 50)))
    assert [len(message.value) <= MAX_MESSAGE_BYTES for message in messages_of(usage_of(large), 3)] == [True] * 4
    assert len(messages_of(usage_of(small), 3)) == 3


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("failure", ["lost", "late", "too old"])
def test_a_batch_that_failed_is_stored_once(memory_broker: UsageBroker, failure: Failure, before: int) -> None:
    meter = Publishing(memory_broker)
    for number in range(before):
        meter.publish(number)
    meter.topic.fail_next = failure
    assert [meter.publish(before), meter.publish(before)] == [False, True]
    assert Publishing(memory_broker).publish(before + 1)
    assert memory_broker.client_ids() == [f"c{number}" for number in range(before + 2)]
    assert meter.topic.opened == 2
    assert (meter.publisher.counts.events, meter.publisher.counts.failures) == (before + 1, 1)


def test_messages_and_mark_are_stored_together(topic: Topic) -> None:
    writer = topic.writer()
    assert writer.partition_count == 1
    assert (writer.open(), writer.committed()) == (None, None)  # a new broker creates its offsets topic at open
    writer.store(numbered(1, 2), Mark(0, "first"))
    writer.store([], Mark(1, "none in it"))
    writer.store(numbered(3), Mark(2, "é" * 500))
    writer.close()
    with pytest.raises((TransactionFenced, TransactionUndecided)):
        writer.store(numbered(4), Mark(3, "a"))
    assert topic.writer().open() == writer.open() == Mark(2, "é" * 500)
    assert topic.values() == [1, 2, 3]
