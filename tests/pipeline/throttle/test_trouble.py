"""The throttle topic through the troubles of a broker: each is one line, and none needs a new process."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

from pipeline.cluster.acls import Names, acls_of
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error, missing_acls
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import ClusterUnreachable, TransactionUndecided
from pipeline.gate.follower import KafkaFollower
from pipeline.jvm.jars import fetch
from pipeline.throttle.publisher import Marker
from pipeline.throttle.topic import KafkaThrottleTopic
from schemas.throttle_record import ThrottleRecord
from tests.pipeline.throttle.factories import record
from tests.throttle_records import rows_of
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

USAGE, THROTTLE, MARKER = "tr.usage", "tr.throttle", "tr.marker"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker this test may stop."""
    fetch()
    own = EmbeddedBroker(tmp_path / "broker")
    own.start()
    yield own
    own.stop()


def throttle_topic(address: str, timeout_ms: int = 6_000) -> KafkaThrottleTopic:
    return KafkaThrottleTopic("tr", THROTTLE, MARKER, ClusterAccess(address), timeout_ms)


def test_a_broker_that_goes_away_and_comes_back(own_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pipeline")
    address = own_broker.bootstrap_servers
    topic = throttle_topic(address)
    follower = KafkaFollower(address, THROTTLE)
    seen: list[ThrottleRecord] = []
    follower.start(lambda records, _: seen.extend(records))

    # The topics are not there: the follower waits for them.
    wait_until(lambda: "does not exist" in caplog.text, "the follower to say what it waits for")
    assert not follower.wait_until_caught_up(0)
    assert [line for line in caplog.messages if "does not exist" in line] == [
        "the throttle topic cannot be followed, new throttles are not seen: "
        f"topic '{THROTTLE}' does not exist at {address}"
    ]
    admin: Any = KafkaAdminClient(bootstrap_servers=address)
    rights = acls_of("job", Names(USAGE, THROTTLE, MARKER, "tr"))
    assert missing_acls(admin, rights) == [], "of topics, group and transactional id that are not there"
    create_topics(admin, topic_specs(1, 1_000, USAGE, THROTTLE, MARKER))
    assert missing_acls(admin, rights) == [], "without an authorizer everything is allowed"
    admin.close()

    assert topic.open() is None
    topic.publish(rows_of(record(0)), marker=Marker(1))
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)

    own_broker.stop()
    with pytest.raises(TransactionUndecided) as undecided:
        topic.publish(rows_of(record(1)), marker=Marker(2))
    assert "\n" not in str(undecided.value)
    with pytest.raises(ClusterUnreachable, match=f"no Kafka broker answers at {address}: connection refused"):
        topic.open()

    own_broker.start()
    assert topic.open() == Marker(1), "what did not commit is not there"
    topic.publish(rows_of(record(1)), marker=Marker(2))
    topic.close()
    assert follower.wait_until_caught_up(PATIENCE_SECONDS)
    wait_until(lambda: [told_of.publish_seq for told_of in seen][-1:] == [1], "the record that was published again")
    follower.close()


def test_the_marker_does_not_move_past_a_record_that_has_expired(own_broker: EmbeddedBroker) -> None:
    address = own_broker.bootstrap_servers
    admin: Any = KafkaAdminClient(bootstrap_servers=address)
    create_topics(admin, topic_specs(1, 1_000, USAGE, THROTTLE, MARKER))
    topic = throttle_topic(address, timeout_ms=2_000)
    assert topic.open() is None
    topic.publish(rows_of(record(0)), marker=Marker(1))

    # The broker answers everything but the record itself, as one does that is gone for the wrong seconds.
    producer: Any = topic._transactions._producer
    producer._accumulator.muted.add(TopicPartition(THROTTLE, 0))
    producer._accumulator.config["delivery_timeout_ms"] = 500  # it expires before the transaction does
    with pytest.raises(TransactionUndecided):
        topic.publish(rows_of(record(1), record(2)), marker=Marker(3))

    assert topic.open() == Marker(1)
    topic.publish(rows_of(record(1), record(2)), marker=Marker(3))
    assert topic.open() == Marker(3)
    assert topic.end().publish_seq == 2
    admin.close()
    topic.close()


def test_a_producer_whose_transaction_failed_leaves_no_thread_and_no_record_behind(own_broker: EmbeddedBroker) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=own_broker.bootstrap_servers)
    create_topics(admin, topic_specs(1, 1_000, USAGE, THROTTLE, MARKER))
    admin.close()
    topic = throttle_topic(own_broker.bootstrap_servers, timeout_ms=2_000)
    assert topic.open() is None
    producer: Any = topic._transactions._producer
    sender, unsent = producer._sender, producer._accumulator

    # The record is not sent, and does not expire before its producer is dropped.
    unsent.muted.add(TopicPartition(THROTTLE, 0))
    unsent.config["delivery_timeout_ms"] = 10 * PATIENCE_SECONDS * 1_000
    with pytest.raises(TransactionUndecided):
        topic.publish(rows_of(record(1)), marker=Marker(2))

    sender.join(PATIENCE_SECONDS)
    assert not sender.is_alive()
    assert not unsent.has_incomplete
    topic.close()


def test_a_call_that_a_broker_no_longer_answers_is_told(own_broker: EmbeddedBroker) -> None:
    access = ClusterAccess(own_broker.bootstrap_servers)
    with access.admin() as admin:
        own_broker.kill()
        with (
            pytest.raises(ClusterUnreachable, match="a call ends with ") as caught,
            as_cluster_error(access.bootstrap_servers),
        ):
            admin.describe_topics([THROTTLE])
    assert "\n" not in str(caught.value)
