"""A cluster of three brokers on hosts of its own, and what may happen to it.

KRaft, each node broker and controller, replication factor 3, min ISR 2. Sessions and elections take as long as on the
demo's broker: a broker that is away for 3 s is fenced.
"""

import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError

from pipeline import process
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.connecting import ClusterAccess, open_client
from pipeline.demo.broker import CONTROLLER, BrokerOptions, broker_java, server_properties
from pipeline.errors import PipelineError
from pipeline.jvm.java import find_java
from tests.faults.generator import QUIET_CLIENTS
from tests.faults.network import Network
from tests.faults.rig import Rig
from tests.soak.small_disk import SmallDisk
from tests.waiting import PATIENCE_SECONDS, wait_until

BROKERS: Final = ("broker-1", "broker-2", "broker-3")
JOB, CLIENTS = "job", "clients"
_PORT, _CONTROLLER_PORT = 9092, 9093
_COPIES: Final = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    **{f"{topic}.replication.factor": "3" for topic in _COPIES},
    **{f"{topic}.min.isr": "2" for topic in _COPIES[1:]},
    # The verifier reads both topics from their first record.
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": "86400000",
}
_JAVA: Final = ("-Xms64m", "-Xmx256m")
STOP_SECONDS: Final = 20.0
_CONNECTION_SECONDS: Final = 2.0


class Node:
    """One of the brokers: its process, which may be killed, and its folder, which stays."""

    def __init__(self, network: Network, number: int, folder: Path, cluster_id: str) -> None:
        self.host = BROKERS[number]
        self._network, self._folder = network, folder
        voters = [f"{name}@{network.address(host)}:{_CONTROLLER_PORT}" for name, host in enumerate(BROKERS, 1)]
        own = f"PLAINTEXT://{network.address(self.host)}:{_PORT}"
        settings = {
            **_SETTINGS,
            "node.id": str(number + 1),
            "controller.quorum.voters": ",".join(voters),
            "controller.quorum.bootstrap.servers": ",".join(voter.partition("@")[2] for voter in voters),
            "listeners": f"{own},CONTROLLER://{network.address(self.host)}:{_CONTROLLER_PORT}",
            "advertised.listeners": own,
        }
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir()
        self._java = broker_java(BrokerOptions(java_options=_JAVA), folder / "logs")
        self._config = str(folder / "server.properties")
        properties = server_properties(folder / "data", {CONTROLLER: _CONTROLLER_PORT}, {}, settings)
        Path(self._config).write_text(properties, encoding="utf-8")
        self._process = self._spawn("kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config")
        self._is_formatted = False

    def start(self) -> None:
        """Start it, once its folder is formatted; returns at once."""
        code = self._process.wait(PATIENCE_SECONDS)
        assert self._is_formatted or code == 0, f"{self.host}: its folder is not formatted: {self.console}"
        self._is_formatted = True
        self._process = self._spawn("kafka.Kafka")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def console(self) -> str:
        """All that its processes have printed."""
        return (self._folder / "logs" / "console.log").read_text(encoding="utf-8")

    def stop(self) -> None:
        process.terminate(self._process, STOP_SECONDS)

    def kill(self) -> None:
        process.kill(self._process)

    def _spawn(self, *main: str) -> Any:
        with (self._folder / "logs" / "console.log").open("ab") as console, self._network.inside(self.host):
            return process.spawn([*self._java, *main, self._config], cwd=self._folder, output=console)


