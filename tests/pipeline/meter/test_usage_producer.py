"""Messages, memory and retries, with a topic that answers when the test says so."""

import json
import logging
from collections.abc import Callable

import pytest

from pipeline.meter.log_follower import LogPosition
from pipeline.meter.usage_producer import RETRY_AFTER_MS, Batching, UsageProducer
from schemas.usage_event import UsageEvent
from tests.log_messages import messages_of


class ManualSink:
    """A topic that answers when the test says so."""

    def __init__(self, partition_count: int = 1) -> None:
        self.partition_count = partition_count
        self.sent: list[tuple[int, bytes]] = []
        self._waiting: list[Callable[[Exception | None], None]] = []

    def send(self, partition: int, value: bytes, done: Callable[[Exception | None], None]) -> None:
        self.sent.append((partition, value))
        self._waiting.append(done)

    def answer(self, error: Exception | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(error)

    def values(self) -> list[list[dict[str, object]]]:
        return [json.loads(value) for _, value in self.sent]


def event(user: str = "alice", client_id: str = "etl") -> UsageEvent:
    return UsageEvent(event_time_ms=1, user=user, client_id=client_id, produced_bytes=5)


def at(offset_bytes: int) -> LogPosition:
    return LogPosition(1, offset_bytes)


def build(sink: ManualSink, **batching: int) -> UsageProducer:
    return UsageProducer(sink, Batching(**batching), "quota.usage.v1 at 127.0.0.1:9092")


def test_a_message_is_an_array_of_at_most_max_events() -> None:
    sink = ManualSink()
    producer = build(sink, max_events=3)

    for offset in range(7):
        producer.add(event(), at(offset), now_ms=0)
    producer.send_open()

    assert [len(value) for value in sink.values()] == [3, 3, 1]
    assert sink.values()[0][0]["user"] == "alice"


@pytest.mark.parametrize(("waited_ms", "messages"), [(99, 0), (100, 1)])
def test_an_event_waits_no_longer_than_the_linger_time(waited_ms: int, messages: int) -> None:
    sink = ManualSink()
    producer = build(sink, linger_ms=100)
    producer.add(event(), at(0), now_ms=1_000)

    producer.pump(1_000 + waited_ms)

    assert len(sink.sent) == messages


def test_a_message_is_closed_before_it_grows_too_large() -> None:
    sink = ManualSink()
    producer = build(sink, max_message_bytes=400)

    for offset in range(10):
        producer.add(event(), at(offset), now_ms=0)
    producer.send_open()

    assert len(sink.sent) > 1
    assert all(len(value) <= 400 for _, value in sink.sent)
    assert sum(len(value) for value in sink.values()) == 10


def test_a_client_always_goes_to_the_same_partition() -> None:
    sink = ManualSink(partition_count=8)
    producer = build(sink, max_events=1)

    for number in range(100):
        producer.add(event(client_id=f"c{number % 20}"), at(number), now_ms=0)

    partitions: dict[object, set[int]] = {}
    for (partition, _), value in zip(sink.sent, sink.values(), strict=True):
        partitions.setdefault(value[0]["client_id"], set()).add(partition)
    assert all(len(of_client) == 1 for of_client in partitions.values())
    assert len(set().union(*partitions.values())) > 4


def test_no_more_events_are_read_until_the_earlier_ones_are_stored() -> None:
    sink = ManualSink()
    producer = build(sink, max_events=1, max_unsent_bytes=100)
    assert producer.has_space

    producer.add(event(), at(0), now_ms=0)
    assert not producer.has_space

    sink.answer()
    producer.pump(now_ms=0)
    assert producer.has_space
    assert producer.unsent_bytes == 0


def test_the_first_unsent_line_is_the_earliest_that_is_not_known_to_be_stored() -> None:
    sink = ManualSink(partition_count=1)
    producer = build(sink, max_events=2)
    assert producer.first_unsent() is None

    for offset in (10, 20, 30):
        producer.add(event(), at(offset), now_ms=0)
    assert producer.first_unsent() == at(10)

    sink.answer()
    producer.pump(now_ms=0)
    assert producer.first_unsent() == at(30)


def test_a_message_that_failed_is_sent_again_after_a_while() -> None:
    sink = ManualSink()
    producer = build(sink, max_events=1)
    producer.add(event(), at(10), now_ms=0)

    sink.answer(RuntimeError("broker away"))
    producer.pump(now_ms=0)
    producer.pump(now_ms=RETRY_AFTER_MS - 1)
    assert len(sink.sent) == 1
    assert producer.first_unsent() == at(10)

    producer.pump(now_ms=RETRY_AFTER_MS)
    assert sink.sent[1] == sink.sent[0]

    sink.answer()
    producer.pump(now_ms=RETRY_AFTER_MS)
    assert producer.first_unsent() is None
    assert (producer.counts.events, producer.counts.messages, producer.counts.failures) == (1, 1, 1)


def test_a_failure_is_logged_once_per_interval_with_its_cause_and_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = ManualSink()
    producer = build(sink, max_events=1)
    with caplog.at_level(logging.WARNING):
        for now_ms in range(0, 4_000, RETRY_AFTER_MS):
            producer.add(event(), at(now_ms), now_ms)
            sink.answer(RuntimeError("broker away"))
            producer.pump(now_ms)

    (message,) = messages_of(caplog, "pipeline.meter.usage_producer")
    assert "not stored on quota.usage.v1 at 127.0.0.1:9092: broker away;" in message
