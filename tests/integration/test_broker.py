"""The embedded broker, and a cluster of two, as Kafka clients and operators see them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError

from pipeline.demo.broker import REQUEST_LOG, BrokerOptions, EmbeddedBroker, EmbeddedCluster, plain_sign_in
from pipeline.errors import Conflict, PipelineError
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that a test may start, kill and stop."""
    # When it was killed, it registers again when its former session has ended.
    back_soon = BrokerOptions(java_options=REQUEST_LOG, settings={"broker.session.timeout.ms": "1000"})
    own = EmbeddedBroker(tmp_path_factory.mktemp("broker"), {"alice": 'se"cr\\et'}, options=back_soon)
    yield own
    own.stop()


def client(kind: Callable[..., Any], **options: Any) -> Any:
    """A client of kafka-python. The library has no types."""
    return kind(**options)


def create_topic(bootstrap_servers: str, topic: str) -> None:
    admin = client(KafkaAdminClient, bootstrap_servers=bootstrap_servers)
    try:
        admin.create_topics({topic: {"num_partitions": 1}}, wait_for_metadata=True)
    finally:
        admin.close()


def sasl_producer(bootstrap_servers: str, user: str, password: str, bootstrap_timeout_ms: int = 120_000) -> Any:
    return client(
        KafkaProducer,
        **plain_sign_in(bootstrap_servers, user, password),
        client_id="etl",
        bootstrap_timeout_ms=bootstrap_timeout_ms,
    )


def send(producer: Any, topic: str, value: bytes) -> None:
    try:
        producer.send(topic, value).get(timeout=PATIENCE_SECONDS)
    finally:
        producer.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_named_user_signs_in_and_the_request_log_names_it(own_broker: EmbeddedBroker) -> None:
    own_broker.start()
    create_topic(own_broker.bootstrap_servers, "named-user")
    send(sasl_producer(own_broker.sasl_bootstrap_servers, "alice", 'se"cr\\et'), "named-user", b"x" * 1_000)

    def produces() -> list[str]:
        lines = own_broker.request_log_path.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if '"requestApiKeyName":"PRODUCE"' in line and "named-user" in line]

    wait_until(lambda: bool(produces()), "the produce request in the request log")
    produce = produces()[-1]  # the first one may have come before the broker led the new partition
    assert '"principal":"User:alice"' in produce
    assert '"clientId":"etl"' in produce
    assert '"recordsSizeInBytes"' in produce


def test_data_survive_a_kill_and_the_ports_stay(own_broker: EmbeddedBroker) -> None:
    own_broker.start()
    create_topic(own_broker.bootstrap_servers, "kept")
    send(sasl_producer(own_broker.sasl_bootstrap_servers, "alice", 'se"cr\\et'), "kept", b"before the kill")
    address = own_broker.bootstrap_servers
    own_broker.kill()
    own_broker.start()
    assert own_broker.bootstrap_servers == address
    assert [record.value for record in read_topic(address, "kept")] == [b"before the kill"]


def test_stop_leaves_no_process(own_broker: EmbeddedBroker) -> None:
    own_broker.start()
    pid = own_broker.pid
    assert pid is not None
    own_broker.stop()
    assert not is_alive(pid)
    assert own_broker.pid is None


def test_the_broker_dies_with_the_process_that_started_it(own_broker: EmbeddedBroker) -> None:
    own_broker.stop()
    program = (
        "import sys, time; from pathlib import Path; from pipeline.demo.broker import EmbeddedBroker\n"
        "broker = EmbeddedBroker(Path(sys.argv[1])); broker.start(); print(broker.pid, flush=True); time.sleep(3_600)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program, str(own_broker.directory)], stdout=subprocess.PIPE, text=True
    )
    with driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert is_alive(pid)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    wait_until(lambda: not is_alive(pid), "the broker to end")


def test_a_second_broker_on_the_same_directory_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(Conflict, match=f"is in use by process {broker.pid}") as refused:
        EmbeddedBroker(broker.directory).start()
    assert refused.value.exit_code == 4
    assert broker.pid is not None


def test_a_port_that_is_taken_is_named_with_its_listener(broker: EmbeddedBroker, tmp_path: Path) -> None:
    taken = int(broker.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(Conflict, match=f"port {taken} of listener 'SASL_PLAINTEXT'"):
        EmbeddedBroker(tmp_path, ports={"SASL_PLAINTEXT": taken}).start()


def test_a_broker_that_cannot_start_tells_why_in_one_line(tmp_path: Path) -> None:
    options = BrokerOptions(settings={"num.io.threads": "none"})
    with pytest.raises(PipelineError, match=r"num\.io\.threads") as failed:
        EmbeddedBroker(tmp_path, options=options).start()
    assert "\n" not in str(failed.value)
    assert str(tmp_path) in str(failed.value)


TOPIC = "spread"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster([tmp_path / "1", tmp_path / "2"], options=BrokerOptions(java_options=REQUEST_LOG)) as running:
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


def test_both_brokers_lead_partitions_log_their_requests_and_a_killed_one_is_fenced(
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

    assert second.pid is not None
    os.kill(second.pid, signal.SIGKILL)
    wait_until(lambda: second.pid is None, "its end")
    wait_until(lambda: members(admin) == {first.node_id}, "it to be fenced")
    admin.close()

    second.stop()
    second.start()
    assert first.cluster_id == second.cluster_id


def test_if_one_broker_can_not_start_none_is_left(tmp_path: Path) -> None:
    cluster = EmbeddedCluster([tmp_path / "1", tmp_path / "2"])
    (tmp_path / "2").mkdir()
    with FileLock(tmp_path / "2" / "broker.lock"), pytest.raises(Conflict):
        cluster.start()
    assert [broker.pid for broker in cluster.brokers] == [None, None]
