"""The text of the embedded broker's three inputs: server.properties, log4j2.properties, the java command.

The first node is broker and controller in one process; further ones are brokers that join it. All are on 127.0.0.1
only. Sizes are those of a laptop demo and of tests.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "CONTROLLER")

# What JAAS reads as one word after `user_`; quoting is not possible there.
_USER_NAME = re.compile(r"[A-Za-z0-9_$-]+(\.[A-Za-z0-9_$-]+)*")

FIRST_NODE_ID: Final = 1
"""Of the node that is broker and controller."""

CONTROLLER: Final = LISTENERS[-1]
"""Listener of the controller."""

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
    # A broker that was killed can register again only after its former session has ended: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True)
class BrokerOptions:
    """How the broker runs.

    Attributes:
        request_log: write every completed request to the request log, as JSON. Heavy: meters and their tests only.
        heap_mib: upper bound of the Java heap. 384 serves demo and tests; give benchmarks 1024.
        quick_start: stop at the first compiler tier. Ready in 2 s instead of 3; slower once warm, so off in benchmarks.
        start_timeout_seconds: how long the broker may take to answer.
        settings: broker settings that replace or join ours.
        tls_listeners: SSL, SASL_SSL or both, beside the others; `settings` must hold the key store.
        java_options: further options of its JVM.
        archive_draft: its JVM writes a class archive there when it is stopped, which takes seconds; it uses none.
    """

    request_log: bool = False
    heap_mib: int = 384
    quick_start: bool = True
    start_timeout_seconds: float = 60.0
    settings: Mapping[str, str] = field(default_factory=dict)
    tls_listeners: tuple[str, ...] = ()
    java_options: tuple[str, ...] = ()
    archive_draft: Path | None = None

    def listeners_of(self, *, controls: bool) -> tuple[str, ...]:
        """Names of all listeners of a node; the controller's, of a node that controls, is the last."""
        names = (*LISTENERS[:-1], *self.tls_listeners)
        return (*names, CONTROLLER) if controls else names


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a further broker, whose controller is in another process.

    Attributes:
        node_id: not `FIRST_NODE_ID`, and not that of another one.
        cluster_id: of the cluster it joins.
        controller: `host:port` of the controller.
    """

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
    """The configuration of a node.

    Args:
        data: folder of the topics.
        ports: listener name to port.
        users: user name to password for the SASL listeners; may be empty, then nobody can sign in there.
        settings: replace or join ours.
        seat: of a further broker; None = the node that is broker and controller.

    Raises:
        ValueError: a user name that JAAS cannot hold, or a password with a control character.
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


def log4j2_properties(server_log: Path, request_log: Path, request_log_on: bool) -> str:
    """Logging of the broker: its own log in one file, completed requests in another; both are limited and rolled.

    The properties syntax, because the YAML one needs a further jar. A rolled file is renamed to `.1`, `.2`, …, the
    newest being `.1`.
    """
    return "\n".join(
        [
            "status = error",
            *_rolling_file("server", server_log, "[%d] %p %m (%c)%n", size_mib=8, files=2),
            *_rolling_file("request", request_log, "[%d] %p %m (%c)%n", size_mib=64, files=3),
            "rootLogger.level = warn",
            "rootLogger.appenderRef.server.ref = server",
            *_logger("kafka", "kafka.server", "info"),
            *_logger("server", "org.apache.kafka.server", "info"),
            *_logger("controller", "org.apache.kafka.controller", "info"),
            *_logger("request", "kafka.request.logger", "debug" if request_log_on else "off", "request"),
            "",
        ]
    )


def java_command(
    java: Path, classpath: Sequence[Path], options: BrokerOptions, log4j2: Path, archive_options: Sequence[str] = ()
) -> list[str]:
    """The command up to the main class."""
    tier = ["-XX:TieredStopAtLevel=1"] if options.quick_start else []
    return [
        str(java),
        "-Xms128m",
        f"-Xmx{options.heap_mib}m",
        "-XX:+UseSerialGC",
        *tier,
        *archive_options,
        *options.java_options,
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={log4j2.as_uri()}",
        "-cp",
        ":".join(map(str, classpath)),
    ]


def _addresses(ports: Mapping[str, int], names: Sequence[str]) -> str:
    return ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in names)


def _jaas(users: Mapping[str, str]) -> str:
    words = ["org.apache.kafka.common.security.plain.PlainLoginModule required"]
    for name, password in users.items():
        if not _USER_NAME.fullmatch(name):
            msg = f"'user' must be letters, digits, '_', '-', '$' and inner dots; got {name!r}"
            raise ValueError(msg)
        if not password.isprintable() or not password.isascii():
            msg = f"'password' of user '{name}' must be printable ASCII"
            raise ValueError(msg)
        quoted = password.replace("\\", "\\\\").replace('"', '\\"')
        words.append(f'user_{name}="{quoted}"')
    return " ".join(words) + ";"


def _escaped(value: str) -> str:
    """A value as Java reads it back from a properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _rolling_file(name: str, path: Path, pattern: str, *, size_mib: int, files: int) -> list[str]:
    prefix = f"appender.{name}"
    return [
        f"{prefix}.type = RollingFile",
        f"{prefix}.name = {name}",
        f"{prefix}.fileName = {_escaped(str(path))}",
        f"{prefix}.filePattern = {_escaped(str(path))}.%i",
        f"{prefix}.layout.type = PatternLayout",
        f"{prefix}.layout.pattern = {pattern}",
        f"{prefix}.policies.type = Policies",
        f"{prefix}.policies.size.type = SizeBasedTriggeringPolicy",
        f"{prefix}.policies.size.size = {size_mib}MB",
        f"{prefix}.strategy.type = DefaultRolloverStrategy",
        f"{prefix}.strategy.max = {files}",
        f"{prefix}.strategy.fileIndex = min",
    ]


def _logger(key: str, name: str, level: str, appender: str = "server") -> list[str]:
    return [
        f"logger.{key}.name = {name}",
        f"logger.{key}.level = {level}",
        f"logger.{key}.additivity = false",
        f"logger.{key}.appenderRef.file.ref = {appender}",
    ]
