"""A real Kafka broker on this machine: one JVM, one folder, 127.0.0.1 only. For the demo, tests and benchmarks."""

import base64
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from pipeline.demo import process
from pipeline.demo.broker_config import (
    CONTROLLER,
    FIRST_NODE_ID,
    BrokerOptions,
    Seat,
    log4j2_properties,
    server_properties,
)
from pipeline.demo.broker_java import broker_java, training_options
from pipeline.demo.errors import BrokerAlreadyRunning, BrokerStartFailed, PortBusy

_STOP_GRACE_SECONDS = 5.0
_TRAINING_STOP_GRACE_SECONDS = 60.0
_FORMAT_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05

_ADMIN_CLIENT: Callable[..., Any] = KafkaAdminClient  # kafka-python has no types


class EmbeddedBroker:
    """One Kafka node, whose data survives `stop`, `kill` and a new object on the same folder.

    Use it as a context manager, or call `start` and `stop`. Not thread-safe; start it from a thread that outlives
    it, because the kernel ends the broker with the thread that started it (see `process.spawn`).

    It is broker and controller, or, with `joins`, a further broker of another one's cluster (see `EmbeddedCluster`).

    Listeners: PLAINTEXT, where every client is User:ANONYMOUS, and SASL_PLAINTEXT (mechanism PLAIN) for `users`.
    Ports are chosen free at the first start, kept in `<directory>/broker.json` and used again while they are free.

    Args:
        directory: holds data, logs, configuration and the run file; made if missing.
        users: user name to password on the SASL listener.
        ports: listener name to the port it must have; the others are chosen.
        options: heap, logs, time-outs, further broker settings.
        joins: the node with the controller, which must have been started; None = this is one.
        node_id: its id in the cluster.

    Attributes:
        node_id: as given; what a meter calls the broker's id.
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
        listeners = self.options.listeners_of(controls=joins is None)
        unknown = set(ports or {}) - set(listeners)
        if unknown:
            msg = f"'ports' must name {', '.join(listeners)}; got {', '.join(sorted(unknown))}"
            raise ValueError(msg)
        self.directory = directory.absolute()
        self.users = dict(users or {})
        self._wanted_ports = dict(ports or {})
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = FileLock(self.directory / "broker.lock")

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the listener without sign-in. Known from the first start on."""
        return self.address("PLAINTEXT")

    @property
    def sasl_bootstrap_servers(self) -> str:
        """`host:port` of the SASL_PLAINTEXT listener. Known from the first start on."""
        return self.address("SASL_PLAINTEXT")

    def address(self, listener: str) -> str:
        """`host:port` of a listener by its name. Known from the first start on."""
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def request_log_path(self) -> Path:
        """The file of completed requests; grows only with `BrokerOptions.request_log`."""
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
        """Of its cluster. Known from the first start on."""
        lines = (self.directory / "data" / "meta.properties").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))["cluster.id"]

    @property
    def exit_code(self) -> int | None:
        """How it has ended though nobody called `stop` or `kill`; None while it runs, and before its start."""
        return self._process.poll() if self._process is not None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Formats the folder if it is new, starts the JVM and returns when the broker answers. No-op while it runs.

        Raises:
            JavaNotFound, JarMissing, JarAltered: what it runs on is not there.
            PortBusy: a port that was asked for is taken.
            BrokerAlreadyRunning: another process has this folder.
            BrokerStartFailed: it ended, or did not answer within `start_timeout_seconds`.
        """
        if self.pid is not None:
            return
        self._acquire()
        try:
            self._launch()
            self._await_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ends the broker: SIGTERM, after 5 s (60 s if it writes a class archive) SIGKILL. Data stays.

        Harmless when it does not run.
        """
        if self._process is not None:
            trains = self.options.archive_draft is not None
            process.terminate(self._process, _TRAINING_STOP_GRACE_SECONDS if trains else _STOP_GRACE_SECONDS)
        self._release()

    def kill(self) -> None:
        """Ends the broker with SIGKILL, as a crash would. Data stays. Harmless when it does not run."""
        if self._process is not None:
            process.kill(self._process)
        self._release()

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Keep every broker out of the folder until the end of the block, without starting one.

        Raises:
            BrokerAlreadyRunning: another process runs a broker there.
        """
        self._acquire()
        try:
            yield
        finally:
            self._release()

    def _acquire(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise BrokerAlreadyRunning(self.directory, self._run_file().get("pid")) from error

    def _release(self) -> None:
        self._process = None
        self._lock.release()

    def _launch(self) -> None:
        self._ports = self._choose_ports(self._run_file().get("ports", {}))
        logs, data = self.directory / "logs", self.directory / "data"
        logs.mkdir(exist_ok=True)
        config, log4j2 = self.directory / "server.properties", self.directory / "log4j2.properties"
        seat = self._seat()
        properties = server_properties(data, self._ports, self.users, self.options.settings, seat)
        config.write_text(properties, encoding="utf-8")
        config.chmod(0o600)  # holds passwords
        log4j2.write_text(
            log4j2_properties(self.server_log_path, self.request_log_path, self.options.request_log),
            encoding="utf-8",
        )
        java = broker_java(self.options, log4j2)
        if not (data / "meta.properties").exists():
            self._format(java, config, seat)
        with self._console.open("wb") as console:
            command = [*java, *training_options(self.options), "kafka.Kafka", str(config)]
            self._process = process.spawn(command, cwd=self.directory, output=console)
        run = {"pid": self._process.pid, "ports": self._ports}
        (self.directory / "broker.json").write_text(json.dumps(run), encoding="utf-8")

    def _seat(self) -> Seat | None:
        first = self._joins
        return None if first is None else Seat(self.node_id, first.cluster_id, first.address(CONTROLLER))

    def _format(self, java: list[str], config: Path, seat: Seat | None) -> None:
        command = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted", "--config", str(config)]
        if seat is None:
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
            command += ["--standalone", "--cluster-id", cluster_id]
        else:
            command += ["--cluster-id", seat.cluster_id]
        with self._console.open("wb") as console:
            self._process = process.spawn(command, cwd=self.directory, output=console)
        try:
            code = self._process.wait(_FORMAT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            reason = f"was not formatted within {_FORMAT_TIMEOUT_SECONDS:g} s"
            raise self._start_failed(reason) from error
        if code != 0:
            reason = f"could not be formatted (exit code {code})"
            raise self._start_failed(reason)

    def _choose_ports(self, former: Mapping[str, int]) -> dict[str, int]:
        chosen = {}
        listeners = self.options.listeners_of(controls=self._joins is None)
        for listener, spare in zip(listeners, process.free_ports(len(listeners)), strict=True):
            wanted = self._wanted_ports.get(listener)
            if wanted is not None and not process.is_free(wanted):
                raise PortBusy(listener, wanted)
            # The former port keeps clients of a broker that was killed and started again connected.
            kept = former.get(listener, 0)
            chosen[listener] = wanted or (kept if kept and process.is_free(kept) else spare)
        return chosen

    def _await_ready(self) -> None:
        """An open port is not enough: it must describe a cluster with this broker in it, which may lead partitions."""
        deadline = time.monotonic() + self.options.start_timeout_seconds
        while not self._answers():
            if self._process is None or self._process.poll() is not None:
                code = self._process.returncode if self._process else None
                reason = f"ended at start with exit code {code}"
                raise self._start_failed(reason)
            if time.monotonic() > deadline:
                reason = f"did not answer within {self.options.start_timeout_seconds:g} s"
                raise self._start_failed(reason)
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        if process.is_free(self._ports["PLAINTEXT"]):
            return False  # avoids kafka-python's back-off and its log lines
        try:
            admin = _ADMIN_CLIENT(bootstrap_servers=self.bootstrap_servers, bootstrap_timeout_ms=2_000)
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

    def _start_failed(self, reason: str) -> BrokerStartFailed:
        for path in (self.server_log_path, self._console):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
            failures = [line for line in lines if "ERROR" in line or "FATAL" in line or "xception" in line]
            if failures or lines:
                return BrokerStartFailed(reason, path, " | ".join((failures or lines)[-3:])[:600])
        return BrokerStartFailed(reason, self._console, "")
