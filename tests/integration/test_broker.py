"""The embedded broker, and a cluster of two, as Kafka clients and operators see them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
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

TOPIC = "spread"
# A broker that was killed is fenced, and registers again, when its former session has ended.
BACK_SOON = BrokerOptions(java_options=REQUEST_LOG, settings={"broker.session.timeout.ms": "1000"})
ALICE = {"alice": 'se"cr\\et'}


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), ALICE, options=BACK_SOON) as own:
        create_topic(own.bootstrap_servers)
        send(plain_sign_in(own.sasl_bootstrap_servers, "alice", ALICE["alice"]))
        yield own


def create_topic(bootstrap_servers: str, partitions: int = 1) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        admin.create_topics({TOPIC: {"num_partitions": partitions}}, wait_for_metadata=True)


def send(options: dict[str, str], partitions: int = 1) -> None:
    with closing(KafkaProducer(client_id="etl", **options)) as producer:
        for partition in range(partitions):
            producer.send(TOPIC, b"sent", partition=partition).get(timeout=PATIENCE_SECONDS)


def logged_produces(broker: EmbeddedBroker) -> list[str]:
    lines = broker.request_log_path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if '"requestApiKeyName":"PRODUCE"' in line and TOPIC in line]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_data_survive_a_kill_the_address_stays_and_stop_leaves_no_process(own_broker: EmbeddedBroker) -> None:
    address = own_broker.bootstrap_servers
    own_broker.kill()
    own_broker.start()
    assert own_broker.bootstrap_servers == address
    assert [record.value for record in read_topic(address, TOPIC)] == [b"sent"]
    pid = own_broker.pid
    assert pid is not None
    own_broker.stop()
    assert not is_alive(pid)
    assert own_broker.pid is None


def test_the_broker_dies_with_the_process_that_started_it(own_broker: EmbeddedBroker) -> None:
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


def members(admin: Any) -> set[int]:
    """The brokers that may lead partitions; none if the client has asked the one that is gone."""
    try:
        return {each["broker_id"] for each in admin.describe_cluster()["brokers"] if not each["is_fenced"]}
    except KafkaError:
        return set()


@pytest.mark.long
def test_both_brokers_of_a_cluster_lead_and_log_and_a_killed_one_is_fenced(tmp_path: Path) -> None:
    with EmbeddedCluster([tmp_path / "1", tmp_path / "2"], options=BrokerOptions(java_options=REQUEST_LOG)) as cluster:
        first, second = cluster.brokers
        # Else one that stood still for a session leads no partition of the topic.
        with closing(KafkaAdminClient(bootstrap_servers=first.bootstrap_servers)) as admin:
            wait_until(lambda: members(admin) == {first.node_id, second.node_id}, "both brokers")
            create_topic(first.bootstrap_servers, partitions=4)
        send({"bootstrap_servers": cluster.bootstrap_servers}, partitions=4)
        for broker in cluster.brokers:
            wait_until(lambda broker=broker: bool(logged_produces(broker)), "its requests in its log")  # type: ignore[misc]

        assert second.pid is not None
        os.kill(second.pid, signal.SIGKILL)
        wait_until(lambda: second.pid is None, "its end")
        with closing(KafkaAdminClient(bootstrap_servers=first.bootstrap_servers)) as admin:
            wait_until(lambda: members(admin) == {first.node_id}, "it to be fenced")
        second.stop()
        second.start()
        assert first.cluster_id == second.cluster_id


@pytest.mark.long
def test_if_one_broker_can_not_start_none_is_left(tmp_path: Path) -> None:
    cluster = EmbeddedCluster([tmp_path / "1", tmp_path / "2"])
    (tmp_path / "2").mkdir()
    with FileLock(tmp_path / "2" / "broker.lock"), pytest.raises(Conflict):
        cluster.start()
    assert [broker.pid for broker in cluster.brokers] == [None, None]
