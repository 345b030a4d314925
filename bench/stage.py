"""What benchmarks work with: a broker, topics, tables and quotas, the load, the job, the dashboard, a reader, probes.

Load, job and dashboard are processes of their own, so that they do not share the measuring interpreter.
"""

import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import IO, Any, Final, Self
from urllib.error import URLError

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics, wanted_topics
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker, EmbeddedCluster, plain_sign_in
from pipeline.demo.process import spawn, terminate
from pipeline.demo.stock_client import StockProducer, StockWork
from pipeline.settings.loading import load_settings
from pipeline.settings.model import Settings
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import create_tables
from pipeline.tables.object_store import reach_with
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from schemas.names import THROTTLE_TOPIC, USAGE_TOPIC
from tests.waiting import wait_until

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


KQUOTA: Final = (sys.executable, "-m", "pipeline.cli.main")
_LINES_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker with the topics and tables of a job."""

    folder: Path
    broker: EmbeddedBroker
    settings: Settings
    root: str

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    @classmethod
    def of(
        cls, folder: Path, broker: EmbeddedBroker, quotas: Sequence[Mapping[str, Any]] = (), tables: str | None = None
    ) -> Self:
        """Make topics and tables, with these rows in the quota table; the tables may be under a root elsewhere."""
        root = tables or str(folder / "tables")
        places = {"kafka": {"bootstrap_servers": broker.bootstrap_servers}, "tables": {"root": root}}
        settings = load_settings(flags=places)
        reach_with(settings.store, root)
        add_topics(broker.bootstrap_servers, wanted_topics(settings))
        create_tables(settings.tables.root)
        if quotas:
            table = QuotaTable(settings.tables.root)
            table.edit(lambda _: [dict(row) for row in quotas], local_audit("bench"))
        return cls(folder, broker, settings, root)

    def alter(self, user: str, bound: float) -> None:
        change = QuotaChange(user, "", {"producer_byte_rate": bound})
        QuotaTable(self.settings.tables.root).alter([change], local_audit("bench"))

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

        `heard` gets every line of the job's log, from its start; once the job is running on a thread. What the block
        raises has the end of the log as a note.
        """
        command = [*KQUOTA, "run", "--bootstrap-server", self.servers, "--tables", self.root]
        command += ["--checkpoint", checkpoint or str(self.folder / "checkpoint")]
        command += ["--trigger-ms", str(trigger_ms), "--run-dir", str(self.folder)]
        with child(command, subprocess.PIPE) as running:
            output, last = running.stdout or io.BytesIO(), deque[str](maxlen=_LINES_SHOWN)

            def read(until: bytes = b"\0") -> bool:
                for line in output:
                    last.append(line.decode())
                    heard(last[-1])
                    if until in line:
                        return True
                return False

            try:
                if not read(until=b"running; trigger"):
                    message = f"the job ended at its start with {running.wait()}"
                    raise RuntimeError(message)
                Thread(target=read, daemon=True).start()
                yield running
            except Exception as failure:
                failure.add_note(f"the end of the job's log:\n{''.join(last)}")
                raise

    @contextmanager
    def sync(self, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
        """`kquota quotas sync` on these tables; its log is in the folder, too."""
        command = [*KQUOTA, "quotas", "sync", "--tables", self.root, "--bootstrap-server", self.servers]
        with (self.folder / "sync.log").open("wb") as log, child(command, log, variables):
            yield


@contextmanager
def staged(quotas: Sequence[Mapping[str, Any]] = (), tables: str | None = None) -> Iterator[Stage]:
    """A `Stage.of` with a broker of its own; all of it lies in one folder, which goes when the block ends."""
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker(Path(name) / "broker") as broker:
        yield Stage.of(Path(name), broker, quotas, tables)


@contextmanager
def big_broker(*topics: TopicSpec) -> Iterator[EmbeddedBroker]:
    """A broker that is to be fast once it is warm, with these topics."""
    options = BrokerOptions(heap_mib=1024, quick_start=False)
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder), options=options) as broker:
        add_topics(broker.bootstrap_servers, topics)
        yield broker


def add_topics(bootstrap_servers: str, topics: Iterable[TopicSpec]) -> None:
    with ClusterAccess(bootstrap_servers).admin() as admin:
        create_topics(admin, topics)


