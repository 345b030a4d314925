"""The throttle topic through the troubles of a broker: each is one line, and none needs a new process."""

import logging
import time
from collections.abc import Iterator
from contextlib import closing
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
from tests.throttle_records import record, rows_of
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.broker


def names(prefix: str) -> Names:
    return Names(f"{prefix}.usage", f"{prefix}.throttle", f"{prefix}.marker", prefix)


def make_topics(address: str, of: Names) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=address)
    with closing(admin):
        create_topics(admin, topic_specs(1, 1_000, of.usage_topic, of.throttle_topic, of.marker_topic))


def throttle_topic(address: str, of: Names, timeout_ms: int = 6_000) -> KafkaThrottleTopic:
    return KafkaThrottleTopic(of.job, of.throttle_topic, of.marker_topic, ClusterAccess(address), timeout_ms)


@pytest.mark.long
def test_a_broker_that_goes_away_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pipeline")
    fetch()
    with EmbeddedBroker(tmp_path / "broker") as own_broker:
        address, of = own_broker.bootstrap_servers, names("tr")
        access, topic = ClusterAccess(address), throttle_topic(address, of)
        follower = KafkaFollower(address, of.throttle_topic)
        seen: list[ThrottleRecord] = []
        follower.start(lambda records, _: seen.extend(records))

        # The topics are not there: the follower waits for them.
        wait_until(lambda: "does not exist" in caplog.text, "the follower to say what it waits for")
        assert not follower.wait_until_caught_up(0)
        with access.admin() as admin:
            assert missing_acls(admin, acls_of("job", of)) == [], "of topics, group and id that are not there"
            make_topics(address, of)
            assert missing_acls(admin, acls_of("job", of)) == [], "without an authorizer everything is allowed"

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
        wait_until(lambda: [told_of.publish_seq for told_of in seen][-1:] == [1], "the record that was published again")
        follower.close()

        with access.admin() as admin:
            own_broker.kill()
            with pytest.raises(ClusterUnreachable, match="a call ends with ") as caught, as_cluster_error(address):
                admin.describe_topics([of.throttle_topic])
            assert "\n" not in str(caught.value)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Iterator[KafkaThrottleTopic]:
    """One that has published a record, on a broker that will not get the next ones until it is opened again."""
    of = names(f"tr.{time.time_ns()}")
    make_topics(broker.bootstrap_servers, of)
    topic = throttle_topic(broker.bootstrap_servers, of, timeout_ms=2_000)
    with closing(topic):
        assert topic.open() is None
        topic.publish(rows_of(record(0)), marker=Marker(1))
        unsent: Any = topic._transactions._producer._accumulator
        unsent.muted.add(TopicPartition(of.throttle_topic, 0))
        yield topic


def test_the_marker_does_not_move_past_a_record_that_has_expired(topic: KafkaThrottleTopic) -> None:
    # The broker answers everything but the record itself, as one does that is gone for the wrong seconds.
    topic._transactions._producer._accumulator.config["delivery_timeout_ms"] = 500  # before the transaction does
    with pytest.raises(TransactionUndecided):
        topic.publish(rows_of(record(1), record(2)), marker=Marker(3))

    assert topic.open() == Marker(1)
    topic.publish(rows_of(record(1), record(2)), marker=Marker(3))
    assert topic.open() == Marker(3)
    assert topic.end().publish_seq == 2


def test_a_producer_whose_transaction_failed_leaves_no_thread_and_no_record_behind(topic: KafkaThrottleTopic) -> None:
    producer: Any = topic._transactions._producer
    sender, unsent = producer._sender, producer._accumulator
    unsent.config["delivery_timeout_ms"] = 10 * PATIENCE_SECONDS * 1_000  # not before its producer is dropped
    with pytest.raises(TransactionUndecided):
        topic.publish(rows_of(record(1)), marker=Marker(2))

    sender.join(PATIENCE_SECONDS)
    assert not sender.is_alive()
    assert not unsent.has_incomplete
