"""Real Kafka brokers on this machine: a JVM and a folder each, 127.0.0.1 only. For the demo, tests and benchmarks."""

import base64
import json
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Final, Self

from filelock import FileLock, Timeout
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from pipeline import process
from pipeline.errors import Conflict, PipelineError
from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import find_java
from pipeline.meter.reporter import reporter_jar, reporter_settings

# The inputs of a node: server.properties and the java command. The first node is broker and controller in one process;
# further ones are brokers that join it. Sizes are those of a laptop demo and of tests.

LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "CONTROLLER")

FIRST_NODE_ID: Final = 1
"""The id of the node that is broker and controller."""

CONTROLLER: Final = LISTENERS[-1]

VOTERS: Final = "controller.quorum.voters"
"""The setting that names the controllers by node id and address."""

_SETTINGS: Mapping[str, str] = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,"
    "CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # 128 MiB by default, allocated at the start: too much for a small heap.
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.segment.bytes": "16777216",
    # 5 minutes by default, in which the demo writes half a gigabyte.
    "log.retention.check.interval.ms": "10000",
    # A broker that was killed can register again only after its former session has ended: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True)
class BrokerOptions:
    """How the broker runs.

    Attributes:
        settings: broker settings that replace or join ours.
        java_options: options that follow ours, so they win; see `WARM_JAVA` and `REQUEST_LOG`.
        jars: of the broker, in place of the locked ones; empty = those.
        usage_topic: where the reporter in the broker sends usage, by the listener without sign-in; "" = no reporter.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    jars: tuple[Path, ...] = ()
    usage_topic: str = ""


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a further broker, whose controller (`host:port`) is in another process."""

    node_id: int
    cluster_id: str
    controller: str


def server_properties(
    data: Path,
    ports: Mapping[str, int],
    users: Mapping[str, str],
    settings: Mapping[str, str],
    seat: Seat | None = None,
) -> str:
    """The configuration of a node; without a seat it is broker and controller.

    Args:
        users: user name (letters, digits, '_', '-', '$' and inner dots, as JAAS takes it unquoted) to password
            (printable ASCII) for the SASL listeners.
    """
    lines = {
        **_SETTINGS,
        "process.roles": "broker,controller" if seat is None else "broker",
        "node.id": str(seat.node_id if seat else FIRST_NODE_ID),
        "controller.quorum.bootstrap.servers": seat.controller if seat else f"127.0.0.1:{ports[CONTROLLER]}",
        "listeners": _addresses(ports, list(ports)),
        "advertised.listeners": _addresses(ports, [name for name in ports if name != CONTROLLER]),
        "log.dirs": str(data),
        **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": _jaas(users) for name in ports if "SASL" in name},
        **settings,
    }
    return "".join(f"{key}={_escaped(value)}\n" for key, value in lines.items())


def _addresses(ports: Mapping[str, int], names: Sequence[str]) -> str:
    return ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in names)


def _jaas(users: Mapping[str, str]) -> str:
    words = ["org.apache.kafka.common.security.plain.PlainLoginModule required"]
    for name, password in users.items():
        quoted = password.replace("\\", "\\\\").replace('"', '\\"')
        words.append(f'user_{name}="{quoted}"')
    return " ".join(words) + ";"


