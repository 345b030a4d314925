"""What it costs to throttle many clients at once, and to renew and release them all at once.

    python -m bench.held [--clients 100000] [--waves 3]

The job's own engine, purgatory and publisher on a clock set by hand; no Spark. Rows are appended to a real
`throttle_events` by delta-rs, records are sent to a real broker in transactions. Every client has a user and a
client-id of its own and is above its producer quota, with a debt of a quarter of an hour.

    throttle      a batch in which all clients begin to be over their quota
    again         a batch in which all of them are, while they are held: nothing new is told
    renew         all of them are due at one instant, and all are renewed; median of the waves
    release       an edit takes all quotas away, and all are released

    decide   engine, decision ids, what each client is asked to wait (for a look: what it owes now)
    hold     what is told and to whom, the rows of the outbox, the timing wheel
    store    the rows into the Delta table
    send     the stored rows as messages, and their transactions until they are committed
    all      the four together
    cpu      CPU time of this process, all its threads
    broker   CPU time of the broker
    late     how late a thread that asks the wheel every 10 ms, as the job's reaper does, has its answer at the worst

Milliseconds; those of the first five by the clock on the wall. Memory is that of this process.
"""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.machine import arguments as options
from bench.machine import cpu_seconds, forget_peak, memory_mb, memory_of
from bench.pages import line
from bench.stage import add_topics, big_broker, writer_of
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import topic_specs
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings
from pipeline.tables.layout import TABLES, create_missing
from pipeline.throttle.assembly import Ports, assemble
from pipeline.throttle.publisher import DeltaOutbox, ThrottleTopic
from pipeline.throttle.rehearsal import HandSetClock
from pipeline.throttle.topic import KafkaThrottleTopic
from quota.replay import Evaluation
from quota.snapshot import QuotaSnapshot

WALL: Final = ("decide", "hold", "store", "send")
FIGURES: Final = (*WALL, "all", "cpu", "broker", "late")


