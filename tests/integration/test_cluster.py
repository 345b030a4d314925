"""An embedded cluster of two brokers, as Kafka clients and operators see it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError

from pipeline.demo.broker import BrokerOptions, EmbeddedBroker, EmbeddedCluster
from pipeline.errors import Conflict
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.broker

TOPIC = "spread"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster([tmp_path / "1", tmp_path / "2"], options=BrokerOptions(request_log=True)) as running:
        yield running


def leaders(admin: Any) -> set[int]:
    """Of the partitions of the topic."""
    return {partition["leader_id"] for partition in admin.describe_topics([TOPIC])[0]["partitions"]}


def members(admin: Any) -> set[int]:
    """The brokers that may lead partitions; none if the client has asked the one that is gone."""
    try:
        return {each["broker_id"] for each in admin.describe_cluster()["brokers"] if not each["is_fenced"]}
    except KafkaError:
        return set()


def has_logged_produces(broker: EmbeddedBroker) -> bool:
    lines = broker.request_log_path.read_text(encoding="utf-8").splitlines()
    return any('"requestApiKeyName":"PRODUCE"' in line and TOPIC in line for line in lines)


def test_both_brokers_lead_partitions_log_their_requests_and_a_killed_one_is_noticed(
    cluster: EmbeddedCluster,
) -> None:
    first, second = cluster.brokers
    admin: Any = KafkaAdminClient(bootstrap_servers=first.bootstrap_servers)
    admin.create_topics({TOPIC: {"num_partitions": 4}}, wait_for_metadata=True)
    producer: Any = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    for partition in range(4):
        producer.send(TOPIC, b"x", partition=partition).get(PATIENCE_SECONDS)
    producer.close()
    assert leaders(admin) == {first.node_id, second.node_id}
    for broker in cluster.brokers:
        wait_until(lambda broker=broker: has_logged_produces(broker), "its requests in its log")  # type: ignore[misc]
    assert cluster.ended() == ()

    assert second.pid is not None
    os.kill(second.pid, signal.SIGKILL)
    wait_until(lambda: cluster.ended() == (second,), "its end")
    assert second.exit_code == -signal.SIGKILL
    wait_until(lambda: members(admin) == {first.node_id}, "it to be fenced")
    admin.close()

    second.stop()
    second.start()
    assert cluster.ended() == ()
    assert first.cluster_id == second.cluster_id


def test_if_one_broker_can_not_start_none_is_left(tmp_path: Path) -> None:
    cluster = EmbeddedCluster([tmp_path / "1", tmp_path / "2"])
    with EmbeddedBroker(tmp_path / "2").reserved(), pytest.raises(Conflict):
        cluster.start()
    assert [broker.pid for broker in cluster.brokers] == [None, None]