def _escaped(value: str) -> str:
    """A value as Java reads it back from a properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

REQUEST_LOG: Final = ("-Dkquota.requests=debug",)
"""Java options with which a broker writes every completed request to its request log, as JSON. Heavy."""

WARM_JAVA: Final = ("-Xmx1024m", "-XX:TieredStopAtLevel=4")
"""Java options for measurements: more heap than demo and tests need, and the optimizing compiler."""


def broker_java(options: BrokerOptions, logs: Path) -> list[str]:
    """The command up to the main class."""
    class_path = [*(options.jars or broker_classpath()), *([reporter_jar()] if options.usage_topic else [])]
    return [
        str(find_java().executable),
        "-Xms128m",
        "-Xmx384m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # ready in 2 s in place of 3
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        f"-Dkquota.logs={logs}",
        *options.java_options,
        "-cp",
        ":".join(map(str, class_path)),
    ]


_STOP_GRACE_SECONDS = 5.0
_FORMAT_TIMEOUT_SECONDS = 60.0
_START_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.05


class EmbeddedBroker:
    """One Kafka node, whose data survives `stop`, `kill` and a new object on the same folder.

    Use it as a context manager, or call `start` and `stop`. Not thread-safe; start it from a thread that outlives
    it, because the kernel ends the broker with the thread that started it (see `process.spawn`).

    Listeners: PLAINTEXT, where every client is User:ANONYMOUS, and SASL_PLAINTEXT (mechanism PLAIN) for `users`.
    Ports are chosen free at the first start, kept in `<directory>/broker.json` and used again while they are free.
    What has an address or an id is known from the first start on.

    Args:
        directory: holds data, logs, configuration and the run file; made if missing.
        ports: listener name to the port it must have, 0 = any free one; those of the other listeners are chosen. SSL
            and SASL_SSL are listeners only if they are named here; then `options.settings` must hold the key store.
        joins: the node with the controller, which must have been started; None = this is one.
    """

    def __init__(
        self,
        directory: Path,
        users: Mapping[str, str] | None = None,
        *,
        ports: Mapping[str, int] | None = None,
        options: BrokerOptions | None = None,
        joins: "EmbeddedBroker | None" = None,
        node_id: int = FIRST_NODE_ID,
    ) -> None:
        self.options = options or BrokerOptions()
        self.node_id = node_id
        self._joins = joins
        controls = [CONTROLLER] if joins is None else []
        self._wanted_ports = dict(ports or {})
        self._listeners = list(dict.fromkeys([*LISTENERS[:-1], *self._wanted_ports, *controls]))
        self.directory = directory.absolute()
        self.users = dict(users or {})
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = FileLock(self.directory / "broker.lock")

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the listener without sign-in."""
        return self.address("PLAINTEXT")

    @property
    def sasl_bootstrap_servers(self) -> str:
        """`host:port` of the listener with sign-in."""
        return self.address("SASL_PLAINTEXT")

    def address(self, listener: str) -> str:
        """`host:port` of a listener by its name."""
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def request_log_path(self) -> Path:
        """The file of completed requests; grows only with the Java options `REQUEST_LOG`."""
        return self.directory / "logs" / "request.log"

    @property
    def server_log_path(self) -> Path:
        """The broker's own log."""
        return self.directory / "logs" / "server.log"

    @property
    def pid(self) -> int | None:
        """Process id of the broker's JVM; None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def cluster_id(self) -> str:
        """The id of its cluster."""
        lines = (self.directory / "data" / "meta.properties").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))["cluster.id"]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Formats the folder if it is new, starts the JVM and returns when the broker answers. No-op while it runs.

        Raises:
            JavaNotFound, JarUnfit: what it runs on is not there.
            Conflict: a wanted port is taken, or another process has this folder.
            PipelineError: it ended, or did not answer within two minutes.
        """
        if self.pid is not None:
            return
        self._acquire()
        try:
            self._await_ready(self._launch())
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ends the broker: SIGTERM, after 5 s SIGKILL. Data stays."""
        if self._process is not None:
            process.terminate(self._process, _STOP_GRACE_SECONDS)
        self._release()

    def kill(self) -> None:
        """Ends the broker with SIGKILL, as a crash would. Data stays."""
        if self._process is not None:
            process.kill(self._process)
        self._release()

    def _acquire(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            pid = self._run_file().get("pid")
            msg = f"broker directory {self.directory} is in use{f' by process {pid}' if pid else ''}"
            raise Conflict(msg, "stop that process, or choose another directory") from error

    def _release(self) -> None:
        self._process = None
        self._lock.release()

    def _launch(self) -> "subprocess.Popen[bytes]":
        self._ports = self._choose_ports(self._run_file().get("ports", {}))
        logs, data = self.directory / "logs", self.directory / "data"
        logs.mkdir(exist_ok=True)
        config = self.directory / "server.properties"
        first, options = self._joins, self.options
        seat = None if first is None else Seat(self.node_id, first.cluster_id, first.address(CONTROLLER))
        reports = reporter_settings(self.bootstrap_servers, options.usage_topic) if options.usage_topic else {}
        properties = server_properties(data, self._ports, self.users, {**reports, **options.settings}, seat)
        config.write_text(properties, encoding="utf-8")
        config.chmod(0o600)  # holds passwords
        java = broker_java(self.options, logs)
        if not (data / "meta.properties").exists():
            self._format(java, config, seat)
        self._process = self._spawn([*java, "kafka.Kafka", str(config)])
        run = {"pid": self._process.pid, "ports": self._ports}
        (self.directory / "broker.json").write_text(json.dumps(run), encoding="utf-8")
        return self._process

    def _spawn(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with self._console.open("wb") as console:
            return process.spawn(command, cwd=self.directory, output=console)

    def _format(self, java: list[str], config: Path, seat: Seat | None) -> None:
        command = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted", "--config", str(config)]
        if seat is None:
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
            # Kafka before 3.9 knows only voters that the settings name.
            command += [] if VOTERS in self.options.settings else ["--standalone"]
            command += ["--cluster-id", cluster_id]
        else:
            command += ["--cluster-id", seat.cluster_id]
        self._process = self._spawn(command)
        try:
            code = self._process.wait(_FORMAT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            msg = f"was not formatted within {_FORMAT_TIMEOUT_SECONDS:g} s"
            raise self._start_failed(msg) from error
        if code != 0:
            msg = f"could not be formatted (exit code {code})"
            raise self._start_failed(msg)

    def _choose_ports(self, former: Mapping[str, int]) -> dict[str, int]:
        chosen = {}
        for listener, spare in zip(self._listeners, process.free_ports(len(self._listeners)), strict=True):
            wanted = self._wanted_ports.get(listener, 0)
            if wanted and not process.is_free(wanted):
                msg = f"port {wanted} of listener '{listener}' on 127.0.0.1 is in use"
                stop = f"stop what listens there (`ss -ltnp 'sport = :{wanted}'` names it)"
                raise Conflict(msg, f"{stop}, or choose another port or none")
            # The former port keeps clients of a broker that was killed and started again connected.
            kept = former.get(listener, 0)
            chosen[listener] = wanted or (kept if kept and process.is_free(kept) else spare)
        return chosen

    def _await_ready(self, started: "subprocess.Popen[bytes]") -> None:
        """An open port is not enough: it must describe a cluster with this broker in it, which may lead partitions."""
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not self._answers():
            if started.poll() is not None:
                msg = f"ended at start with exit code {started.returncode}"
                raise self._start_failed(msg)
            if time.monotonic() > deadline:
                msg = f"did not answer within {_START_TIMEOUT_SECONDS:g} s"
                raise self._start_failed(msg)
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        if process.is_free(self._ports["PLAINTEXT"]):
            return False  # avoids kafka-python's back-off and its log lines
        try:
            admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers, bootstrap_timeout_ms=2_000)
        except KafkaError:
            return False
        try:
            known = admin.describe_cluster()["brokers"]
            return any(one["broker_id"] == self.node_id and not one.get("is_fenced") for one in known)
        except KafkaError:
            return False
        finally:
            admin.close()

    @property
    def _console(self) -> Path:
        return self.directory / "logs" / "console.log"

    def _run_file(self) -> dict[str, Any]:
        try:
            found = json.loads((self.directory / "broker.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _start_failed(self, reason: str) -> PipelineError:
        logs = [path for path in (self.server_log_path, self._console) if path.exists()]
        said = {path: path.read_text(encoding="utf-8", errors="replace").splitlines() for path in logs}
        words = ("ERROR", "FATAL", "xception")
        failures = {path: [line for line in said[path] if any(word in line for word in words)] for path in logs}
        found = (one for lines_of in (failures, said) for one in lines_of.items() if one[1])
        path, lines = next(found, (self._console, []))
        cause = f"; its log ends with: {' | '.join(lines[-3:])[:600]}" if lines else ""
        return PipelineError(f"the embedded broker {reason}{cause}", f"tail -n 50 {quote(str(path))}")


def plain_sign_in(bootstrap_servers: str, user: str, password: str) -> dict[str, str]:
    """Options of a kafka-python client of SASL_PLAINTEXT listeners: where it connects, and who it is there."""
    return {
        "bootstrap_servers": bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


class EmbeddedCluster:
    """Brokers of one cluster; the first one is the controller too. Data survive `stop` and a new object.

    Used as an `EmbeddedBroker`. Topics have one replica unless they are created with more: what a dead broker holds is
    away until it is back.

    Args:
        directories: one per broker, at least one. Their order gives the ids, from 1.
    """

    def __init__(
        self, directories: Sequence[Path], users: Mapping[str, str] | None = None, options: BrokerOptions | None = None
    ) -> None:
        first = EmbeddedBroker(directories[0], users, options=options)
        others = (
            EmbeddedBroker(directory, users, options=options, joins=first, node_id=node_id)
            for node_id, directory in enumerate(directories[1:], FIRST_NODE_ID + 1)
        )
        self.brokers = (first, *others)

    @property
    def bootstrap_servers(self) -> str:
        """The listeners without sign-in, `host:port,…`."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    @property
    def sasl_bootstrap_servers(self) -> str:
        """The listeners with sign-in, `host:port,…`."""
        return ",".join(broker.sasl_bootstrap_servers for broker in self.brokers)

    def start(self) -> None:
        """Start all brokers; returns when each is a member. If one cannot start, none is left. No-op while they run."""
        for broker in self.brokers:
            broker.directory.mkdir(parents=True, exist_ok=True)  # how many there are is seen from now on
        with ExitStack() as undoing:
            for broker in self.brokers:
                broker.start()
                undoing.callback(broker.stop)
            undoing.pop_all()

    def stop(self) -> None:
        """End all brokers, the controller last: a broker needs it to shut down."""
        for broker in reversed(self.brokers):
            broker.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
