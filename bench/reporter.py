"""What the reporter in a broker costs the broker, and whether its sums are right.

    python -m bench.reporter [--requests-per-second 5000] [--seconds 30] [--rounds 4] [--clients 10000] [--minutes 3]

A round has three new brokers: without a quota, with the quota that makes sensors exist (for all, far above every rate),
and with the reporter too. Each gets the load of bench.request_logger for 20 s to warm up. Then the load goes to one
after the other, a second at a time, so that all see the same machine. The usage topic is on the same broker. Then the
same quota and reporter with many client-ids, each of which has its sensors.

    CPU       of the broker's process while it has the load, percent of one core
    reporter  of this the reporter's own two threads
    load      CPU of the process that sends the load: the same work for each broker
    p50, p99  from the time at which a request is due to its response, ms

Broker and load share the machine with others, and its cores do not run at one speed: CPU for the same requests differs
by a third within seconds, for broker and load alike. So what the reporter costs is taken second by second: the broker's
CPU divided by the load's, with the reporter against the same in the second without it. A round has the median of that.

Last, clients that come and go on a broker with its request log: what the reporter has sent, against the log.
"""

import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Final, NamedTuple

import numpy as np

from bench.machine import arguments as options
from bench.machine import cpu_seconds
from bench.request_logger import Connection, connected, load, requests_of
from deploy.reporter.__main__ import make
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.meter.log_follower import LogFollower
from pipeline.meter.reporter import REPORTER_JAR
from pipeline.meter.request_log import RequestLogParser
from schemas.names import USAGE_TOPIC
from tests.pipeline.meter.reported_broker import (
    HUGE_QUOTA,
    USERS,
    Sums,
    bytes_in,
    consume,
    make_topics,
    produce,
    reported,
    reported_broker,
    sums_of_lines,
)

CPU_LIMIT: Final = 1.03
P99_LIMIT: Final = 1.05
_KINDS: Final = ("no quota", "quota", "reporter")
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
    arguments = options(__doc__, requests_per_second=5_000, seconds=30, rounds=4, clients=10_000, minutes=3.0)
    make(REPORTER_JAR)
    rate, seconds = arguments.requests_per_second, arguments.seconds
    print(f"\n{rate:,} produce requests a second of 100 bytes, {seconds} s, the median of {arguments.rounds} rounds\n")
    print("| broker with | CPU % | reporter % | load % | requests/s | p50 ms | p99 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rounds: list[dict[str, Seconds]] = []
    for _ in range(arguments.rounds):
        rounds.append(measure(_KINDS, rate, seconds, ["load"]))
        for kind, measured in rounds[-1].items():
            print(row(kind, [measured]), file=sys.stderr, flush=True)
    for kind in _KINDS:
        print(row(kind, [measured[kind] for measured in rounds]))
    print(f"\n{verdict(rounds)}; limits: CPU x {CPU_LIMIT}, p99 x {P99_LIMIT}\n")
    clients = [f"client-{number}" for number in range(arguments.clients)]
    print(f"{len(clients):,} clients, each with its sensors, {rate:,} requests a second of all of them\n")
    many = measure(_KINDS[1:], rate, seconds, clients)
    for kind, measured in many.items():
        print(row(kind, [measured]))
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
        brokers: dict[str, tuple[int, list[Connection]]] = {}
        for kind in kinds:
            broker = stack.enter_context(broker_of(kind, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            brokers[kind] = broker.pid or 0, stack.enter_context(connected(broker))
        for _, connections in brokers.values():
            load(connections, requests, requests_per_second, _WARM_SECONDS)
        measured: dict[str, list[Second]] = {kind: [] for kind in kinds}
        for turn in range(seconds):
            requests = [*requests[shift:], *requests[:shift]]  # so that it is the turn of all clients
            for kind in kinds if turn % 2 == 0 else reversed(kinds):
                measured[kind].append(second_of(*brokers[kind], requests, requests_per_second))
    return dict(measured)


def second_of(pid: int, connections: list[Connection], requests: Sequence[bytes], requests_per_second: int) -> Second:
    """A second of load."""
    began = time.monotonic(), cpu_seconds(pid), threads_seconds(pid), time.thread_time()
    waited_seconds = load(connections, requests, requests_per_second, 1.0)
    ended = time.monotonic(), cpu_seconds(pid), threads_seconds(pid), time.thread_time()
    spent, cpu, own, loads = (after - before for before, after in zip(began, ended, strict=True))
    return Second(spent, cpu, own, loads, [1_000 * waited for waited in waited_seconds])


@contextmanager
def broker_of(kind: str, folder: Path) -> Iterator[EmbeddedBroker]:
    """Without quotas, with the one that makes sensors exist, or with the reporter too."""
    usage_topic = USAGE_TOPIC if kind == "reporter" else ""
    options = BrokerOptions(heap_mib=1024, quick_start=False, usage_topic=usage_topic)
    with EmbeddedBroker(folder, options=options) as broker:
        make_topics(broker, USAGE_TOPIC)
        if kind != "no quota":
            with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
                quotas.alter({NativeEntity.of_row("<default>", "<default>"): HUGE_QUOTA})
        yield broker


def threads_seconds(pid: int) -> float:
    """CPU time of the reporter's threads so far."""
    spent_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # another thread, which has ended
            if (task / "comm").read_text(encoding="utf-8").rstrip("\n") in _THREADS:
                spent_ns += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return spent_ns / 1e9


def row(name: str, rounds: Sequence[Seconds]) -> str:
    """One line of the table: the median of some rounds."""
    cpu, own, loads, rate, p50, p99 = np.median([figures(measured) for measured in rounds], axis=0)
    return f"| {name} | {cpu:.1f} | {own:.2f} | {loads:.1f} | {rate:,.0f} | {p50:.2f} | {p99:.2f} |"


def figures(measured: Seconds) -> tuple[float, ...]:
    """The columns of the table."""
    spent = sum(one.seconds for one in measured)
    percents = (sum(part) / spent * 100 for part in list(zip(*measured, strict=True))[1:4])
    waited_ms = [waited for one in measured for waited in one.waited_ms]
    return *percents, len(waited_ms) / spent, *np.percentile(waited_ms, [50, 99])


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
        logged = followed(broker, threads)
        ours, theirs = bytes_in(reported(broker)), bytes_in(logged)
    differ = {
        key: ours.get(key, 0) - theirs.get(key, 0) for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)
    }
    total = f"{sum(theirs.values()):,} bytes of {len(theirs)} sums of clients that come and go in {minutes:g} minutes"
    return f"{total}: {'all as in the request log' if not differ else f'these differ: {differ}'}"


def followed(broker: EmbeddedBroker, threads: Sequence[Thread]) -> Sums:
    """The sums of the request log, which rolls every 64 MB, until some seconds after the threads have ended."""
    parser, sums = RequestLogParser("1"), Counter[tuple[str, str, str]]()
    with closing(LogFollower(broker.request_log_path, "beginning")) as follower:
        ends_at = math.inf
        while (lines := follower.read()) or time.monotonic() < ends_at:
            sums.update(sums_of_lines(parser, (line for line in lines if isinstance(line, bytes))))
            if not lines:
                time.sleep(0.1)
                if ends_at == math.inf and not any(thread.is_alive() for thread in threads):
                    ends_at = time.monotonic() + _REST_SECONDS
    return sums


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
