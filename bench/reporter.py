"""What the reporter in a broker costs the broker, and whether its sums are right.

    python -m bench.reporter [--requests-per-second 5000] [--seconds 20] [--rounds 3] [--clients 10000] [--minutes 3]

First three brokers in turn, under the load of bench.request_logger: without a quota, with the quota that makes sensors
exist (for all, far above every rate), and with the reporter too. Then the same quota and reporter with many client-ids,
each of which has its sensors. The usage topic is on the same broker. Broker and load share the machine.

    CPU       of the broker's process, percent of one core
    reporter  of this the reporter's own two threads
    p50, p99  from the time at which a request is due to its response, ms

Last, clients that come and go on a broker with its request log: what the reporter has sent, against the log.
"""

import math
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Final, NamedTuple

from bench.machine import arguments as options
from bench.request_logger import Cost, measure_broker
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
_REST_SECONDS: Final = 3  # until all is reported and logged
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Reported(NamedTuple):
    """What one broker showed."""

    cost: Cost
    reporter_percent: float


def main() -> None:
    arguments = options(__doc__, requests_per_second=5_000, seconds=20.0, rounds=3, clients=10_000, minutes=3.0)
    make(REPORTER_JAR)
    rate, seconds = arguments.requests_per_second, arguments.seconds
    print(f"\n{rate:,} produce requests a second of 100 bytes, {seconds:g} s, each round and the median\n")
    print("| broker with | CPU % | reporter % | requests/s | p50 ms | p99 ms |\n| --- | --- | --- | --- | --- | --- |")
    measured: dict[str, list[Reported]] = {kind: [] for kind in _KINDS}
    for _ in range(arguments.rounds):
        for kind, rounds in measured.items():
            rounds.append(measure(kind, rate, seconds, ["load"]))
            print(row(kind, rounds[-1:]), flush=True)
    for kind, rounds in measured.items():
        print(row(f"**{kind}**, median", rounds))
    print(f"\n{verdict(measured['quota'], measured['reporter'])}\n")
    clients = [f"client-{number}" for number in range(arguments.clients)]
    print(f"{len(clients):,} clients, each with its sensors, {rate:,} requests a second of all of them\n")
    for kind in _KINDS[1:]:
        print(row(kind, [measure(kind, rate, seconds, clients)]), flush=True)
    if arguments.minutes:
        print(f"\n{sums(arguments.minutes)}")


def measure(kind: str, requests_per_second: int, seconds: float, client_ids: Sequence[str]) -> Reported:
    """A new broker of a kind under the load."""
    with tempfile.TemporaryDirectory() as folder, broker_of(kind, Path(folder)) as broker:
        began_seconds, began = threads_seconds(broker.pid or 0), time.monotonic()
        cost = measure_broker(broker, requests_per_second, seconds, client_ids)
        spent = threads_seconds(broker.pid or 0) - began_seconds
        return Reported(cost, spent / (time.monotonic() - began) * 100)


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
    ticks = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text(encoding="utf-8").partition("(")[2].rpartition(")")
        if name in _THREADS:
            ticks += sum(map(int, rest.split()[11:13]))
    return ticks / _TICKS_PER_SECOND


def row(name: str, rounds: Sequence[Reported]) -> str:
    """One line of the table: the median of some rounds."""
    cost = [median(one.cost[place] for one in rounds) for place in range(len(Cost._fields))]
    cpu, _, rate, p50, p99 = cost
    own = median(one.reporter_percent for one in rounds)
    return f"| {name} | {cpu:.1f} | {own:.2f} | {rate:,.0f} | {p50:.2f} | {p99:.2f} |"


def verdict(before: Sequence[Reported], after: Sequence[Reported]) -> str:
    """The reporter against the same broker without it, by the medians."""

    def ratio(name: str) -> float:
        place = Cost._fields.index(name)
        return median(one.cost[place] for one in after) / median(one.cost[place] for one in before)

    share = median(one.reporter_percent / (one.cost.cpu_percent - one.reporter_percent) for one in after)
    return (
        f"with the reporter: CPU x {ratio('cpu_percent'):.3f} (by its own threads x {1 + share:.3f}; "
        f"limit {CPU_LIMIT}), p50 x {ratio('p50_ms'):.3f}, p99 x {ratio('p99_ms'):.3f} (limit {P99_LIMIT})"
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
