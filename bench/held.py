"""What it costs to throttle many clients at once, and to renew and release them all at once.

    python -m bench.held [--clients 100000] [--waves 3] [--profile]

The job's own engine, purgatory and publisher on a clock set by hand. Rows are appended to a real `throttle_events` by
delta-rs; records are made into the bytes of the topic and dropped: there is no broker and no Spark. Every client has a
user and a client-id of its own and is above its producer quota, with a debt of a quarter of an hour.

    throttle      a batch in which all clients begin to be over their quota
    again         a batch in which all of them are, while they are held: nothing new is told
    renew         all of them are due at one instant, and all are renewed; median of the waves
    release       an edit takes all quotas away, and all are released

    decide   engine, decision ids, what each client is asked to wait (for a look: what it owes now)
    hold     what is told and to whom, the rows of the outbox, the timing wheel
    encode   the stored rows as keys, values and headers of the topic
    ours     the three together
    append   the rows into the Delta table
    wall     all of it by the clock on the wall, append included
    late     how late a thread that asks the wheel every 10 ms, as the job's reaper does, has its answer at the worst

Milliseconds of CPU of the process, all its threads together, so that other work on the machine counts little; `wall`
and `late` are the exceptions. Memory is that of the process.
"""

import argparse
import cProfile
import gc
import pstats
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.machine import machine_line
from pipeline.settings.model import Settings
from pipeline.simulation.ports import NoTopic, SimulatedClock
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing, table_uri
from pipeline.tables.throttle_outbox import DeltaOutbox
from pipeline.throttle.assembly import Ports, assemble
from quota.evaluation import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.throttle_record import ThrottleRecord
from schemas.throttle_records import ThrottleRecords

START_MS: Final = 1_795_000_000_000
BOUND: Final = 1_000.0
DEBT_SECONDS: Final = 900
JOB: Final = "held"
QUERY: Final = "query"
OURS: Final = ("decide", "hold", "encode")
PHASES: Final = (*OURS, "ours", "append", "wall", "late")
REAP_SECONDS: Final = 0.01
SHOWN_FUNCTIONS: Final = 25


class Spent:
    """Seconds by phase. Of phases inside each other the outer one does not count what the inner one took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.late_seconds = 0.0
        self._inner: list[float] = []
        self._began = time.perf_counter()

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        """Count what is done inside."""
        began = time.process_time()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = time.process_time() - began
            self.seconds[phase] += took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took

    def counted(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted."""

        def run(*arguments: Any, **named: Any) -> Any:
            with self.on(phase):
                return call(*arguments, **named)

        return run

    def take(self) -> dict[str, float]:
        """Milliseconds of each phase since the last call."""
        taken = {phase: 1000 * self.seconds[phase] for phase in (*OURS, "append")}
        taken["ours"] = sum(taken[phase] for phase in OURS)
        taken["wall"] = 1000 * (time.perf_counter() - self._began)
        taken["late"] = 1000 * self.late_seconds
        self.begin()
        return taken

    def begin(self) -> None:
        """Count from now on."""
        self.seconds.clear()
        self.late_seconds = 0.0
        self._began = time.perf_counter()


class EncodedTopic(NoTopic):
    """Makes records into the bytes that a producer is given, and drops them."""

    def __init__(self) -> None:
        self.records = 0
        self.value_bytes = 0

    def publish(self, records: Sequence[ThrottleRecord], marker: int) -> None:
        """Encode the records."""
        del marker
        self.value_bytes += sum(len(message.value) for message in ThrottleRecords.of(records).messages(JOB))
        self.records += len(records)


class TimedOutbox(DeltaOutbox):
    """The outbox, its appends counted."""

    def __init__(self, root: Path, spent: Spent) -> None:
        create_missing(str(root), [TABLES["throttle_events"]])
        writer = DeltaRsWriter(table_uri(str(root), "throttle_events"), JOB)
        writer.raise_epoch(1)
        super().__init__(writer, JOB)
        self._spent = spent

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """See `Outbox`."""
        with self._spent.on("append"):
            return super().append(rows, versions, metadata)


class Held:
    """A job without Spark and broker, and its clients."""

    def __init__(self, clients: int, root: Path) -> None:
        self.spent = Spent()
        self.clock = SimulatedClock(START_MS)
        self.topic = EncodedTopic()
        self._clients = clients
        self._usage = _usage(clients)
        self._batch_id = -1
        ports = Ports(TimedOutbox(root, self.spent), self.topic, self.clock)
        enforcement = assemble(Settings(job=JOB), "cluster", JOB, ports)
        self.decider, self.purgatory = enforcement.decider, enforcement.purgatory
        quota = {"user": "<default>", "client_id": "<default>", "producer_byte_rate": BOUND, "mode": "enforce"}
        self._quotas = QuotaSnapshot.from_rows([quota], version=1)
        self.decider.adopt(self._quotas)
        self.purgatory.take_over()
        # Wrapped where they stand: the purgatory calls them inside its own steps.
        for name in ("decide", "look", "standing"):
            setattr(self.decider, name, self.spent.counted("decide", getattr(self.decider, name)))
        self.topic.publish = self.spent.counted("encode", self.topic.publish)  # type: ignore[method-assign]

    def batch(self) -> None:
        """A micro-batch in which all clients use what `_usage` says."""
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


def memory_mb() -> float:
    """What the process holds now, in MB."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def measure(held: Held, clients: int, waves: int) -> tuple[dict[str, dict[str, float]], float]:
    """Milliseconds by step and phase, and the memory while all are held."""
    spent = held.spent
    spent.begin()
    held.batch()
    took = {"throttle": spent.take()}
    held.clock.now_ms += 250
    held.batch()
    took["again"] = spent.take()
    rounds = []
    for _ in range(waves):
        told = held.wave()
        if told != clients:
            message = f"a wave must renew {clients} clients; got {told} records"
            raise RuntimeError(message)
        rounds.append(spent.take())
    took["renew"] = {phase: statistics.median(one[phase] for one in rounds) for phase in rounds[0]}
    held_mb = memory_mb()
    spent.begin()
    held.take_quotas_away()
    took["release"] = spent.take()
    return took, held_mb


def main() -> None:
    """Print the machine, a line for each step, and the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also print where the time goes; all takes longer then")
    arguments = parser.parse_args()
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        held = Held(arguments.clients, Path(folder))
        before_mb = memory_mb()
        profile = cProfile.Profile()
        if arguments.profile:
            profile.enable()
        with held.reaped():
            took, held_mb = measure(held, arguments.clients, arguments.waves)
        profile.disable()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"{f'{arguments.clients} clients, ms':<18}" + "".join(f"{phase:>10}" for phase in PHASES))
    for step, phases in took.items():
        print(f"{step:<18}" + "".join(f"{phases[phase]:>10.0f}" for phase in PHASES))
    print(f"memory: {before_mb:.0f} MB before, {held_mb:.0f} MB while all are held, {peak_mb:.0f} MB at most")
    print(f"{held.topic.records} records with values of {held.topic.value_bytes // max(held.topic.records, 1)} bytes")
    if arguments.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN_FUNCTIONS)


if __name__ == "__main__":
    main()
