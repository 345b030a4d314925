"""What benchmarks work with: a broker, topics, tables and quotas, the load, the job, the dashboard, a reader, probes.

Load, job and dashboard are processes of their own, so that they do not share the measuring interpreter.
"""

import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from kafka import KafkaConsumer, KafkaProducer

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.process import terminate
from pipeline.settings.model import Settings
from pipeline.tables.from_settings import create_tables
from schemas.names import THROTTLE_TOPIC, USAGE_TOPIC


def create_topics_and_tables(settings: Settings, bootstrap_servers: str) -> None:
    """Create the topics and tables of a job, those that are missing."""
    with ClusterAccess(bootstrap_servers).admin() as admin:
        create_topics(admin, wanted_topics(settings))
    create_tables(settings.tables)


@contextmanager
def child(command: Sequence[str], stderr: int = subprocess.DEVNULL) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a group of its own. It ends when the block ends."""
    started = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
    )
    try:
        yield started
    finally:
        terminate(started, 20)


@contextmanager
def job(
    folder: Path,
    bootstrap_servers: str,
    trigger_ms: int,
    heard: Callable[[str], None],
    tables: str | None = None,
    checkpoint: str | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """`kquota run` with tables, checkpoint and lock under a folder. The block begins when the job is running.

    The block has its process.

    Args:
        folder: where the job keeps everything.
        bootstrap_servers: of the broker.
        trigger_ms: of the query.
        heard: called with every line of the job's log, from its start; once the job is running on a thread.
        tables: root of its tables, if it is not under the folder.
        checkpoint: likewise.
    """
    command = [sys.executable, "-m", "pipeline.cli.main", "run", "--bootstrap-server", bootstrap_servers]
    command += ["--tables", tables or str(folder / "tables")]
    command += ["--checkpoint", checkpoint or str(folder / "checkpoint")]
    command += ["--trigger-ms", str(trigger_ms), "--run-dir", str(folder)]
    with child(command, subprocess.PIPE) as running:
        stderr = running.stderr or io.BytesIO()
        told: list[bytes] = []
        for line in stderr:
            told.append(line)
            heard(line.decode())
            if b"running; trigger" in line:
                break
        else:
            sys.exit(f"the job must start; it ended with\n{b''.join(told[-20:]).decode()}")

        def read() -> None:
            for line in stderr:
                heard(line.decode())

        Thread(target=read, daemon=True).start()
        yield running


@contextmanager
def dashboard(
    tables: str, *options: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, int]]:
    """`kquota dashboard` on a free port; the block has the page's address and its process id.

    Args:
        tables: root of the tables.
        options: further ones of the command.
        environment: further variables.
    """
    command = [sys.executable, "-m", "pipeline.cli.main", "dashboard", "--port", "0", "--tables", tables, *options]
    started = subprocess.Popen(
        command, stderr=subprocess.PIPE, env={**os.environ, **environment}, start_new_session=True
    )
    try:
        told = started.stderr.readline().decode() if started.stderr else ""
        if not told.startswith("dashboard: http"):
            sys.exit(f"the dashboard must start; got {told}")
        yield told.split()[1], started.pid
    finally:
        terminate(started, 20)


_PATIENCE_SECONDS: Final = 30


def throttle_reader(bootstrap_servers: str) -> Any:
    """A `read_committed` consumer that misses no record from now on.

    Args:
        bootstrap_servers: Of the broker.
    """
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


def wait_for(consumer: Any, user: str, action: str) -> None:
    """Return when a record of a user has come; end the program if none comes within half a minute."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=500).values():
            for record in records:
                value = json.loads(record.value)
                if (value["user"], value["action"]) == (user, action):
                    return
    sys.exit(f"no {action} of {user} within {_PATIENCE_SECONDS} s")


PROBE_BOUND: Final = 1_000.0
"""Bytes per second."""
PROBE_BYTES: Final = 15_000
"""Above what the bound allows in a whole window of 11 s."""
_GIVE_UP_SECONDS: Final = 60.0
_LEAST_PAUSE_SECONDS: Final = 0.8


class Prober:
    """A producer of probes and a `read_committed` reader of their records. Use it in a `with` block.

    The users of the probes are probe-0, probe-1, …; each needs a quota of `PROBE_BOUND`. They are held for some
    seconds.

    Args:
        bootstrap_servers: Of the broker.

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

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        event = {
            "event_time_ms": time.time_ns() // 1_000_000,
            "user": user,
            "client_id": "p",
            "produced_bytes": PROBE_BYTES,
        }
        began = time.perf_counter()
        self._producer.send(USAGE_TOPIC, json.dumps(event).encode())
        self._producer.flush()
        while user not in self._users():
            if time.perf_counter() - began > _GIVE_UP_SECONDS:
                self.missing = user
                return None
        return (time.perf_counter() - began) * 1_000

    def _users(self) -> set[str]:
        polled = self._consumer.poll(timeout_ms=1_000)
        return {json.loads(record.value)["user"] for records in polled.values() for record in records}
