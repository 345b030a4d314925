"""Two real brokers with native quotas, and a stock client: observed by a user that may see quotas and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import BrokerOptions, EmbeddedCluster, plain_sign_in
from pipeline.demo.stock_client import StockProducer, StockWork
from tests.pipeline.meter.kafka_sensor import KafkaSensor
from tests.pipeline.meter.metric_pages import Exporter, exporter, page
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]

BOUND = 200_000.0
USERS = {"alice": "alice-secret", "watcher": "watcher-secret"}
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@contextmanager
def two_brokers(folder: Path) -> Iterator[EmbeddedCluster]:
    """Each has a partition of the topic `data`. Alice may write to it, and the watcher may describe the cluster."""
    options = BrokerOptions(settings=AUTHORIZER, start_timeout_seconds=PATIENCE_SECONDS)
    with EmbeddedCluster([folder / "one", folder / "two"], USERS, options) as cluster:
        admin: Any = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        with closing(admin):
            topic = {"data": {"assignments": {place: [one.node_id] for place, one in enumerate(cluster.brokers)}}}
            admin.create_topics(topic, wait_for_metadata=True)
            data = ResourcePattern(ResourceType.TOPIC, "data")
            itself = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
            admin.create_acls([
                ACL("User:alice", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, data),
                ACL("User:watcher", "*", ACLOperation.DESCRIBE_CONFIGS, ACLPermissionType.ALLOW, itself),
            ])  # fmt: skip
        yield cluster


class Shown:
    """The page of a broker: what its producer sensor of alice has, by Kafka's own rule, of the bytes it has taken."""

    def __init__(self, producer: StockProducer, partition: int) -> None:
        self._producer, self._partition = producer, partition
        self._sensor, self._seen, self._lock = KafkaSensor(), 0, Lock()

    def answer(self, handler: Any) -> None:
        with self._lock:
            rate = self._sensor.rate(wall_ms())
        page(f'kafka_server_produce_byte_rate{{user="alice",client_id=""}} {rate}\n'.encode())(handler)

    def record(self, stopping: Event) -> None:
        """Record what the broker takes, as it takes it."""
        while not stopping.wait(0.02):
            taken = self._producer.sent_bytes[self._partition]
            if taken > self._seen:
                with self._lock:
                    self._sensor.record(taken - self._seen, wall_ms())
                self._seen = taken


def state_of(cluster: EmbeddedCluster) -> tuple[list[str], list[str]]:
    """The topics and quotas of a cluster."""
    admin: Any = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    with closing(admin), NativeQuotas(ClusterAccess(cluster.bootstrap_servers)) as native:
        return sorted(admin.list_topics()), sorted(map(str, native.describe()))


@contextmanager
def exporters(producer: StockProducer) -> Iterator[list[Exporter]]:
    """One for each broker."""
    stopping, pages = Event(), [Shown(producer, place) for place in range(2)]
    threads = [Thread(target=one.record, args=(stopping,)) for one in pages]
    for thread in threads:
        thread.start()
    try:
        with ExitStack() as stack:
            yield [stack.enter_context(exporter(one.answer)) for one in pages]
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def test_a_user_that_may_only_describe_finds_who_gets_twice_its_quota(tmp_path: Path) -> None:
    with two_brokers(tmp_path) as cluster, ExitStack() as stack:
        with NativeQuotas(ClusterAccess(cluster.bootstrap_servers)) as native:
            assert not native.alter({NativeEntity.of_row("alice", ""): {"producer_byte_rate": BOUND}})
        options = plain_sign_in(cluster.sasl_bootstrap_servers, "alice", USERS["alice"]) | {"client_id": "etl"}
        producer = StockProducer(StockWork("produce", "data", (0.5, 0.5), 6 * BOUND, 40, options), Event())
        stack.callback(producer.close)
        served = stack.enter_context(exporters(producer))
        before = state_of(cluster)
        producer.start()
        done = observed(cluster, tmp_path, served)
        assert (done.returncode, done.stderr.count("Fix:")) == (0, 0), done.stderr
        assert state_of(cluster) == before
    found = json.loads((tmp_path / "found.json").read_text())
    (alice,) = found["over_quota"]
    assert (alice["user"], alice["quota_type"], alice["bound"]) == ("alice", "producer_byte_rate", BOUND)
    assert 1.6 < alice["times"] < 2.6
    assert set(alice["by_broker"]) == {"1", "2"}
    assert [one["user"] for one in found["would_be_held"]] == ["alice"]
    assert list(found["sources"].values()) == ["answers", "answers"]
    assert "alice/*" in done.stdout
    assert alice["reason"] in (tmp_path / "found.html").read_text()
    assert found["next"][-1] in done.stdout


def observed(cluster: EmbeddedCluster, folder: Path, served: list[Exporter]) -> "subprocess.CompletedProcess[str]":
    """The command, in a process of its own, as the watcher."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login = f'{module} required username="watcher" password="{USERS["watcher"]}";'
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    file = folder / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    targets = ",".join(f"{place}={one.url}" for place, one in enumerate(served, 1))
    words = ["observe", "--bootstrap-server", cluster.sasl_bootstrap_servers, "--command-config", str(file)]
    words += ["--targets", targets, "--minutes", "0.7"]
    words += ["--json", str(folder / "found.json"), "--page", str(folder / "found.html")]
    command = [sys.executable, "-m", "pipeline.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
