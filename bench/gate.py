"""How soon the gate lets callers go after a job has let their clients go, with a real broker.

    python -m bench.gate [--rounds 3] [--clients 50] [--threads 200] [--tasks 2000]

A real job, `kquota run`, throttles all clients because of their usage events, and all callers wait. Then it releases
each client when its throttle ends, or all because their quota was raised.

The time is measured from the instant at which a caller may go on. That is when a plain `read_committed` reader has the
release of its client, or when the throttle comes to the end that its record names, whichever is first. A job releases a
throttle after its end, so there the end is first. Broker, job, reader and gate are processes of one machine.
"""

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Final

from kafka import KafkaProducer

from bench.machine import arguments as options
from bench.pages import percentiles, row, table
from bench.stage import PROBE_BOUND, Stage, child, send_events, staged, throttle_reader
from pipeline.gate.gate import Gate
from schemas.throttle_record import ThrottleRecord
from tests.waiting import wait_until

CLIENT_ID: Final = "service"


def read(servers: str) -> None:
    """Print the arrival of every record, until the process is killed."""
    consumer = throttle_reader(servers, "earliest")
    while True:
        for records in consumer.poll(timeout_ms=1_000).values():
            arrived_ns = time.monotonic_ns()
            for record in records:
                throttle = ThrottleRecord.from_value(record.value)
                print(throttle.action, throttle.user, throttle.throttled_until_ms, arrived_ns, flush=True)


ONE_BY_ONE: Final = "due, one by one"
EDITED: Final = "by a quota edit"
_BOUNDLESS: Final = 1e12
_POLL_SECONDS: Final = 1.0  # long enough for a job with a short trigger to see an edit