class Scene:
    """All that a fault can reach.

    Attributes:
        disk: The disk of the last broker; None if this machine gives no small one.
        cut_seconds: How long a fault lasts.
    """

    def __init__(self, network: Network, folder: Path, cut_seconds: float, disk: SmallDisk | None) -> None:
        self.network, self.cut_seconds, self.disk = network, cut_seconds, disk
        cluster_id = uuid.uuid4().hex[:22]
        self.nodes = [Node(network, number, folder / host, cluster_id) for number, host in enumerate(BROKERS)]
        self.servers = ",".join(f"{network.address(host)}:{_PORT}" for host in BROKERS)
        self.rigged: Rig

    def leader(self, topic: str) -> Node:
        """The node that leads the first partition of a topic."""
        with self._admin() as admin:
            leader_id: int = admin.describe_topics([topic])[0]["partitions"][0]["leader_id"]
        return self.nodes[leader_id - 1]

    def await_whole(self) -> None:
        """Wait until all brokers are members, and each partition has all its replicas in sync."""
        wait_until(self._is_whole, "all replicas of the cluster to be in sync")

    def _is_whole(self) -> bool:
        for node in self.nodes:
            assert not node.has_ended, f"{node.host} has ended: {node.console}"
        try:
            with self._admin() as admin:
                members = [one for one in admin.describe_cluster()["brokers"] if not one["is_fenced"]]
                topics = admin.describe_topics() if len(members) == len(BROKERS) else None
        except KafkaError:
            return False
        parts = [part for topic in topics or () for part in topic["partitions"]]
        return topics is not None and all(len(part["isr_nodes"]) == len(BROKERS) for part in parts)

    def _admin(self) -> "closing[Any]":
        patience = {"bootstrap_timeout_ms": 5_000, "request_timeout_ms": 5_000}
        return closing(KafkaAdminClient(bootstrap_servers=self.servers, **patience))

    def close(self) -> None:
        for node in self.nodes:
            node.kill()


# The faults. Each returns when nothing is broken any more, that is the heal, and perhaps a note about it.


def _reaches(scene: Scene, source: str, host: str) -> bool:
    """Whether a connection from one host to a broker can be made."""
    with scene.network.inside(source), suppress(OSError):
        socket.create_connection((scene.network.address(host), _PORT), _CONNECTION_SECONDS).close()
        return True
    return False


def _apart(scene: Scene, fault: AbstractContextManager[None], source: str, host: str) -> None:
    """For the time of a fault, no connection from one host to a broker can be made that could be before."""
    wait_until(lambda: _reaches(scene, source, host), "a connection before the fault")
    with fault:
        assert not _reaches(scene, source, host), f"{source} still reaches {host}"
        time.sleep(scene.cut_seconds)


def _cut(scene: Scene, host: str) -> None:
    source, broker = (JOB, BROKERS[0]) if host == JOB else (CLIENTS, host)
    _apart(scene, scene.network.cut(host), source, broker)


def cut_usage_leader(scene: Scene) -> None:
    _cut(scene, scene.leader(scene.rigged.job.usage_topic).host)


def cut_throttle_leader(scene: Scene) -> None:
    _cut(scene, scene.leader(f"{scene.rigged.job.name}.throttle").host)


def cut_coordinator(scene: Scene) -> None:
    _cut(scene, scene.leader("__transaction_state").host)


def mute_coordinator(scene: Scene) -> None:
    """The coordinator gets what the job asks, and does it; no answer comes back. For all others it is there."""
    host = scene.leader("__transaction_state").host
    _apart(scene, scene.network.mute(host, JOB), JOB, host)


def cut_job(scene: Scene) -> None:
    _cut(scene, JOB)


def kill_leader(scene: Scene) -> None:
    node = scene.leader(f"{scene.rigged.job.name}.throttle")
    node.kill()
    time.sleep(scene.cut_seconds)
    node.start()


def rolling_restart(scene: Scene) -> None:
    for node in scene.nodes:
        node.stop()
        node.start()
        scene.await_whole()


def fill_disk(scene: Scene) -> str | None:
    """The last broker can write nothing; what is left of it is started again with room on its disk."""
    if scene.disk is None:
        return "not done: no small disk can be mounted"
    with scene.disk.filled():
        time.sleep(scene.cut_seconds)
    scene.nodes[-1].kill()
    scene.nodes[-1].start()
    return None


def slow_link(scene: Scene) -> str:
    with scene.network.slow(scene.leader(f"{scene.rigged.job.name}.throttle").host) as how:
        time.sleep(scene.cut_seconds if how else 0)
        return how or "not done: this kernel has neither netem nor tbf"


