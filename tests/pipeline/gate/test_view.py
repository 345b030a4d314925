"""Until when a client is blocked, by the topic."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.clock import wall_ms
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.gate.gate import Gate
from pipeline.gate.throttle_state import ThrottleView
from schemas.throttle_record import ThrottleRecord
from tests.forking import in_a_child
from tests.pipeline.throttle.factories import record
from tests.waiting import PATIENCE_SECONDS, never, wait_until


@pytest.mark.usefixtures("impatient")
def test_a_view_that_reaches_no_broker_blocks_no_client() -> None:
    view = ThrottleView("127.0.0.1:1")
    view.start()

    assert not view.wait_until_caught_up(0.2)
    assert view.remaining_ms("alice", "etl", now_ms=0) == 0

    view.close(0.1)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Iterator[str]:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    name = f"view.{time.time_ns()}"
    create_topics(admin, [TopicSpec(name, "throttle", 2, "any", {"cleanup.policy": "compact,delete"}, {})])
    yield name
    admin.close()


@pytest.mark.broker
def test_the_view_knows_old_and_new_records_once_they_are_committed(broker: EmbeddedBroker, topic: str) -> None:
    producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()

    def publish(each: ThrottleRecord) -> None:
        producer.send(topic, key=each.key(), value=each.to_value(), headers=each.headers("kquota")).get(
            PATIENCE_SECONDS
        )

    producer.begin_transaction()
    publish(record(1, 5_000))
    producer.commit_transaction()
    view = ThrottleView(broker.bootstrap_servers, topic, cluster="c")
    view.start()
    assert view.wait_until_caught_up(PATIENCE_SECONDS)
    assert view.blocked_until_ms("alice", "etl") == 5_000

    producer.begin_transaction()
    publish(record(2, 9_000))
    producer.flush()
    assert never(lambda: view.blocked_until_ms("alice", "etl") != 5_000, for_seconds=1.0)
    producer.abort_transaction()

    producer.begin_transaction()
    producer.send(topic, key=b"x", value=b"not json").get(PATIENCE_SECONDS)
    producer.send(topic, key=b"y", value=None).get(PATIENCE_SECONDS)
    publish(record(3, 7_000))
    producer.commit_transaction()
    wait_until(lambda: view.blocked_until_ms("alice", "etl") == 7_000, "the record of the committed transaction")
    assert view.unreadable == 1

    view.close()
    producer.close()


@pytest.mark.broker
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_view_and_a_gate_follow_the_topic_in_a_child_and_in_its_parent(broker: EmbeddedBroker, topic: str) -> None:
    view = ThrottleView(broker.bootstrap_servers, topic, cluster="c")
    view.start()
    gate = Gate.connect(broker.bootstrap_servers, topic=topic, cluster="c")
    assert view.wait_until_caught_up(PATIENCE_SECONDS)
    assert gate.wait_until_caught_up(int(PATIENCE_SECONDS * 1_000))
    until_ms = wall_ms() + 1_000_000

    def both_know_it() -> bool:
        return view.blocked_until_ms("alice", "etl") == until_ms and gate.throttle_of("alice", "etl") is not None

    def publish_and_read() -> str:
        producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        throttle = record(1, until_ms, throttle_time_ms=1_000_000)
        producer.send(topic, key=throttle.key(), value=throttle.to_value()).get(PATIENCE_SECONDS)
        wait_until(both_know_it, "the record in the child", PATIENCE_SECONDS / 2)
        return gate.state

    assert in_a_child(publish_and_read) == "following"
    wait_until(both_know_it, "the record in the parent")
    gate.close()
    view.close()
