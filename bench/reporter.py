"""What the reporter in a broker costs the broker, and whether its sums are right.

    python -m bench.reporter [--requests-per-second 5000] [--seconds 30] [--rounds 4] [--clients 10000] [--minutes 3]

A round has three new brokers: without a quota, with the quota that makes sensors exist (for all, far above every rate),
and with the reporter too. The load is produce requests of one record of 100 bytes, acks=1, over 16 connections, sent at
the time at which they are due. Each broker gets it for 20 s to warm up. Then it goes to one after the other, a second
at a time, so that all see the same machine. The usage topic is on the same broker. Then the same quota and reporter
with many client-ids, each of which has its sensors.

    CPU       of the broker's process while it has the load, percent of one core
    reporter  of this the reporter's own two threads
    load      CPU of the process that sends the load: the same work for each broker
    p50, p99  from the time at which a request is due to its response, ms

Broker and load share the machine with others, and its cores do not run at one speed: CPU for the same requests differs
by a third within seconds, for broker and load alike. So what the reporter costs is taken second by second: the broker's
CPU divided by the load's, with the reporter against the same in the second without it. A round has the median of that.

Last, clients that come and go on a broker with its request log: what the reporter has sent, against the log.
"""

import random
import selectors
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Final, NamedTuple

import numpy as np
from kafka.record.memory_records import MemoryRecordsBuilder

from bench.load import BrokerConnection, produce_request
from bench.machine import arguments as options
from bench.machine import cpu_seconds
from bench.pages import percentiles, row, table
from bench.stage import add_topics
from deploy.reporter.__main__ import make
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.meter.reporter import REPORTER_JAR
from schemas.names import USAGE_TOPIC
from tests.pipeline.meter.reported_broker import (
    HUGE_QUOTA,
    USERS,
    bytes_in,
    consume,
    logged,
    make_topics,
    produce,
    reported,
    reported_broker,
)

CPU_LIMIT: Final = 1.03
P99_LIMIT: Final = 1.05
_KINDS: Final = ("no quota", "quota", "reporter")
_COLUMNS: Final = {
    **{"CPU %": ".1f", "reporter %": ".2f", "load %": ".1f"},
    **{"requests/s": ",.0f", "p50 ms": ".2f", "p99 ms": ".2f"},
}
_TOPIC: Final = "load"
_CONNECTIONS: Final = 16
_STEP_SECONDS: Final = 0.001
_THREADS: Final = ("kquota-reporter", "kafka-producer-")  # as the kernel has them, of 15 characters
_WARM_SECONDS: Final = 20  # in its first ten a broker costs twice as much: the JVM compiles
_REST_SECONDS: Final = 3  # until all is reported and logged


class Second(NamedTuple):
    """What one broker showed in one second of load, or a bit more."""

    seconds: float
    cpu_seconds: float
    reporter_seconds: float
    load_seconds: float
    waited_ms: list[float]


Seconds = Sequence[Second]


def main() -> None:
    amounts = {"requests_per_second": 5_000, "seconds": 30, "rounds": 4, "clients": 10_000, "minutes": 3.0}
    arguments = options(__doc__, **amounts)
    rate, seconds = arguments.requests_per_second, arguments.seconds
    make(REPORTER_JAR)
    print(f"\n{rate:,} produce requests a second of 100 bytes, {seconds} s, the median of {arguments.rounds} rounds\n")
    print(table(["broker with", *_COLUMNS]))
    rounds: list[dict[str, Seconds]] = []
    for _ in range(arguments.rounds):
        rounds.append(measure(_KINDS, rate, seconds, ["load"]))
        for kind, measured in rounds[-1].items():
            print(medians(kind, [measured]), file=sys.stderr, flush=True)
    for kind in _KINDS:
        print(medians(kind, [measured[kind] for measured in rounds]))
    print(f"\n{verdict(rounds)}; limits: CPU x {CPU_LIMIT}, p99 x {P99_LIMIT}\n")
    clients = [f"client-{number}" for number in range(arguments.clients)]
    print(f"{len(clients):,} clients, each with its sensors, {rate:,} requests a second of all of them\n")
    many = measure(_KINDS[1:], rate, seconds, clients)
    for kind, measured in many.items():
        print(medians(kind, [measured]))
    print(f"\n{verdict([many])}", flush=True)
    if arguments.minutes:
        print(f"\n{sums(arguments.minutes)}")


