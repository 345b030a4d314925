"""The gate: from a record that can be read to the callers it lets go, on a real broker.

    python -m bench.gate [--rounds 5] [--clients 50] [--threads 200] [--tasks 2000]

All clients are throttled and all callers wait; then every client is released, one transaction each at random times
(singly), or all in one transaction (at once). A record counts as readable when a bare `read_committed` reader, a
process of its own, has it in hand. Broker, publisher, reader and gate are four processes on one machine.
"""

import argparse
import asyncio
import random
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
from typing import Final

from bench.gate_topic import CLIENT_ID, user_of
from bench.machine import machine_line
from pipeline.cluster.access import ClusterAccess
from pipeline.embedded.broker import EmbeddedBroker
from pipeline.embedded.process import terminate
from pipeline.throttle.gate import Gate
from pipeline.throttle.topics import create_topics, topic_specs

_REQUEST_BYTES: Final = 1_000
_TARGET_P99_MS: Final = 50


@dataclass
class Run:
    """What a round needs and what it measures.

    Attributes:
        gate: Under test.
        publisher: The child that publishes.
        readable_ns: Arrival of each `publish_seq` at the reader.
        clients: How many.
        latencies_ms: By (release, kind of caller), of all rounds.
    """

    gate: Gate
    publisher: "subprocess.Popen[str]"
    readable_ns: dict[int, int]
    clients: int
    latencies_ms: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def publish(self, action: str, first: int, last: int) -> int:
        """Publish in one transaction; the `publish_seq` of the first record."""
        orders, answers = self.publisher.stdin, self.publisher.stdout
        if orders is None or answers is None:
            sys.exit("the publisher must have pipes")
        orders.write(f"{action} {first} {last}\n")
        orders.flush()
        return int(answers.readline())

    def round(self, release: str, threads: int, tasks: int) -> None:
        """Throttle all, let all callers come, release, and note how long each took."""
        self.publish("throttle", 0, self.clients - 1)
        _await(lambda: len(self.gate.throttles()) == self.clients)
        awake: list[tuple[str, int, int]] = []
        loop = Thread(target=lambda: asyncio.run(self._tasks(tasks, awake)))
        callers = [loop, *(Thread(target=self._thread, args=(n % self.clients, awake)) for n in range(threads))]
        for caller in callers:
            caller.start()
        _await(lambda: self.gate.stats().occupancy.waiting == threads + tasks)
        seq_of = self._release(release)
        for caller in callers:
            caller.join()
        _await(lambda: all(seq in self.readable_ns for seq in seq_of))
        for kind, client, awake_ns in awake:
            self.latencies_ms[release, kind].append((awake_ns - self.readable_ns[seq_of[client]]) / 1e6)

    def _release(self, release: str) -> list[int]:
        if release == "at once":
            first = self.publish("release", 0, self.clients - 1)
            return list(range(first, first + self.clients))
        seqs = []
        for client in range(self.clients):
            seqs.append(self.publish("release", client, client))
            time.sleep(random.uniform(0.02, 0.08))
        return seqs

    def _thread(self, client: int, awake: list[tuple[str, int, int]]) -> None:
        with self.gate.acquire(user_of(client), CLIENT_ID, request_bytes=_REQUEST_BYTES):
            awake.append(("threads", client, time.monotonic_ns()))

    async def _tasks(self, tasks: int, awake: list[tuple[str, int, int]]) -> None:
        async def task(client: int) -> None:
            async with self.gate.acquire_async(user_of(client), CLIENT_ID, request_bytes=_REQUEST_BYTES):
                awake.append(("tasks", client, time.monotonic_ns()))

        await asyncio.gather(*(task(number % self.clients) for number in range(tasks)))


def main() -> None:
    """Run all rounds and print the table."""
    arguments = _arguments()
    print(machine_line())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(EmbeddedBroker(folder / "broker")).bootstrap_servers
        with ClusterAccess(servers).admin() as admin:
            create_topics(admin, topic_specs(1, 1_000)[1:])
        publisher = stack.enter_context(_child("publish", servers))
        reader = stack.enter_context(_child("read", servers))
        gate = stack.enter_context(Gate.connect(servers))
        run = Run(gate, publisher, _readable(reader), arguments.clients)
        for number in range(arguments.rounds + 1):
            for release in ("singly", "at once"):
                run.round(release, arguments.threads, arguments.tasks)
            if number == 0:
                run.latencies_ms.clear()  # the first round warms up
        occupancy = gate.stats().occupancy
    print(
        f"{arguments.clients} clients, {arguments.threads} threads and {arguments.tasks} tasks, "
        f"{arguments.rounds} rounds; left in the purgatory {occupancy.purgatory_size}, "
        f"in the pool {occupancy.pool_used_bytes} bytes; target p99 {_TARGET_P99_MS} ms"
    )
    for (release, kind), latencies_ms in sorted(run.latencies_ms.items(), reverse=True):
        _row(f"released {release}, {kind}: record readable -> caller awake", latencies_ms)


def _readable(reader: "subprocess.Popen[str]") -> dict[int, int]:
    arrivals: dict[int, int] = {}

    def collect() -> None:
        for line in reader.stdout or ():
            seq, arrived_ns = line.split()
            arrivals[int(seq)] = int(arrived_ns)

    Thread(target=collect, daemon=True).start()
    return arrivals


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
        terminate(child, 5)  # type: ignore[arg-type]  # text or bytes makes no difference to a signal


def _await(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds:g} s")
        time.sleep(0.01)


def _row(name: str, values: Sequence[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    print(f"{name:<62} p50 {cuts[49]:>6.1f}   p95 {cuts[94]:>6.1f}   p99 {cuts[98]:>6.1f}   max {max(values):>6.1f} ms")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=2_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
