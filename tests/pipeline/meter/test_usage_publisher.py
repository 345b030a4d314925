"""Batches are stored once, whatever becomes of their transactions; a pause is told from a second meter."""

import logging

import pytest

from pipeline.cluster.transactions import Mark
from pipeline.errors import Conflict
from pipeline.meter.usage_messages import Message
from pipeline.meter.usage_topic import UsagePublisher
from tests.fakes.usage_topic import Failure, MemoryUsageTopic, UsageBroker
from tests.log_messages import messages_of


class Meter:
    """A publisher that has taken over, and its clock."""

    def __init__(self, broker: UsageBroker) -> None:
        self.topic = MemoryUsageTopic(broker)
        self.publisher = UsagePublisher(self.topic, "usage at b:1")
        self.publisher.take_over()
        self.now_ms = 0

    def publish(self, number: int) -> bool:
        """A batch of one event."""
        self.now_ms += 10_000
        message = Message(0, b'[{"client_id":"c%d"}]' % number)
        return self.publisher.publish([message], 1, self.now_ms)


@pytest.fixture
def broker() -> UsageBroker:
    return UsageBroker()


def test_the_next_meter_stores_behind_what_the_one_before_has_stored(broker: UsageBroker) -> None:
    first = Meter(broker)
    assert first.publish(1)
    assert first.publish(2)

    assert Meter(broker).publish(3)
    assert broker.client_ids() == ["c1", "c2", "c3"]


@pytest.mark.parametrize(("failure", "opened"), [("lost", 2), ("late", 2), ("too old", 2)])
def test_a_batch_whose_transaction_failed_is_stored_once(broker: UsageBroker, failure: Failure, opened: int) -> None:
    meter = Meter(broker)
    meter.publish(1)
    meter.topic.fail_next = failure

    assert not meter.publish(2)
    assert meter.publish(2)
    assert meter.publish(3)

    assert broker.client_ids() == ["c1", "c2", "c3"]
    assert meter.topic.opened == opened
    assert (meter.publisher.counts.events, meter.publisher.counts.failures) == (3, 1)


@pytest.mark.parametrize("failure", ["lost", "late"])
def test_the_first_batch_of_all_is_stored_once_too(broker: UsageBroker, failure: Failure) -> None:
    meter = Meter(broker)
    meter.topic.fail_next = failure

    assert [meter.publish(1), meter.publish(1)] == [False, True]

    assert broker.client_ids() == ["c1"]


def test_a_second_meter_ends_the_first(broker: UsageBroker) -> None:
    first = Meter(broker)
    first.publish(1)
    second = Meter(broker)

    assert not first.publish(2)
    with pytest.raises(Conflict, match="another meter of scrapes has taken over"):
        first.publish(2)

    assert second.publish(2)
    assert second.topic.opened == 1, "the one that ends does not disturb the other"
    assert broker.client_ids() == ["c1", "c2"]


def test_a_pause_that_a_transaction_did_not_survive_is_not_taken_for_a_second_meter(
    broker: UsageBroker, caplog: pytest.LogCaptureFixture
) -> None:
    meter = Meter(broker)
    meter.publish(1)
    meter.topic.fail_next = "too old"

    with caplog.at_level(logging.WARNING):
        assert [meter.publish(2), meter.publish(2)] == [False, True]

    (told,) = messages_of(caplog, "pipeline.meter.usage_topic")
    assert "a transaction was open for longer than its time-out, or a second meter has started" in told
    assert broker.client_ids() == ["c1", "c2"]


def test_a_meter_that_starts_while_the_other_takes_the_topic_back_wins_in_the_end(broker: UsageBroker) -> None:
    first = Meter(broker)
    first.publish(1)
    second = MemoryUsageTopic(broker)
    second.fail_next = "too old"  # the first one has opened the topic again, and stores a batch
    publisher = UsagePublisher(second, "usage at b:1")

    publisher.take_over()

    assert second.opened == 2
    assert not first.publish(2)
    with pytest.raises(Conflict):
        first.publish(2)


def test_while_the_broker_is_away_tries_are_rare_and_told_now_and_then(
    broker: UsageBroker, caplog: pytest.LogCaptureFixture
) -> None:
    meter = Meter(broker)
    meter.publish(1)
    broker.is_away = True
    message, tried = Message(0, b'[{"client_id":"c2"}]'), []
    with caplog.at_level(logging.WARNING):
        for now_ms in range(100_000, 112_000, 50):
            before = meter.publisher.counts.failures
            assert not meter.publisher.publish([message], 1, now_ms)
            if meter.publisher.counts.failures > before:
                tried.append(now_ms - 100_000)

    assert tried == [0, 250, 750, 1_750, 3_750, 7_750, 11_750]
    told = messages_of(caplog, "pipeline.meter.usage_topic")
    assert len(told) == 2
    assert told[0].startswith("1 usage events are not known to be stored on usage at b:1: ")

    broker.is_away = False
    assert meter.publisher.publish([message], 1, 120_000)
    assert broker.client_ids() == ["c1", "c2"]


@pytest.mark.parametrize("text", ["", "{", "another"])
def test_whatever_mark_is_there_the_next_one_counts_on(broker: UsageBroker, text: str) -> None:
    broker.mark = Mark(3, text)
    assert Meter(broker).publish(1)
    assert broker.mark is not None
    assert broker.mark.number == 5