class Spent:
    """Seconds by phase. Of phases inside each other the outer one does not count what the inner one took."""

    def __init__(self, broker_pid: int) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.late_seconds = 0.0
        self._broker_pid = broker_pid
        self._inner: list[float] = []
        self._began = self._cpu_seconds()

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self.seconds[phase] += took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took

    def counted(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            with self.on(phase):
                return call(*arguments, **named)

        return run

    def take(self) -> dict[str, float]:
        """Milliseconds of each phase since the last call."""
        taken = {phase: 1000 * self.seconds[phase] for phase in WALL}
        taken["all"] = sum(taken.values())
        for name, began, ended in zip(("cpu", "broker"), self._began, self._cpu_seconds(), strict=True):
            taken[name] = 1000 * (ended - began)
        taken["late"] = 1000 * self.late_seconds
        self.seconds.clear()
        self.late_seconds = 0.0
        self._began = self._cpu_seconds()
        return taken

    def _cpu_seconds(self) -> tuple[float, float]:
        return time.process_time(), cpu_seconds(self._broker_pid)


START_MS: Final = 1_795_000_000_000
BOUND: Final = 1_000.0
DEBT_SECONDS: Final = 900
JOB: Final = "held"
QUERY: Final = "query"
WARM_CLIENTS, WARM_WAVES = 5_000, 10  # before what is measured, for the broker's compiler
TIMEOUT_MS: Final = 120_000  # of a transaction
REAP_SECONDS: Final = 0.01


class Held:
    """A job without Spark, and its clients."""

    def __init__(self, clients: int, root: Path, topic: ThrottleTopic, spent: Spent) -> None:
        self.spent = spent
        self.clock = HandSetClock(START_MS)
        self._clients = clients
        self._usage = _usage(clients)
        self._batch_id = -1
        create_missing(str(root), [TABLES["throttle_events"]])
        outbox = DeltaOutbox(writer_of(str(root), "throttle_events", JOB), JOB)
        ports = Ports(outbox, topic, self.clock)
        enforcement = assemble(Settings(job=JOB), "cluster", JOB, ports)
        self.decider, self.purgatory = enforcement.decider, enforcement.purgatory
        quota = {"user": "<default>", "client_id": "<default>", "producer_byte_rate": BOUND, "mode": "enforce"}
        self._quotas = QuotaSnapshot.from_rows([quota], version=1)
        self.decider.adopt(self._quotas)
        self.purgatory.take_over()
        # Wrapped where they stand: the purgatory calls them inside its own steps.
        for name in ("decide", "look", "standing"):
            setattr(self.decider, name, self.spent.counted("decide", getattr(self.decider, name)))
        outbox.append = self.spent.counted("store", outbox.append)  # type: ignore[method-assign]
        topic.publish = self.spent.counted("send", topic.publish)  # type: ignore[method-assign]

    def batch(self) -> None:
        self._batch_id += 1
        now_ms = self.clock.now_ms
        times = {"sample_start_ms": now_ms // 1000 * 1000, "last_event_ms": now_ms}
        usage = self._usage
        for name, value in times.items():
            usage = usage.append_column(name, pa.array(np.full(self._clients, value)))
        evaluation = Evaluation(QUERY, self._batch_id, now_ms, self._quotas.version)
        decided = self.decider.decide(self._quotas, usage, evaluation, self.clock.now())
        with self.spent.on("hold"):
            self.purgatory.violated(decided.violations, evaluation, {QUERY: self._batch_id})

    def wave(self) -> int:
        """Let time pass until the next looks are due, and take them; returns the number of records."""
        while not self.purgatory.hand_out():
            due_ms = self.purgatory.next_due_ms()
            if due_ms is None:
                return 0
            self.clock.now_ms = max(self.clock.now_ms + 1, due_ms)
        with self.spent.on("hold"):
            return self.purgatory.tick()

    @contextmanager
    def reaped(self) -> Iterator[None]:
        """Ask the wheel all the while what is due, from a thread of its own, and note how late the answer comes."""
        ends = Event()

        def reap() -> None:
            asked = time.perf_counter()
            while not ends.wait(REAP_SECONDS):
                self.purgatory.hand_out()
                answered = time.perf_counter()
                self.spent.late_seconds = max(self.spent.late_seconds, answered - asked - REAP_SECONDS)
                asked = answered

        reaper = Thread(target=reap, name="reaper")
        reaper.start()
        try:
            yield
        finally:
            ends.set()
            reaper.join()

    def take_quotas_away(self) -> int:
        """An edit after which no quota is left; returns the number of records."""
        with self.spent.on("hold"):
            return self.purgatory.quotas_changed(QuotaSnapshot.from_rows([], version=2))


def _usage(clients: int) -> pa.Table:
    produced = np.full(clients, round(BOUND * DEBT_SECONDS))
    nothing = pa.nulls(clients, pa.int64())
    return pa.table(
        {
            "user": [f"user-{i:07d}" for i in range(clients)],
            "client_id": [f"client-{i % 977:04d}-{i:06d}" for i in range(clients)],
            "produced_bytes": produced,
            "fetched_bytes": nothing,
            "io_time_ns": nothing,
            "network_time_ns": nothing,
        }
    )


def measure(held: Held, clients: int, waves: int) -> tuple[dict[str, dict[str, float]], float]:
    """Milliseconds by step and phase, and the memory while all are held."""
    spent = held.spent
    spent.take()
    held.batch()
    took = {"throttle": spent.take()}
    held.clock.now_ms += 250
    held.batch()
    took["again"] = spent.take()
    rounds = []
    for _ in range(waves):
        told = held.wave()
        if told != clients:
            message = f"a wave renewed {told} of {clients} clients"
            raise RuntimeError(message)
        rounds.append(spent.take())
    took["renew"] = {phase: statistics.median(one[phase] for one in rounds) for phase in rounds[0]}
    held_mb = memory_mb()
    spent.take()
    held.take_quotas_away()
    took["release"] = spent.take()
    return took, held_mb


@contextmanager
def new_topic(broker: EmbeddedBroker) -> Iterator[ThrottleTopic]:
    name = f"throttle.{time.time_ns()}"
    add_topics(broker.bootstrap_servers, topic_specs(1, 1_000, throttle_topic=name, marker_topic=f"{name}.marker")[1:])
    topic = KafkaThrottleTopic(JOB, name, f"{name}.marker", ClusterAccess(broker.bootstrap_servers), TIMEOUT_MS)
    yield topic
    topic.close()


def run(clients: int, waves: int, broker: EmbeddedBroker) -> tuple[dict[str, dict[str, float]], str]:
    """Milliseconds by step and phase, and a line on memory."""
    with tempfile.TemporaryDirectory() as folder, new_topic(broker) as topic:
        held = Held(clients, Path(folder), topic, Spent(broker.pid or 0))
        before_mb = memory_mb()
        forget_peak()
        with held.reaped():
            took, held_mb = measure(held, clients, waves)
        memory = (
            f"{before_mb:.0f} MB before, {held_mb:.0f} MB while all are held, {memory_of()['VmHWM']:.0f} MB at most"
        )
        told, stored = clients * (waves + 2), topic.end().publish_seq + 1
        if told != stored:
            message = f"the topic has {stored} of {told} records"
            raise RuntimeError(message)
    return took, memory


def main() -> None:
    given = options(__doc__, clients=100_000, waves=3)
    with big_broker() as broker:
        run(min(WARM_CLIENTS, given.clients), WARM_WAVES, broker)
        took, memory = run(given.clients, given.waves, broker)
    widths = [-24, *[8] * len(FIGURES)]
    print(line(widths, [f"{given.clients} clients", *FIGURES]))
    for step, figures in took.items():
        print(line(widths, [step, *(figures[name] for name in FIGURES)]))
    print(f"memory: {memory}")


if __name__ == "__main__":
    main()
