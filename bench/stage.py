"""What benchmarks work with: a broker, topics, tables and quotas, the load, the job, the dashboard, a reader, probes.

Load, job and dashboard are processes of their own, so that they do not share the measuring interpreter.
"""

import io
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.error import URLError

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import create_topics, wanted_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.process import spawn, terminate
from pipeline.settings.loading import load_settings
from pipeline.settings.model import Settings
from pipeline.tables.from_settings import create_tables, open_quota_table
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import local_audit
from schemas.names import THROTTLE_TOPIC, USAGE_TOPIC

STEPS: Final = ("collect_ms", "append_ms", "decide_ms", "publish_ms")
_FACT: Final = re.compile(r"\b(\w+)=(\d+)")


class BatchLog:
    """The facts of micro-batches, such as `collect_ms` and `events`, from a job's log; with `batch_ms`, all steps."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.batches: list[dict[str, int]] = []

    def heard(self, line: str) -> None:
        self.lines.append(line)
        facts = {name: int(value) for name, value in _FACT.findall(line)}
        if facts.keys() >= set(STEPS):
            self.batches.append({**facts, "batch_ms": sum(facts[step] for step in STEPS)})

    def of_next(self, seconds: float) -> list[dict[str, int]]:
        """Those that are logged in the next seconds."""
        before = len(self.batches)
        time.sleep(seconds)
        return self.batches[before:]


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker with the topics and tables of a job. All of it lies in one folder, which goes when the block ends."""

    folder: Path
    broker: EmbeddedBroker
    settings: Settings
    root: str

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    def alter(self, user: str, bound: float) -> None:
        change = QuotaChange(user, "", {"producer_byte_rate": bound})
        open_quota_table(self.settings.tables).alter([change], local_audit("bench"))

    def load(
        self, events_per_second: int, clients: int, events_per_message: int = 1
    ) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """`bench.load` in a process of its own."""
        numbers = map(str, (events_per_second, clients, events_per_message))
        return child([sys.executable, "-m", "bench.load", self.servers, *numbers])

    @contextmanager
    def job(
        self, trigger_ms: int, heard: Callable[[str], None] = lambda _: None, checkpoint: str | None = None
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """`kquota run` on these tables. The block begins when the job is running, and has its process.

        `heard` gets every line of the job's log, from its start; once the job is running on a thread.
        """
        command = [sys.executable, "-m", "pipeline.cli.main", "run", "--bootstrap-server", self.servers]
        command += ["--tables", self.root, "--checkpoint", checkpoint or str(self.folder / "checkpoint")]
        command += ["--trigger-ms", str(trigger_ms), "--run-dir", str(self.folder)]
        with child(command, stderr=subprocess.PIPE) as running:
            stderr = running.stderr or io.BytesIO()
            told: list[bytes] = []
            for line in stderr:
                told.append(line)
                heard(line.decode())
                if b"running; trigger" in line:
                    break
            else:
                sys.exit(f"the job ended at its start:\n{b''.join(told[-20:]).decode()}")

            def read() -> None:
                for line in stderr:
                    heard(line.decode())

            Thread(target=read, daemon=True).start()
            yield running


@contextmanager
def staged(quotas: Sequence[Mapping[str, Any]] = (), tables: str | None = None) -> Iterator[Stage]:
    """A stage with these rows in its quota table; its tables may be under a root elsewhere."""
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker(Path(name) / "broker") as broker:
        root = tables or f"{name}/tables"
        stage = Stage(Path(name), broker, load_settings(flags={"tables": {"root": root}}), root)
        with ClusterAccess(stage.servers).admin() as admin:
            create_topics(admin, wanted_topics(stage.settings))
        create_tables(stage.settings.tables)
        if quotas:
            table = open_quota_table(stage.settings.tables)
            table.edit(lambda _: [dict(row) for row in quotas], local_audit("bench"))
        yield stage


def bound(user: str, rate: float, client_id: str = "") -> dict[str, Any]:
    return {"user": user, "client_id": client_id, "producer_byte_rate": rate}


def probe_quotas(probes: int) -> list[dict[str, Any]]:
    """Quotas under which only so many probes of a `Prober` are throttled. More than are sent do no harm."""
    everybody = bound("<default>", 1e9, "<default>")
    return [everybody, *(bound(f"probe-{number}", PROBE_BOUND) for number in range(probes))]


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def child(
    command: Sequence[str],
    *,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process, with further variables of its environment, that ends with the block."""
    started = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **variables},
        start_new_session=True,
    )
    try:
        yield started
    finally:
        terminate(started, 20)


@contextmanager
def dashboard(
    tables: str, *options: str, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, int]]:
    """`kquota dashboard` on a free port; the block has its address and process id."""
    command = [sys.executable, "-m", "pipeline.cli.main", "dashboard", "--port", "0", "--tables", tables, *options]
    with child(command, stderr=subprocess.PIPE, variables=variables) as started:
        told = started.stderr.readline().decode() if started.stderr else ""
        if not told.startswith("dashboard: http"):
            sys.exit(f"the dashboard did not start: {told}")
        yield told.split()[1], started.pid


_PATIENCE_SECONDS: Final = 30


def await_ready(address: str) -> None:
    """Wait until a dashboard has read the tables."""
    while True:
        with suppress(URLError), urllib.request.urlopen(f"{address}readyz", timeout=60) as answer:  # noqa: S310 - ours
            if answer.status == 200:
                return
        time.sleep(0.1)


def answer_ms(url: str) -> tuple[float, int]:
    """How long a request of a dashboard takes, and the bytes of its answer."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - ours
        size = len(answer.read())
    return (time.perf_counter() - began) * 1_000, size


def topic_on_each(brokers: Sequence[EmbeddedBroker], topic: str) -> list[str]:
    """Create a topic with a partition on each broker; returns the brokers' ids."""
    admin: Any = KafkaAdminClient(bootstrap_servers=brokers[0].bootstrap_servers)
    assignments = {partition: [broker.node_id] for partition, broker in enumerate(brokers)}
    settings = {"retention.bytes": "67108864"}
    admin.create_topics({topic: {"assignments": assignments, "configs": settings}}, wait_for_metadata=True)
    admin.close()
    return [str(broker.node_id) for broker in brokers]


def start_sync(
    stack: ExitStack, folder: Path, servers: str, variables: Mapping[str, str] = MappingProxyType({})
) -> None:
    """`kquota quotas sync` on the tables in a folder; its log is there, too."""
    command = [sys.executable, "-m", "pipeline.cli.main", "quotas", "sync", "--tables", str(folder / "tables")]
    log = stack.enter_context((folder / "sync.log").open("wb"))
    process = spawn(
        [*command, "--bootstrap-server", servers], cwd=Path.cwd(), output=log, env={**os.environ, **variables}
    )
    stack.callback(terminate, process, 5.0)


def throttle_reader(bootstrap_servers: str) -> Any:
    consumer: Any = KafkaConsumer(
        THROTTLE_TOPIC,
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="latest",
    )
    # The topic's end is asked for only now. A record of before that answer would never be read.
    while not consumer.assignment():
        consumer.poll(timeout_ms=100)
    for partition in consumer.assignment():
        consumer.position(partition)
    return consumer


def send_event(producer: Any, user: str, produced_bytes: int, client_id: str = "c") -> None:
    """Send an event of now. Returns when the broker has it."""
    event = {"event_time_ms": time.time_ns() // 1_000_000, "user": user, "client_id": client_id}
    producer.send(USAGE_TOPIC, json.dumps({**event, "produced_bytes": produced_bytes}).encode())
    producer.flush()


def _polled(consumer: Any, timeout_ms: int) -> list[dict[str, Any]]:
    polled = consumer.poll(timeout_ms=timeout_ms)
    return [json.loads(record.value) for records in polled.values() for record in records]


def throttled(bootstrap_servers: str, user: str) -> Any:
    """Send an event that is far above a quota of `PROBE_BOUND`. Returns a reader that has seen the user's throttle."""
    consumer = throttle_reader(bootstrap_servers)
    producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
    send_event(producer, user, 10**6)
    producer.close()
    wait_for(consumer, user, "throttle")
    return consumer


def wait_for(consumer: Any, user: str, action: str) -> None:
    """Return when a record of a user has come; end the program if none comes within half a minute."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if (user, action) in {(value["user"], value["action"]) for value in _polled(consumer, 500)}:
            return
    sys.exit(f"no {action} of {user} within {_PATIENCE_SECONDS} s")


PROBE_BOUND: Final = 1_000.0
"""Bytes per second."""
PROBE_BYTES: Final = 15_000
"""Above what the bound allows in a whole window of 11 s."""
PROBED_LOAD: Final = (2_000, 1_000)
"""Events a second, clients."""
_GIVE_UP_SECONDS: Final = 60.0
_LEAST_PAUSE_SECONDS: Final = 0.8


class Prober:
    """A producer of probes and a `read_committed` reader of their records. Use it in a `with` block.

    The users of the probes are probe-0, probe-1, …; see `probe_quotas`. They are held for some seconds.

    Attributes:
        missing: The first user that got no record within a minute, or "". After it no more probes are sent.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = throttle_reader(bootstrap_servers)
        self._producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
        self._draw = random.Random(7)
        self._sent = 0
        self.missing = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._producer.close()

    def probe(self, seconds: float) -> list[float]:
        """Send probes at random times for so long. Returns the latency of each in ms, in their order."""
        end = time.monotonic() + seconds
        latencies_ms = []
        while time.monotonic() < end:
            self._wait_until(min(time.monotonic() + _LEAST_PAUSE_SECONDS + self._draw.random(), end))
            if time.monotonic() < end and not self.missing:
                latency_ms = self._one()
                latencies_ms += [] if latency_ms is None else [latency_ms]
        return latencies_ms

    def _wait_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._consumer.poll(timeout_ms=20)

    def _one(self) -> float | None:
        user = f"probe-{self._sent}"
        self._sent += 1
        began = time.perf_counter()
        send_event(self._producer, user, PROBE_BYTES)
        while user not in {value["user"] for value in _polled(self._consumer, 1_000)}:
            if time.perf_counter() - began > _GIVE_UP_SECONDS:
                self.missing = user
                return None
        return (time.perf_counter() - began) * 1_000


@contextmanager
def probing(
    root: str, trigger_ms: int, seconds: float, warm_up_seconds: float, checkpoint: str | None = None
) -> Iterator[tuple[BatchLog, Prober]]:
    """A job under `PROBED_LOAD`, with its tables under a root and warmed up, to be probed for some seconds."""
    log, quotas = BatchLog(), probe_quotas(2 * int(seconds + warm_up_seconds))
    with (
        staged(quotas, root) as stage,
        stage.load(*PROBED_LOAD),
        stage.job(trigger_ms, log.heard, checkpoint),
        Prober(stage.servers) as prober,
    ):
        prober.probe(warm_up_seconds)
        yield log, prober


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """p50 and p99; both NaN for fewer than two values."""
    if len(values) < 2:
        return float("nan"), float("nan")
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]
