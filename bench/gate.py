"""How soon the gate lets callers go after a release can be read, with a real broker.

    python -m bench.gate [--rounds 5] [--job-rounds 3] [--clients 50] [--threads 200] [--tasks 2000]

All clients are throttled and all callers wait. Then the clients are let go. In the first part a publisher alone does
it: it releases one client after the other at random times, or all in one transaction. In the second part a real job,
`kquota run`, has throttled them because of their usage events. It releases each when its throttle ends, or all because
their quota was raised.

The time is measured from the instant at which a caller may go on. That is when a plain `read_committed` reader has the
release of its client, or when the throttle comes to the end that its record names, whichever is first. A job releases a
throttle after its end, so there the end is first. Broker, publisher or job, reader and gate are processes of one
machine.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final

from kafka import KafkaProducer

from bench.gate_sources import Job, Publisher, Readable, Source
from bench.gate_topic import CLIENT_ID
from bench.machine import machine_line
from bench.stage import job
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.process import terminate
from pipeline.gate.gate import Gate
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.from_settings import create_tables, open_quota_table

_REQUEST_BYTES: Final = 1_000
_TARGET_P99_MS: Final = 50
_TRIGGER_MS: Final = 250

Stage = Callable[[ExitStack, Path, str, int], Source]


@dataclass
class Measured:
    """The results for one way of releasing and one kind of caller, over all rounds.

    Attributes:
        latencies_ms: The latency of each caller.
        by_release: How many were let go by a release. The others were let go by the end of their lease.
    """

    latencies_ms: list[float] = field(default_factory=list)
    by_release: int = 0


@dataclass
class Run:
    """What a round needs, and what it measures.

    Attributes:
        gate: The gate under test.
        source: Where throttles and releases come from.
        readable: The plain reader beside the gate.
        threads: How many callers are threads.
        tasks: How many callers are asyncio tasks.
        measured: The results by (way of releasing, kind of caller).
    """

    gate: Gate
    source: Source
    readable: Readable
    threads: int
    tasks: int
    measured: dict[tuple[str, str], Measured] = field(default_factory=lambda: defaultdict(Measured))

    def round(self, release: str) -> None:
        """Throttle all clients, start all callers, release, and note how long each caller took."""
        users = self.source.throttle(release)
        _await(lambda: all(self.gate.throttle_of(user, CLIENT_ID) for user in users))
        awake: list[tuple[str, str, int]] = []
        callers = [Thread(target=lambda: asyncio.run(self._tasks(users, awake)))]
        callers += [Thread(target=self._thread, args=(users[n % len(users)], awake)) for n in range(self.threads)]
        for caller in callers:
            caller.start()
        _await(lambda: self.gate.stats().occupancy.waiting == self.threads + self.tasks)
        self.source.release(release, users)
        for caller in callers:
            caller.join()
        _await(lambda: self.readable.are_released(users))
        for kind, user, awake_ns in awake:
            let_go = self.readable.let_go(user)
            self.measured[release, kind].latencies_ms.append((awake_ns - let_go.monotonic_ns) / 1e6)
            self.measured[release, kind].by_release += let_go.by_release

    def _thread(self, user: str, awake: list[tuple[str, str, int]]) -> None:
        with self.gate.acquire(user, CLIENT_ID, request_bytes=_REQUEST_BYTES):
            awake.append(("threads", user, time.monotonic_ns()))

    async def _tasks(self, users: Sequence[str], awake: list[tuple[str, str, int]]) -> None:
        async def task(user: str) -> None:
            async with self.gate.acquire_async(user, CLIENT_ID, request_bytes=_REQUEST_BYTES):
                awake.append(("tasks", user, time.monotonic_ns()))

        await asyncio.gather(*(task(users[number % len(users)]) for number in range(self.tasks)))


def main() -> None:
    """Run all rounds and print the tables."""
    arguments = _arguments()
    print(machine_line())
    print(f"{arguments.clients} clients, {arguments.threads} threads and {arguments.tasks} tasks; ", end="")
    print(f"may go on (release readable or lease ended) -> goes on; target p99 {_TARGET_P99_MS} ms")
    for stage, rounds in ((_publisher, arguments.rounds), (_job, arguments.job_rounds)):
        if rounds:
            _measure(stage, rounds, arguments)


def _measure(stage: Stage, rounds: int, arguments: argparse.Namespace) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(EmbeddedBroker(folder / "broker")).bootstrap_servers
        with ClusterAccess(servers).admin() as admin:
            create_topics(admin, wanted_topics(Settings()))
        source = stage(stack, folder, servers, arguments.clients)
        reader = stack.enter_context(_child("read", servers))
        gate = stack.enter_context(Gate.connect(servers))
        run = Run(gate, source, Readable(reader.stdout or ()), arguments.threads, arguments.tasks)
        run.round(source.releases[-1])  # not measured: it warms up
        run.measured.clear()
        for _ in range(rounds):
            for release in source.releases:
                run.round(release)
        occupancy = gate.stats().occupancy
    print(
        f"by a {source.name}, {rounds} rounds; left in the purgatory {occupancy.purgatory_size}, "
        f"in the pool {occupancy.pool_used_bytes} bytes"
    )
    for (release, kind), measured in sorted(run.measured.items()):
        _row(f"  {release}, {kind}", measured)


def _publisher(stack: ExitStack, folder: Path, servers: str, clients: int) -> Source:
    del folder
    return Publisher(stack.enter_context(_child("publish", servers)), clients)


def _job(stack: ExitStack, folder: Path, servers: str, clients: int) -> Source:
    tables = TablesSettings(root=str(folder / "tables"))
    create_tables(tables)
    stack.enter_context(job(folder, servers, _TRIGGER_MS, lambda _: None))
    producer: Any = KafkaProducer(bootstrap_servers=servers, linger_ms=0)
    stack.callback(producer.close)
    return Job(producer, open_quota_table(tables), clients)


@contextmanager
def _child(mode: str, servers: str) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.gate_topic", mode, servers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        terminate(child, 5)  # type: ignore[arg-type]  # for a signal, text or bytes makes no difference


def _await(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds:g} s")
        time.sleep(0.01)


def _row(name: str, measured: Measured) -> None:
    values = measured.latencies_ms
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    print(
        f"{name:<27} p50 {cuts[49]:>6.1f}   p95 {cuts[94]:>6.1f}   p99 {cuts[98]:>6.1f}   max {max(values):>6.1f} ms",
        end="",
    )
    print(
        f"   first {min(values):>5.1f}   let go by a release {measured.by_release / len(values):>4.0%}, else by the end"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="by the publisher; 0 = none")
    parser.add_argument("--job-rounds", type=int, default=3, help="by the job; 0 = none")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=2_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