FAULTS: Final[dict[str, tuple[str, Callable[[Scene], str | None]]]] = {
    "usage-leader": ("leader of a usage partition cut off", cut_usage_leader),
    "throttle-leader": ("leader of the throttle topic cut off", cut_throttle_leader),
    "coordinator": ("transaction coordinator cut off", cut_coordinator),
    "mute-coordinator": ("coordinator's answers to the job lost", mute_coordinator),
    "job": ("job cut off from all brokers", cut_job),
    "kill": ("leader of the throttle topic: kill −9", kill_leader),
    "rolling": ("rolling restart of all three", rolling_restart),
    "disk": ("disk of one broker full", fill_disk),
    "slow": ("link of the throttle topic's leader slow", slow_link),
}


# What else runs on the cluster.

CLIENT_ID: Final = "etl"
STOCK: Final = {"metadata_max_age_ms": 1_000, "request_timeout_ms": 3_000, "reconnect_backoff_max_ms": 1_000}
"""Settings of a client that finds a new leader soon: what it waits for is the cluster and the job."""
SYNCED: Final = "synced"
_PEER_TOPIC, PEER_SUMS = "peer.usage", "peer.sums"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def quota_sync(scene: Scene, folder: Path) -> Iterator[None]:
    """`kquota quotas sync` on the clients' host for the rows of one user; its log is in the folder."""
    scene.rigged.set_quotas(user=SYNCED)
    command = [sys.executable, "-m", "pipeline.cli.main", "quotas", "sync", "--user", SYNCED, "--period", "1000"]
    with (folder / "sync.log").open("wb") as log:
        environment = {**os.environ, **scene.rigged.job.environment}
        running = process.spawn(command, cwd=Path.cwd(), output=log, env=environment)
    try:
        yield
        assert running.poll() is None, "the sync has ended: " + (folder / "sync.log").read_text(encoding="utf-8")
    finally:
        process.terminate(running, STOP_SECONDS)


def synced_rate(servers: str) -> float:
    """The producer's rate that the brokers enforce for that user; 0 without one, or without an answer."""
    try:
        with NativeQuotas(ClusterAccess(servers)) as native:
            found = {quota.entity: quota.values for quota in native.describe()}
    except (PipelineError, KafkaError):
        return 0.0
    return found.get(NativeEntity.of_row(SYNCED, ""), {}).get("producer_byte_rate", 0.0)


# Kafka Streams under the same fault, on the job's host: sums of its own load, exactly once.


@contextmanager
def streams_peer(scene: Scene, folder: Path, class_path: str) -> Iterator[None]:
    folder.mkdir()
    topics = {topic: {"num_partitions": 4, "replication_factor": -1} for topic in (_PEER_TOPIC, PEER_SUMS)}
    with closing(KafkaAdminClient(bootstrap_servers=scene.servers)) as admin:
        admin.create_topics(topics, wait_for_metadata=True)
    command = [str(find_java().executable), "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]
    command += [class_path, "StreamsPeer", scene.servers, _PEER_TOPIC, PEER_SUMS, "object", str(folder)]
    stop = Event()
    load = Thread(target=_load_peer, args=(scene.servers, stop), daemon=True)
    with (folder / "peer.log").open("wb") as log, scene.network.inside(JOB):
        running = process.spawn([*command, "peer"], cwd=folder, output=log)
    load.start()
    try:
        yield
    finally:
        stop.set()
        load.join()
        process.terminate(running, STOP_SECONDS)


def _load_peer(servers: str, stop: Event) -> None:
    """An event of each of some clients, twice a second."""
    producer: Any = open_client(KafkaProducer, servers, delivery_timeout_ms=60_000, **STOCK)
    while not stop.wait(0.5):
        for number in range(QUIET_CLIENTS):
            event = {"event_time_ms": now_ms(), "user": f"quiet-{number}", "client_id": CLIENT_ID, "request_count": 1}
            producer.send(_PEER_TOPIC, json.dumps(event).encode(), key=f"quiet-{number}".encode())
    producer.close(timeout=5)
