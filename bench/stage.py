"""What benchmarks work with: a broker, topics, tables and quotas, the load, the job, a reader, probes.

Load and job are processes of their own, so that they do not share the measuring interpreter.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, Self

from kafka import KafkaConsumer, KafkaProducer

from pipeline.demo.broker import EmbeddedBroker
from pipeline.process import spawn, terminate
from pipeline.tables.layout import create_tables
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from schemas.names import MARKER_TOPIC, THROTTLE_TOPIC, USAGE_TOPIC
from tests.integration.running_job import RunningJob

KQUOTA: Final = (sys.executable, "-m", "pipeline.cli.main")
_USUAL: Final = {
    "KQUOTA_KAFKA__USAGE_TOPIC": USAGE_TOPIC,
    "KQUOTA_KAFKA__THROTTLE_TOPIC": THROTTLE_TOPIC,
    "KQUOTA_KAFKA__MARKER_TOPIC": MARKER_TOPIC,
}
_LINES_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker with the topics and tables of a job, which is not started yet."""

    broker: EmbeddedBroker
    job: RunningJob

    @classmethod
    def of(cls, folder: Path, broker: EmbeddedBroker, quotas: Sequence[Mapping[str, Any]] = ()) -> Self:
        """Make topics and tables, with these rows in the quota table."""
        job = RunningJob("bench", folder, broker.bootstrap_servers, dict(_USUAL))
        job.create_topics()
        create_tables(job.settings.tables.root)
        stage = cls(broker, job)
        if quotas:
            QuotaTable(stage.root).commit(lambda _: [dict(row) for row in quotas], local_audit("bench"))
        return stage

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    @property
    def root(self) -> str:
        """The root of the tables."""
        return str(self.job.settings.tables.root)

    def alter(self, user: str, rate: float) -> None:
        QuotaTable(self.root).alter([QuotaChange(user, "", {"producer_byte_rate": rate})], local_audit("bench"))

    def load(
        self, events_per_second: int, clients: int, events_per_message: int = 1
    ) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """`bench.load` on the usage topic, in a process of its own."""
        numbers = map(str, (events_per_second, clients, events_per_message))
        return child([sys.executable, "-m", "bench.load", self.servers, USAGE_TOPIC, *numbers])

    @contextmanager
    def running(self, trigger_ms: int) -> Iterator[int]:
        """`kquota run` on these tables; the block begins when the job is running, and has its process id.

        What the block raises has the end of the job's log as a note.
        """
        self.job.overrides["KQUOTA_STREAM__TRIGGER_MS"] = str(trigger_ms)
        try:
            self.job.start()
            yield self.job.process.pid if self.job.process else 0
        except Exception as failure:
            failure.add_note("\n".join(["the end of the job's log:", *self.job.log[-_LINES_SHOWN:]]))
            raise
        finally:
            self.job.close()

    @contextmanager
    def sync(self, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
        """`kquota quotas sync` on these tables; its log is in the job's folder."""
        command = [*KQUOTA, "quotas", "sync", "--tables", self.root, "--bootstrap-server", self.servers]
        with (self.job.folder / "sync.log").open("wb") as log, child(command, log, variables):
            yield


@contextmanager
def staged(quotas: Sequence[Mapping[str, Any]] = ()) -> Iterator[Stage]:
    """A `Stage.of` with a broker of its own; all of it lies in one folder, which goes when the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with EmbeddedBroker(folder / "broker") as broker:
            yield Stage.of(folder, broker, quotas)


def bound(user: str, rate: float, client_id: str = "") -> dict[str, Any]:
    return {"user": user, "client_id": client_id, "producer_byte_rate": rate}


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


PROBE_BOUND: Final = 1_000.0
"""Bytes per second."""
PROBE_BYTES: Final = 15_000
"""Above what the bound allows in a whole window of 11 s."""
_GIVE_UP_SECONDS: Final = 60.0
_LEAST_PAUSE_SECONDS: Final = 0.8


def probe_quotas(probes: int) -> list[dict[str, Any]]:
    """Quotas under which only the probes of a `Prober` are throttled. Too many of them do no harm."""
    everybody = bound("<default>", 1e9, "<default>")
    return [everybody, *(bound(f"probe-{number}", PROBE_BOUND) for number in range(probes))]


class Prober:
    """A producer of usage events and a `read_committed` reader of the throttle records, to be closed.

    The users of the probes are probe-0, probe-1, …; see `probe_quotas`. They are held for some seconds.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
        self._consumer: Any = KafkaConsumer(
            THROTTLE_TOPIC, bootstrap_servers=bootstrap_servers, isolation_level="read_committed"
        )
        # The topic's end is asked for only now. A record of before that answer would never be read.
        while not self._consumer.assignment():
            self._consumer.poll(timeout_ms=100)
        for partition in self._consumer.assignment():
            self._consumer.position(partition)
        self._draw = random.Random(7)
        self._sent = 0

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()

    def probe(self, seconds: float) -> list[float]:
        """Send probes at random times for that long. Returns the latency of each in ms, in their order."""
        end = time.monotonic() + seconds
        latencies_ms = []
        while time.monotonic() < end:
            self._wait_until(min(time.monotonic() + _LEAST_PAUSE_SECONDS + self._draw.random(), end))
            if time.monotonic() < end:
                began = time.perf_counter()
                self.throttle(f"probe-{self._sent}")
                self._sent += 1
                latencies_ms.append((time.perf_counter() - began) * 1_000)
        return latencies_ms

    def throttle(self, user: str) -> None:
        """Send an event far above `PROBE_BOUND`. Returns when the throttle of the user can be read."""
        event = {"event_time_ms": time.time_ns() // 1_000_000, "user": user, "client_id": "c"}
        self._producer.send(USAGE_TOPIC, json.dumps({**event, "produced_bytes": PROBE_BYTES}).encode())
        self._producer.flush()
        self.await_record(user, "throttle")

    def await_record(self, user: str, action: str) -> None:
        """Return when a record of a user has come; `RuntimeError` if none comes within a minute."""
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            polled = self._consumer.poll(timeout_ms=1_000).values()
            values = (json.loads(record.value) for records in polled for record in records)
            if (user, action) in {(value["user"], value["action"]) for value in values}:
                return
        message = f"no {action} of {user} within {_GIVE_UP_SECONDS:g} s"
        raise RuntimeError(message)

    def _wait_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._consumer.poll(timeout_ms=20)
