"""Shards publish to one topic: each goes on after its own records, and readers see the newest of every client."""

import time
from typing import Any

import pytest
from kafka import KafkaAdminClient

from pipeline.clock import Moment
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Conflict
from pipeline.gate.throttle_state import ThrottleState
from pipeline.throttle.publisher import Publisher, TopicEnd
from pipeline.throttle.topic import KafkaThrottleTopic
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord
from tests.fakes.outbox import MemoryOutbox
from tests.pipeline.throttle.factories import record
from tests.topic_reading import read_topic

pytestmark = pytest.mark.broker

FIRST, SECOND = "nightly-0of2", "nightly-1of2"


def test_each_shard_goes_on_after_its_own_records(broker: EmbeddedBroker) -> None:
    name, servers = f"shared.{time.time_ns()}", broker.bootstrap_servers
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)
    create_topics(admin, topic_specs(1, 1_000, throttle_topic=name, marker_topic=f"{name}.marker")[1:])
    admin.close()

    def topic(job: str, *others: str) -> KafkaThrottleTopic:
        return KafkaThrottleTopic(job, name, f"{name}.marker", ClusterAccess(servers), 60_000, others=others)

    first, second, stranger = topic(FIRST, SECOND), topic(SECOND, FIRST), topic("nightly")
    assert first.open() is None
    first.publish([record(number, user="alice") for number in range(600)], marker=600)
    assert second.open() is None, "its marker is its own"
    assert second.end() == TopicEnd(-1, ""), "the records of the other shard are not its own"
    second.publish([record(0, user="bob")], marker=1)
    first.publish([record(600, user="alice")], marker=601)
    assert (first.end(), second.end()) == (TopicEnd(600, FIRST), TopicEnd(0, SECOND))
    assert (first.open(), second.open()) == (601, 1), "the one has not fenced the other"

    publisher = Publisher("nightly", "test", MemoryOutbox(), stranger)
    with pytest.raises(Conflict):
        publisher.take_over(-1, Moment(0, 0))

    state = ThrottleState()
    for read in read_topic(servers, name):
        state.apply(ThrottleRecord.from_value(read.value))
    found = {
        user: state.lease_of(ClientKey(record(0).broker_id, user, record(0).client_id)) for user in ("alice", "bob")
    }
    assert {user: lease and lease.record.publish_seq for user, lease in found.items()} == {"alice": 600, "bob": 0}
    for one in (first, second, stranger):
        one.close()