def writer_of(root: str, table: str, job: str = "bench") -> DeltaRsWriter:
    writer = DeltaRsWriter(table_uri(root, table), job)
    writer.raise_epoch(1)
    return writer


def bound(user: str, rate: float, client_id: str = "") -> dict[str, Any]:
    return {"user": user, "client_id": client_id, "producer_byte_rate": rate}


def probe_quotas(probes: int) -> list[dict[str, Any]]:
    """Quotas under which only so many probes of a `Prober` are throttled. More than are sent do no harm."""
    everybody = bound("<default>", 1e9, "<default>")
    return [everybody, *(bound(f"probe-{number}", PROBE_BOUND) for number in range(probes))]


@contextmanager
def child(
    command: Sequence[str],
    output: IO[bytes] | int = subprocess.DEVNULL,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process, with further variables of its environment, that ends with the block; `output` is as for `spawn`."""
    started = spawn(command, cwd=Path.cwd(), output=output, env={**os.environ, **variables})
    try:
        yield started
    finally:
        terminate(started, 20)


@contextmanager
def dashboard(tables: str, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, int]]:
    """`kquota dashboard` on a free port; the block has its address and process id."""
    command = [*KQUOTA, "dashboard", "--port", "0", "--tables", tables]
    with child(command, subprocess.PIPE, variables) as started:
        told = started.stdout.readline().decode() if started.stdout else ""
        if not told.startswith("dashboard: http"):
            sys.exit(f"the dashboard did not start: {told}")
        yield told.split()[1], started.pid


_PATIENCE_SECONDS: Final = 30


def await_ready(address: str) -> None:
    """Wait until a dashboard has read the tables."""

    def is_ready() -> bool:
        with suppress(URLError), urllib.request.urlopen(f"{address}readyz", timeout=60) as answer:  # noqa: S310 - ours
            return bool(answer.status == 200)
        return False

    wait_until(is_ready, "the dashboard to have read the tables")


def answer_ms(url: str) -> tuple[float, int]:
    """How long a request of a dashboard takes, and the bytes of its answer."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - ours
        size = len(answer.read())
    return (time.perf_counter() - began) * 1_000, size


def stock_cluster(folder: Path, brokers: int, users: Iterable[str]) -> EmbeddedCluster:
    """Brokers that are not started yet, for users whose password is their name."""
    folders = [folder / f"broker-{number}" for number in range(1, brokers + 1)]
    return EmbeddedCluster(folders, {user: user for user in users})


def stock_work(
    broker: EmbeddedBroker | EmbeddedCluster,
    user: str,
    topic: str,
    shares: Sequence[float],
    bytes_per_second: float,
    requests_per_second: float,
    **options: Any,
) -> StockWork:
    """What a producer of such a user does, whose client-id is its name."""
    options = {**plain_sign_in(broker.sasl_bootstrap_servers, user, user), "client_id": user, **options}
    return StockWork("produce", topic, shares, bytes_per_second, requests_per_second, options)


@contextmanager
def stock_producers(works: Mapping[Any, StockWork]) -> Iterator[dict[Any, StockProducer]]:
    """A producer for each work, by the same key; not started. They end with the block."""
    with ExitStack() as stack:
        producers = {}
        for key, work in works.items():
            producers[key] = StockProducer(work, Event())
            stack.callback(producers[key].close)
        yield producers


def topic_on_each(brokers: Sequence[EmbeddedBroker], topic: str) -> list[str]:
    """Create a topic with a partition on each broker; returns the brokers' ids."""
    admin: Any = KafkaAdminClient(bootstrap_servers=brokers[0].bootstrap_servers)
    assignments = {partition: [broker.node_id] for partition, broker in enumerate(brokers)}
    settings = {"retention.bytes": "67108864"}
    admin.create_topics({topic: {"assignments": assignments, "configs": settings}}, wait_for_metadata=True)
    admin.close()
    return [str(broker.node_id) for broker in brokers]


def throttle_reader(bootstrap_servers: str, begin: str = "latest") -> Any:
    consumer: Any = KafkaConsumer(
        THROTTLE_TOPIC, bootstrap_servers=bootstrap_servers, isolation_level="read_committed", auto_offset_reset=begin
    )
    # The topic's end is asked for only now. A record of before that answer would never be read.
    while not consumer.assignment():
        consumer.poll(timeout_ms=100)
    for partition in consumer.assignment():
        consumer.position(partition)
    return consumer


def send_events(producer: Any, produced_bytes: Mapping[str, int], client_id: str = "c") -> None:
    """Send an event of now for each user. Returns when the broker has them."""
    event = {"event_time_ms": time.time_ns() // 1_000_000, "client_id": client_id}
    for user, used in produced_bytes.items():
        producer.send(USAGE_TOPIC, json.dumps({**event, "user": user, "produced_bytes": used}).encode())
    producer.flush()


def _polled(consumer: Any, timeout_ms: int) -> list[dict[str, Any]]:
    polled = consumer.poll(timeout_ms=timeout_ms)
    return [json.loads(record.value) for records in polled.values() for record in records]


def release_ms(bootstrap_servers: str, user: str, edit: Callable[[], float]) -> float:
    """From an edit until a reader has the release of a user, who was throttled by an event far above `PROBE_BOUND`.

    `edit` returns the `time.perf_counter` from which on it counts.
    """
    consumer = throttle_reader(bootstrap_servers)
    producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
    send_events(producer, {user: 10**6})
    producer.close()
    _wait_for(consumer, user, "throttle")
    began = edit()
    _wait_for(consumer, user, "release")
    latency_ms = (time.perf_counter() - began) * 1_000
    consumer.close()
    return latency_ms


def _wait_for(consumer: Any, user: str, action: str) -> None:
    """Return when a record of a user has come; `RuntimeError` if none comes within half a minute."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if (user, action) in {(value["user"], value["action"]) for value in _polled(consumer, 500)}:
            return
    message = f"no {action} of {user} within {_PATIENCE_SECONDS} s"
    raise RuntimeError(message)


PROBE_BOUND: Final = 1_000.0
"""Bytes per second."""
PROBE_BYTES: Final = 15_000
"""Above what the bound allows in a whole window of 11 s."""
PROBED_LOAD: Final = (2_000, 1_000)
"""Events a second, clients."""
_GIVE_UP_SECONDS: Final = 60.0
_LEAST_PAUSE_SECONDS: Final = 0.8


class Prober:
    """A producer of probes and a `read_committed` reader of their records, to be closed.

    The users of the probes are probe-0, probe-1, …; see `probe_quotas`. They are held for some seconds.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = throttle_reader(bootstrap_servers)
        self._producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
        self._draw = random.Random(7)
        self._sent = 0

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()

    def probe(self, seconds: float) -> list[float]:
        """Send probes at random times for so long. Returns the latency of each in ms, in their order.

        `RuntimeError` if one gets no record within a minute.
        """
        end = time.monotonic() + seconds
        latencies_ms = []
        while time.monotonic() < end:
            self._wait_until(min(time.monotonic() + _LEAST_PAUSE_SECONDS + self._draw.random(), end))
            if time.monotonic() < end:
                latencies_ms.append(self._one())
        return latencies_ms

    def _wait_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._consumer.poll(timeout_ms=20)

    def _one(self) -> float:
        user = f"probe-{self._sent}"
        self._sent += 1
        began = time.perf_counter()
        send_events(self._producer, {user: PROBE_BYTES})
        while user not in {value["user"] for value in _polled(self._consumer, 1_000)}:
            if time.perf_counter() - began > _GIVE_UP_SECONDS:
                message = f"no record for the probe {user}"
                raise RuntimeError(message)
        return (time.perf_counter() - began) * 1_000


@contextmanager
def probing(
    root: str | None,
    trigger_ms: int,
    seconds: float,
    warm_up_seconds: float,
    checkpoint: str | None = None,
    load: tuple[int, int] = PROBED_LOAD,
) -> Iterator[tuple[BatchLog, Prober]]:
    """A job under load, with its tables under a root and warmed up, to be probed for some seconds."""
    log, quotas = BatchLog(), probe_quotas(2 * int(seconds + warm_up_seconds))
    with (
        staged(quotas, root) as stage,
        stage.load(*load),
        stage.job(trigger_ms, log.heard, checkpoint),
        closing(Prober(stage.servers)) as prober,
    ):
        prober.probe(warm_up_seconds)
        yield log, prober