class Readable:
    """What a plain reader, a process of its own, has received, by user. Its output is read on a thread."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._wall_ahead_ns = time.time_ns() - time.monotonic_ns()
        self._released_ns: dict[str, int] = {}
        self._until_ns: dict[str, int] = {}
        Thread(target=self._collect, args=(lines,), daemon=True).start()

    def are_released(self, users: Iterable[str]) -> bool:
        return all(user in self._released_ns for user in users)

    def let_go(self, user: str) -> tuple[int, bool]:
        """When a client could go on, in monotonic ns, and whether that was by a release that could be read by then."""
        released_ns, until_ns = self._released_ns[user], self._until_ns[user]
        return min(released_ns, until_ns), released_ns < until_ns

    def _collect(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            action, user, until_ms, arrived_ns = line.decode().split()
            if action == "throttle":
                self._released_ns.pop(user, None)
                self._until_ns[user] = int(until_ms) * 1_000_000 - self._wall_ahead_ns
            else:
                self._released_ns[user] = int(arrived_ns)


_REQUEST_BYTES: Final = 1_000
_TARGET_P99_MS: Final = 50
_TRIGGER_MS: Final = 250


@dataclass
class Run:
    """What a round needs, and what it measures: by (way of releasing, kind of caller) each caller's latency in ms.

    With it is whether a release let it go; the others were let go by the end of their lease. All clients share one
    quota. Each round has new users, because the rates of the earlier ones are still high.
    """

    gate: Gate
    stage: Stage
    producer: Any
    readable: Readable
    clients: int
    threads: int
    tasks: int
    rounds: int = 0
    bound: float = 0.0
    measured: dict[tuple[str, str], list[tuple[float, bool]]] = field(default_factory=lambda: defaultdict(list))

    def round(self, release: str) -> None:
        """Throttle all clients, start all callers, release, and note how long each caller took."""
        users = self._throttle(release)
        wait_until(lambda: all(self.gate.throttle_of(user, CLIENT_ID) for user in users), "the throttles")
        awake: list[tuple[str, str, int]] = []
        callers = [Thread(target=lambda: asyncio.run(self._tasks(users, awake)))]
        callers += [Thread(target=self._thread, args=(users[n % len(users)], awake)) for n in range(self.threads)]
        for caller in callers:
            caller.start()
        wait_until(lambda: self.gate.stats().occupancy.waiting == self.threads + self.tasks, "all callers to wait")
        if release == EDITED:  # otherwise the job releases them when their throttles end
            self._alter(_BOUNDLESS)
        for caller in callers:
            caller.join()
        wait_until(lambda: self.readable.are_released(users), "the releases")
        for kind, user, awake_ns in awake:
            let_go_ns, by_release = self.readable.let_go(user)
            self.measured[release, kind].append(((awake_ns - let_go_ns) / 1e6, by_release))

    def _throttle(self, release: str) -> list[str]:
        """Send one event per client, about 15 to 19 times its quota: it must wait 5 to 9 s; or 9 s for all of them."""
        self._alter(PROBE_BOUND)
        users = [f"round-{self.rounds}-{number}" for number in range(self.clients)]
        self.rounds += 1
        shares = (place / len(users) if release == ONE_BY_ONE else 1.0 for place in range(len(users)))
        used = [int((15 + 4 * share) * PROBE_BOUND) for share in shares]
        send_events(self.producer, dict(zip(users, used, strict=True)), CLIENT_ID)
        return users

    def _alter(self, bound: float) -> None:
        if bound != self.bound:
            self.stage.alter("<default>", bound)
            self.bound = bound
            if bound == PROBE_BOUND:
                time.sleep(_POLL_SECONDS)

    def _thread(self, user: str, awake: list[tuple[str, str, int]]) -> None:
        with self.gate.acquire(user, CLIENT_ID, request_bytes=_REQUEST_BYTES):
            awake.append(("threads", user, time.monotonic_ns()))

    async def _tasks(self, users: Sequence[str], awake: list[tuple[str, str, int]]) -> None:
        async def task(user: str) -> None:
            async with self.gate.acquire_async(user, CLIENT_ID, request_bytes=_REQUEST_BYTES):
                awake.append(("tasks", user, time.monotonic_ns()))

        await asyncio.gather(*(task(users[number % len(users)]) for number in range(self.tasks)))


def main() -> None:
    given = options(__doc__, rounds=3, clients=50, threads=200, tasks=2_000)
    print(f"{given.clients} clients, {given.threads} threads and {given.tasks} tasks; ", end="")
    print(f"may go on (release readable or lease ended) -> goes on; target p99 {_TARGET_P99_MS} ms")
    with ExitStack() as stack:
        stage = stack.enter_context(staged())
        stack.enter_context(stage.job(_TRIGGER_MS))
        producer: Any = KafkaProducer(bootstrap_servers=stage.servers, linger_ms=0)
        stack.callback(producer.close)
        command = [sys.executable, "-m", "bench.gate", "read", stage.servers]
        reader = stack.enter_context(child(command, subprocess.PIPE))
        gate = stack.enter_context(Gate.connect(stage.servers))
        amounts = given.clients, given.threads, given.tasks
        run = Run(gate, stage, producer, Readable(reader.stdout or ()), *amounts)
        run.round(EDITED)  # not measured: it warms up
        run.measured.clear()
        for _ in range(given.rounds):
            for release in (ONE_BY_ONE, "due, at once", EDITED):
                run.round(release)
        occupancy = gate.stats().occupancy
    print(
        f"{given.rounds} rounds; left in the purgatory {occupancy.purgatory_size}, "
        f"in the pool {occupancy.pool_used_bytes} bytes"
    )
    print(
        table(["released", "callers", "first ms", "p50", "p95", "p99", "max", "let go by a release, else by the end"])
    )
    for (release, kind), measured in sorted(run.measured.items()):
        values = [latency_ms for latency_ms, _ in measured]
        share = sum(by_release for _, by_release in measured) / len(values)
        figures = min(values), *percentiles(values, (50, 95, 99)), max(values)
        print(row([release, kind, *figures, f"{share:.0%}"], digits=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        read(sys.argv[2])
    else:
        main()
