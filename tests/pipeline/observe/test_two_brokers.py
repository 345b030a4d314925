"""Two real brokers with native quotas, exporters and stock clients: observed by a user that may only describe."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo import process
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker, EmbeddedCluster, plain_sign_in
from tests.integration.stock_client import StockProducer, StockWork
from tests.pipeline.meter.jmx_exporter import agent_option
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]

BOUND = 200_000.0
CLIENTS = ("alice", "bob")
USERS = {name: f"{name}-secret" for name in (*CLIENTS, "watcher")}
ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "jmx-quotas.yml"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


READS = {"METADATA", "DESCRIBE_CLUSTER", "DESCRIBE_CLIENT_QUOTAS"}


@contextmanager
def two_brokers(folder: Path) -> Iterator[tuple[EmbeddedCluster, str]]:
    """Each has a partition of the topic `data` and an exporter; clients may write, the watcher may describe.

    Gives the cluster and what `--targets` takes.
    """
    options = BrokerOptions(request_log=True, settings=AUTHORIZER, start_timeout_seconds=PATIENCE_SECONDS)
    cluster = EmbeddedCluster([folder / "one", folder / "two"], USERS, options)
    ports = process.free_ports(2)
    for broker, port in zip(cluster.brokers, ports, strict=True):
        broker.options = replace(options, java_options=(agent_option(port, RULES),))
    with cluster:
        admin: Any = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        with closing(admin):
            topic = {"data": {"assignments": {place: [one.node_id] for place, one in enumerate(cluster.brokers)}}}
            admin.create_topics(topic, wait_for_metadata=True)
            data = ResourcePattern(ResourceType.TOPIC, "data")
            itself = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
            admin.create_acls([
                *[ACL(f"User:{user}", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, data) for user in CLIENTS],
                ACL("User:watcher", "*", ACLOperation.DESCRIBE_CONFIGS, ACLPermissionType.ALLOW, itself),
            ])  # fmt: skip
        yield cluster, ",".join(f"{place}=http://127.0.0.1:{port}/metrics" for place, port in enumerate(ports, 1))


def state_of(cluster: EmbeddedCluster) -> tuple[list[str], list[str]]:
    """The topics and quotas of a cluster."""
    admin: Any = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    with closing(admin), NativeQuotas(ClusterAccess(cluster.bootstrap_servers)) as native:
        return sorted(admin.list_topics()), sorted(map(str, native.describe()))


def test_it_finds_who_gets_twice_its_quota_and_writes_nothing(tmp_path: Path) -> None:
    with two_brokers(tmp_path) as (cluster, targets), ExitStack() as stack:
        with NativeQuotas(ClusterAccess(cluster.bootstrap_servers)) as native:
            bounds = {"producer_byte_rate": BOUND}
            assert not native.alter({NativeEntity.of_row(user, ""): bounds for user in CLIENTS})
        wait_until(lambda: len(state_of(cluster)[1]) == len(CLIENTS), "both quotas")
        before = state_of(cluster)
        for user, client_id, bytes_per_second in (("alice", "etl", 6 * BOUND), ("bob", "app", BOUND / 2)):
            options = plain_sign_in(cluster.sasl_bootstrap_servers, user, USERS[user]) | {"client_id": client_id}
            producer = StockProducer(StockWork("produce", "data", (0.5, 0.5), bytes_per_second, 40, options), Event())
            stack.callback(producer.close)
            producer.start()
        done = observed(cluster, tmp_path, targets)
        assert (done.returncode, done.stderr.count("Fix:")) == (0, 0), done.stderr
        assert state_of(cluster) == before
        asked = {api for broker in cluster.brokers for api in apis_of("watcher", broker)}
    assert asked == READS
    live, _, _ = done.stdout.partition("\nobserved ")
    assert "alice/*" in live, done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    (alice,) = found["over_quota"]
    assert (alice["user"], alice["quota_type"], alice["bound"]) == ("alice", "producer_byte_rate", BOUND)
    assert 1.6 < alice["times"] < 2.6
    assert set(alice["by_broker"]) == {"1", "2"}
    assert [one["user"] for one in found["would_be_held"]] == ["alice"]
    assert list(found["sources"].values()) == ["answers", "answers"]
    assert alice["reason"].partition(";")[0] in " ".join(done.stdout.split())
    assert found["next"][-1] in done.stdout


def apis_of(user: str, broker: EmbeddedBroker) -> set[str]:
    """What a user has asked of a broker, by its request log."""
    lines = broker.request_log_path.read_text().splitlines()
    requests = [
        json.loads(line[line.index("{") : line.rindex("}") + 1]) for line in lines if "Completed request" in line
    ]
    return {one["requestHeader"]["requestApiKeyName"] for one in requests if one["principal"] == f"User:{user}"}


def observed(cluster: EmbeddedCluster, folder: Path, targets: str) -> "subprocess.CompletedProcess[str]":
    """The command, for a minute, as the watcher."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login = f'{module} required username="watcher" password="{USERS["watcher"]}";'
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    file = folder / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    words = ["observe", "--bootstrap-server", cluster.sasl_bootstrap_servers, "--command-config", str(file)]
    words += ["--targets", targets, "--minutes", "1"]
    words += ["--json", str(folder / "found.json")]
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli.main", *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
