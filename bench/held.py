"""What it costs to hold many clients: throttled at once, and renewed at once.

    python -m bench.held [--clients 100000 10000] [--waves 3]

The job's own engine, purgatory and publisher on a clock set by hand; no Spark. Rows are appended to a real
`throttle_events` by delta-rs, records are sent to a real broker in transactions. Every client has a user and a
client-id of its own and is above its producer quota, with a debt of a quarter of an hour.

    throttle   a batch in which all clients begin to be over their quota
    renew      all of them are due at one instant, and all are renewed; median of the waves

Each is decided, stored, and on the topic; seconds by the clock on the wall.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench.machine import arguments
from bench.pages import row, table
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.demo.broker import WARM_JAVA, BrokerOptions, EmbeddedBroker
from pipeline.errors import ClusterUnreachable
from pipeline.settings.model import Settings
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.throttle.assembly import HandSetClock, assemble
from pipeline.throttle.publisher import Outbox, Publisher, ThrottleTopic
from pipeline.throttle.topic import KafkaThrottleTopic
from quota.decisions import Evaluation
from quota.snapshot import QuotaSnapshot
from tests.waiting import wait_until

START_MS: Final = 1_795_000_000_000
BOUND: Final = 1_000.0
DEBT_SECONDS: Final = 900
JOB: Final = "held"
QUERY: Final = "query"
WARM: Final = (5_000, 10)
"""Clients and waves before what is measured, for the broker's compiler."""
TIMEOUT_MS: Final = 120_000  # of a transaction
TARGETS_SECONDS: Final = {100_000: 6, 10_000: 1}


class Held:
    """A job without Spark, and its clients."""

    def __init__(self, clients: int, root: Path, topic: ThrottleTopic) -> None:
        self._clients = clients
        self._clock = HandSetClock(START_MS)
        create_missing(str(root), [TABLES["throttle_events"]])
        writer = DeltaRsWriter(table_uri(str(root), "throttle_events"), JOB)
        writer.raise_epoch(1)
        publisher = Publisher(JOB, JOB, Outbox(writer, JOB), topic)
        self._purgatory = assemble(Settings(job=JOB), "cluster", JOB, publisher, self._clock)
        self._decider = self._purgatory.decider
        quota = {"user": "<default>", "client_id": "<default>", "producer_byte_rate": BOUND, "mode": "enforce"}
        self._quotas = QuotaSnapshot.from_rows([quota], version=1)
        self._decider.adopt(self._quotas)
        self._purgatory.take_over()

    def throttle(self) -> float:
        """Seconds of the batch."""
        usage, evaluation = self._usage(), Evaluation(QUERY, 0, START_MS, self._quotas.version)
        began = time.perf_counter()
        decided = self._decider.decide(self._quotas, usage, evaluation, self._clock.now())
        self._purgatory.violated(decided.violations, evaluation, {QUERY: 0})
        return time.perf_counter() - began

    def wave(self) -> float:
        """Let time pass until the next checks are due. Returns the seconds that they take."""
        told, seconds = 0, 0.0
        while not told and (due_ms := self._purgatory.next_due_ms()) is not None:
            self._clock.now_ms = max(self._clock.now_ms + 1, due_ms)
            began = time.perf_counter()
            told = self._purgatory.tick()
            seconds = time.perf_counter() - began
        if told != self._clients:
            message = f"a wave renewed {told} of {self._clients} clients"
            raise RuntimeError(message)
        return seconds

    def _usage(self) -> pa.Table:
        nothing = pa.nulls(self._clients, pa.int64())
        columns = {
            "user": [f"user-{i:07d}" for i in range(self._clients)],
            "client_id": [f"client-{i % 977:04d}-{i:06d}" for i in range(self._clients)],
            "produced_bytes": np.full(self._clients, round(BOUND * DEBT_SECONDS)),
            "sample_start_ms": np.full(self._clients, START_MS),
            "last_event_ms": np.full(self._clients, START_MS),
        }
        return pa.table(columns | dict.fromkeys(("fetched_bytes", "io_time_ns", "network_time_ns"), nothing))


def measure(broker: EmbeddedBroker, clients: int, waves: int) -> tuple[float, float]:
    """Seconds of the first batch, and of a wave."""
    name = f"throttle.{time.time_ns()}"
    access = ClusterAccess(broker.bootstrap_servers)
    with access.admin() as admin:
        create_topics(admin, topic_specs(1, 1_000, throttle_topic=name, marker_topic=f"{name}.marker")[1:])
    topic = KafkaThrottleTopic(JOB, name, f"{name}.marker", access, TIMEOUT_MS)
    wait_until(lambda: _answers(topic), "the coordinator of the transactions")
    with tempfile.TemporaryDirectory() as folder:
        held = Held(clients, Path(folder), topic)
        first_seconds, wave_seconds = held.throttle(), statistics.median(held.wave() for _ in range(waves))
    told, stored = clients * (waves + 1), topic.end().publish_seq + 1
    topic.close()
    if told != stored:
        message = f"the topic has {stored} of {told} records"
        raise RuntimeError(message)
    return first_seconds, wave_seconds


def _answers(topic: ThrottleTopic) -> bool:
    try:
        topic.committed()
    except ClusterUnreachable:
        return False
    return True


def main() -> None:
    given = arguments(__doc__, clients=list(TARGETS_SECONDS), waves=3)
    options = BrokerOptions(java_options=WARM_JAVA)
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder), options=options) as broker:
        measure(broker, *WARM)
        print(table(["clients", "throttle, s", "renew, s", "target, s"]))
        for clients in given.clients:
            seconds = measure(broker, clients, given.waves)
            print(row([f"{clients:,}", *(f"{one:.2f}" for one in seconds), str(TARGETS_SECONDS.get(clients, ""))]))


if __name__ == "__main__":
    main()
