"""What the reporter in a broker costs the broker, and whether its sums are right.

    python -m bench.reporter [--requests-per-second 5000] [--seconds 30] [--rounds 4]

A round has two new brokers: with the quota that makes sensors exist (for all, far above every rate), and with the
reporter too. The load is produce requests of one record of 100 bytes, acks=1, over 16 connections, sent at the time at
which they are due. Each broker gets it for 20 s to warm up. Then it goes to one after the other, a second at a time, so
that both see the same machine. The usage topic is on the same broker.

Broker and load share the machine with others, and its cores do not run at one speed: CPU for the same requests differs
by a third within seconds, for broker and load alike. So what the reporter costs is taken second by second: the broker's
CPU divided by the load's, with the reporter against the same in the second without it. A round has the median of that.

Last, clients that come and go on a broker with its request log: what the reporter has sent, against the log.
"""

import selectors
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from kafka.record.memory_records import MemoryRecordsBuilder

from bench.load import BrokerConnection, produce_request
from bench.machine import arguments, cpu_seconds
from bench.pages import percentiles, row, table
from deploy.reporter.__main__ import make
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import WARM_JAVA, BrokerOptions, EmbeddedBroker
from pipeline.meter.reporter import REPORTER_JAR
from schemas.names import USAGE_TOPIC
from tests.pipeline.meter.reported_broker import HUGE_QUOTA, bytes_in, come_and_go, logged, make_topics, reported_broker

CPU_LIMIT: Final = 1.03
P99_LIMIT: Final = 1.05
_KINDS: Final = ("quota", "reporter")
_TOPIC: Final = "load"
_CONNECTIONS: Final = 16
_STEP_SECONDS: Final = 0.001
_WARM_SECONDS: Final = 20  # in its first ten a broker costs twice as much: the JVM compiles


class Second(NamedTuple):
    """What one broker showed in one second of load, or a bit more."""

    cpu_seconds: float
    load_seconds: float  # CPU of the process that sends the load: the same work for each broker
    waited_ms: list[float]  # from the time at which a request is due to its response


Seconds = Sequence[Second]


def main() -> None:
    asked = arguments(__doc__, requests_per_second=5_000, seconds=30, rounds=4)
    make(REPORTER_JAR)
    print(f"{asked.requests_per_second:,} produce requests a second, {asked.rounds} rounds of {asked.seconds} s\n")
    rounds = [measure(asked.requests_per_second, asked.seconds) for _ in range(asked.rounds)]
    print(table(["broker with", "CPU, s", "CPU of the load, s", "p50, ms", "p99, ms"]))
    for kind in _KINDS:
        every = [second for one in rounds for second in one[kind]]
        figures = sum(one.cpu_seconds for one in every), sum(one.load_seconds for one in every)
        print(row([kind, *figures, *_latencies_ms(every)], digits=2))
    print(f"\n{verdict(rounds)}; limits: CPU x {CPU_LIMIT}, p99 x {P99_LIMIT}\n", flush=True)
    print(compared())


def measure(requests_per_second: int, seconds: int) -> dict[str, Seconds]:
    """New brokers, one of each kind, that get the load in turn."""
    with ExitStack() as stack:
        brokers: dict[str, tuple[int, list[BrokerConnection]]] = {}
        for kind in _KINDS:
            broker = stack.enter_context(broker_of(kind, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            connections = [BrokerConnection(broker.bootstrap_servers) for _ in range(_CONNECTIONS)]
            for connection in connections:
                stack.enter_context(connection.socket)
            load(connections, requests_per_second, _WARM_SECONDS)
            brokers[kind] = broker.pid or 0, connections
        measured: dict[str, list[Second]] = {kind: [] for kind in _KINDS}
        for turn in range(seconds):
            for kind in _KINDS if turn % 2 == 0 else reversed(_KINDS):
                pid, connections = brokers[kind]
                began = cpu_seconds(pid), time.thread_time()
                waited_ms = load(connections, requests_per_second, 1.0)
                spent = cpu_seconds(pid) - began[0], time.thread_time() - began[1]
                measured[kind].append(Second(*spent, waited_ms))
    return dict(measured)


@contextmanager
def broker_of(kind: str, folder: Path) -> Iterator[EmbeddedBroker]:
    """With the quota that makes sensors exist, or with the reporter too."""
    usage_topic = USAGE_TOPIC if kind == "reporter" else ""
    options = BrokerOptions(java_options=WARM_JAVA, usage_topic=usage_topic)
    with EmbeddedBroker(folder, options=options) as broker:
        make_topics(broker, USAGE_TOPIC)
        access = ClusterAccess(broker.bootstrap_servers)
        with NativeQuotas(access) as quotas, access.admin() as admin:
            quotas.alter({NativeEntity.of_row("<default>", "<default>"): HUGE_QUOTA})
            create_topics(admin, [TopicSpec(_TOPIC, "demo", _CONNECTIONS, "any", {}, {})])
        yield broker


def load(connections: Sequence[BrokerConnection], requests_per_second: int, seconds: float) -> list[float]:
    """Send requests for a time, and wait for the last response; how long each one took, in ms."""
    waited_ms: list[float] = []
    requests = [request(partition) for partition in range(_CONNECTIONS)]
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        began, sent, wanted = time.monotonic(), 0, int(requests_per_second * seconds)
        while len(waited_ms) < wanted:
            due = min(wanted, int((time.monotonic() - began) * requests_per_second))
            for number in range(sent, due):
                place = number % _CONNECTIONS
                connections[place].send(requests[place], began + number / requests_per_second)
            sent = max(sent, due)
            for key, _ in selector.select(_STEP_SECONDS):
                for at in key.data.receive():
                    waited_ms.append(1_000 * (time.monotonic() - at))  # noqa: PERF401 - the time is read each time
    return waited_ms


def request(partition: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1_024)
    builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=bytes(100), headers=[])
    builder.close()
    return produce_request(_TOPIC, partition, bytes(builder.buffer()))


def _latencies_ms(seconds: Seconds) -> list[float]:
    return percentiles([waited for one in seconds for waited in one.waited_ms])


def verdict(rounds: Sequence[Mapping[str, Seconds]]) -> str:
    """The reporter against the same broker without it: the median of the rounds, and their spread."""
    cpu, p99 = [], []
    for one in rounds:
        pairs = list(zip(one["quota"], one["reporter"], strict=True))
        cpu.append(
            median(
                after.cpu_seconds / after.load_seconds / (before.cpu_seconds / before.load_seconds)
                for before, after in pairs
            )
        )
        p99.append(_latencies_ms(one["reporter"])[1] / _latencies_ms(one["quota"])[1])
    spread = f"rounds {min(cpu):.3f} to {max(cpu):.3f}"
    return f"with the reporter: CPU x {median(cpu):.3f} ({spread}), p99 x {median(p99):.3f}"


def compared() -> str:
    """Clients that come and go on a broker with its request log, until all is reported."""
    with tempfile.TemporaryDirectory() as folder, reported_broker(Path(folder)) as broker:
        come_and_go(broker)  # raises unless each sum is equal
        theirs = bytes_in(logged(broker))
    return (
        f"{sum(theirs.values()):,} bytes of {len(theirs)} sums of clients that come and go: all as in the request log"
    )


if __name__ == "__main__":
    main()