def measure(
    kinds: Sequence[str], requests_per_second: int, seconds: int, client_ids: Sequence[str]
) -> dict[str, Seconds]:
    """New brokers, one of each kind, that get the load in turn."""
    requests = requests_of(client_ids)
    shift = requests_per_second % len(requests)
    with ExitStack() as stack:
        brokers: dict[str, tuple[EmbeddedBroker, list[BrokerConnection]]] = {}
        for kind in kinds:
            broker = stack.enter_context(broker_of(kind, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            brokers[kind] = broker, stack.enter_context(connected(broker))
        for _, connections in brokers.values():
            load(connections, requests, requests_per_second, _WARM_SECONDS)
        measured: dict[str, list[Second]] = {kind: [] for kind in kinds}
        for turn in range(seconds):
            requests = [*requests[shift:], *requests[:shift]]  # so that it is the turn of all clients
            for kind in kinds if turn % 2 == 0 else reversed(kinds):
                measured[kind].append(second_of(*brokers[kind], requests, requests_per_second))
    return dict(measured)


def second_of(
    broker: EmbeddedBroker, connections: list[BrokerConnection], requests: Sequence[bytes], requests_per_second: int
) -> Second:
    """A second of load."""

    def counters() -> tuple[float, float, float, float]:
        pid = broker.pid or 0
        return time.monotonic(), cpu_seconds(pid), threads_seconds(pid), time.thread_time()

    began = counters()
    waited_seconds = load(connections, requests, requests_per_second, 1.0)
    spent, cpu, own, loads = (after - before for before, after in zip(began, counters(), strict=True))
    return Second(spent, cpu, own, loads, [1_000 * waited for waited in waited_seconds])


@contextmanager
def broker_of(kind: str, folder: Path) -> Iterator[EmbeddedBroker]:
    """Without quotas, with the one that makes sensors exist, or with the reporter too."""
    usage_topic = USAGE_TOPIC if kind == "reporter" else ""
    options = BrokerOptions(heap_mib=1024, quick_start=False, usage_topic=usage_topic)
    with EmbeddedBroker(folder, options=options) as broker:
        make_topics(broker, USAGE_TOPIC)
        if kind in {"quota", "reporter"}:
            with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
                quotas.alter({NativeEntity.of_row("<default>", "<default>"): HUGE_QUOTA})
        yield broker


@contextmanager
def connected(broker: EmbeddedBroker) -> Iterator[list[BrokerConnection]]:
    """Connections to a broker, with the topic that they write to."""
    add_topics(broker.bootstrap_servers, [TopicSpec(_TOPIC, "demo", _CONNECTIONS, "any", {}, {})])
    connections = [BrokerConnection(broker.bootstrap_servers) for _ in range(_CONNECTIONS)]
    with ExitStack() as stack:
        for connection in connections:
            stack.enter_context(connection.socket)
        yield connections


def requests_of(client_ids: Sequence[str]) -> list[bytes]:
    """Requests to be sent in turn, as many as a multiple of the connections; the client-ids in turn."""
    count = -(-len(client_ids) // _CONNECTIONS) * _CONNECTIONS
    return [request(number % _CONNECTIONS, client_ids[number % len(client_ids)]) for number in range(count)]


def load(
    connections: list[BrokerConnection], requests: Sequence[bytes], requests_per_second: int, seconds: float
) -> list[float]:
    """Send requests for a time, and wait for the last response; how long each one took, in seconds."""
    waited: list[float] = []
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        began, sent, wanted = time.monotonic(), 0, int(requests_per_second * seconds)
        while len(waited) < wanted:
            due = min(wanted, int((time.monotonic() - began) * requests_per_second))
            for number in range(sent, due):
                place = number % len(connections)
                connections[place].send(requests[number % len(requests)], began + number / requests_per_second)
            sent = max(sent, due)
            for key, _ in selector.select(_STEP_SECONDS):
                for at in key.data.receive():
                    waited.append(time.monotonic() - at)  # noqa: PERF401 - the time must be read each time
    return waited


def request(partition: int, client_id: str) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1_024)
    builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=bytes(100), headers=[])
    builder.close()
    return produce_request(_TOPIC, partition, bytes(builder.buffer()), client_id)


def threads_seconds(pid: int) -> float:
    """CPU time of the reporter's threads so far."""
    spent_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # another thread, which has ended
            if (task / "comm").read_text(encoding="utf-8").rstrip("\n") in _THREADS:
                spent_ns += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return spent_ns / 1e9


def medians(name: str, rounds: Sequence[Seconds]) -> str:
    """One line of the table: the median of some rounds."""
    values = dict(zip(_COLUMNS, np.median([figures(measured) for measured in rounds], axis=0), strict=True))
    return row([name, *(f"{values[column]:{_COLUMNS[column]}}" for column in _COLUMNS)])


def figures(measured: Seconds) -> tuple[float, ...]:
    """The figures of `_COLUMNS`."""
    spent = sum(one.seconds for one in measured)
    percents = (sum(part) / spent * 100 for part in list(zip(*measured, strict=True))[1:4])
    waited_ms = [waited for one in measured for waited in one.waited_ms]
    return *percents, len(waited_ms) / spent, *percentiles(waited_ms)


def verdict(rounds: Sequence[Mapping[str, Seconds]]) -> str:
    """The reporter against the same broker without it: the median of the rounds, and their spread."""
    cpu = [
        median(
            after.cpu_seconds / after.load_seconds / (before.cpu_seconds / before.load_seconds)
            for before, after in zip(one["quota"], one["reporter"], strict=True)
        )
        for one in rounds
    ]
    before, after = (np.array([figures(one[kind]) for one in rounds]) for kind in ("quota", "reporter"))
    share = np.median(after[:, 1] / (after[:, 0] - after[:, 1]))
    p50, p99 = np.median(after[:, -2:] / before[:, -2:], axis=0)
    return (
        f"with the reporter: CPU x {median(cpu):.3f} (rounds {min(cpu):.3f} to {max(cpu):.3f}; by its own threads "
        f"x {1 + share:.3f}), p50 x {p50:.3f}, p99 x {p99:.3f}"
    )


def sums(minutes: float) -> str:
    """Clients that come and go; how the reporter's sums differ from the log's."""
    with tempfile.TemporaryDirectory() as folder, reported_broker(Path(folder)) as broker:
        until = time.monotonic() + 60 * minutes
        threads = [Thread(target=come_and_go, args=(broker, seed, until)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(_REST_SECONDS)
        ours, theirs = bytes_in(reported(broker)), bytes_in(logged(broker))
    differ = {
        key: ours.get(key, 0) - theirs.get(key, 0) for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)
    }
    total = f"{sum(theirs.values()):,} bytes of {len(theirs)} sums of clients that come and go in {minutes:g} minutes"
    return f"{total}: {'all as in the request log' if not differ else f'these differ: {differ}'}"


def come_and_go(broker: EmbeddedBroker, seed: int, until: float) -> None:
    """One client after the other, some of them again."""
    draw = random.Random(seed)
    while time.monotonic() < until:
        user, client_id = draw.choice(list(USERS)), f"client-{draw.randrange(20)}"
        produce(broker, user, client_id, [draw.randrange(20_000) for _ in range(draw.randrange(1, 60))])
        if draw.random() < 0.2:
            consume(broker, user, client_id)
        time.sleep(draw.random())


if __name__ == "__main__":
    main()
