"""How true usage from scraped rates is, how late violations begin, and what scraping costs.

Three tables. The first two are simulated: Kafka's own `Rate` per sensor on a clock set by hand, scraped at the meter's
times, and the engine of the product. The third runs the meter against exporters on this machine and a real broker.

    python -m bench.scrapes [--seeds 4] [--minutes 5] [--hours 0.25] [--cpu-seconds 60] [--brokers 10]
        [--only sums delays loop cost]
"""

import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from statistics import mean
from typing import Final

import numpy as np
import pyarrow as pa

from bench.closed_loop import BOUND, OVERLOADS, START_MS, Loop, Offender
from bench.machine import arguments as options
from bench.pages import line
from bench.stage import big_broker, child
from pipeline.clock import SystemClock
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import topic_specs
from pipeline.meter.scrape_meter import INTERVAL_MS, LONGEST_INTERVAL_MS, STORE_EVERY_MS, ScrapeMeter
from pipeline.meter.scrape_sources import ExporterSource
from pipeline.meter.scraped_rates import ScrapedUsage
from pipeline.meter.scrapes import NameMap
from pipeline.meter.usage_messages import JSON, PACKED, UsageCodec
from pipeline.meter.usage_topic import SCRAPES, KafkaUsageTopic, UsagePublisher, UsageWriter
from pipeline.stream.usage_columns import USAGE_SCHEMA
from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from schemas.names import MARKER_TOPIC, USAGE_TOPIC
from tests.pipeline.meter.kafka_sensor import KafkaSensor
from tests.pipeline.meter.metric_pages import Answer, exporter, page

SENSORS: Final = 1_000
TARGET_SECONDS: Final = 1.0
_REQUEST_MS: Final = 20
_TRIGGER_MS: Final = 250
_WARM_SECONDS: Final = 15.0

Request = tuple[int, int]
"""When, in ms since the start, and how many bytes."""
Requests = Callable[[random.Random, int], Iterator[Request]]
"""Those until an instant."""


# Long-run sums.


def every(gap_ms: int, _: random.Random, until_ms: int) -> Iterator[Request]:
    return ((at_ms, 10_000) for at_ms in range(0, until_ms, gap_ms))


def at_random(per_second: float, dice: random.Random, until_ms: int) -> Iterator[Request]:
    at_ms = 0.0
    while (at_ms := at_ms + dice.expovariate(per_second / 1000)) < until_ms:
        yield int(at_ms), dice.randrange(100, 20_000)


def bursts(on_ms: int, off_ms: int, dice: random.Random, until_ms: int) -> Iterator[Request]:
    begin_ms = 0
    while begin_ms < until_ms:
        yield from ((begin_ms + at_ms, 10_000) for at_ms in range(0, on_ms, _REQUEST_MS))
        begin_ms += on_ms + off_ms + dice.randrange(500)


STEADY: Final[dict[str, Requests]] = {
    "50 requests a second": partial(every, 20),
    "2 a second": partial(every, 500),
    "1 a second": partial(every, 1_000),
    "1 in 5 s": partial(every, 5_000),
    "50 a second, at random": partial(at_random, 50),
    "2 a second, at random": partial(at_random, 2),
    "1 in 5 s, at random": partial(at_random, 0.2),
}
BURSTS: Final[dict[str, Requests]] = {
    f"{on} s in {every} s": partial(bursts, 1_000 * on, 1_000 * (every - on))
    for on, every in ((1, 30), (1, 10), (3, 10), (5, 20), (12, 24), (30, 60))
}


@dataclass
class Scraped:
    """One sensor of a broker and the meter that scrapes it."""

    interval_ms: int
    dice: random.Random
    sensor: KafkaSensor = field(default_factory=KafkaSensor)
    usage: ScrapedUsage = field(default_factory=ScrapedUsage)
    sent: int = 0
    charged: int = 0
    integral: float = 0.0  # rate times time since the last scrape: what is charged without any correction
    due_ms: int = 0
    _before_ms: int | None = None

    def __post_init__(self) -> None:
        self.usage.grow(1)
        self.due_ms = self.dice.randrange(self.interval_ms)

    def request(self, at_ms: int, size_bytes: int) -> None:
        self.sent += size_bytes
        self.sensor.record(size_bytes, START_MS + at_ms)

    def scrape(self) -> list[tuple[int, int]]:
        """The events of the scrape that is due: when, in ms since the start, and how many bytes."""
        now_ms = START_MS + self.due_ms
        rate = self.sensor.rate(now_ms)
        if self._before_ms is not None:
            self.integral += rate * (now_ms - self._before_ms) / 1000
        self._before_ms = now_ms
        self.usage.observe(np.array([rate]), now_ms)
        ends_ms, used = self.usage.take(now_ms)
        self.charged += int(used.sum())
        self.due_ms += round(self.interval_ms * self.dice.uniform(0.75, 1.25))
        return [(end_ms - START_MS, used) for end_ms, used in zip(ends_ms.tolist(), used[:, 0].tolist(), strict=True)]


def ratios(requests: Requests, interval_ms: int, seed: int, minutes: float) -> tuple[float, float]:
    """What is charged, and the bare integral, divided by what was sent."""
    one = Scraped(interval_ms, random.Random(seed))
    until_ms = round(minutes * 60_000)
    for at_ms, size_bytes in requests(one.dice, until_ms):
        while one.due_ms < at_ms:
            one.scrape()
        one.request(at_ms, size_bytes)
    while one.due_ms < until_ms + 40_000:
        one.scrape()
    return one.charged / one.sent, one.integral / one.sent


def sums_table(seeds: int, minutes: float) -> Iterator[str]:
    intervals = (INTERVAL_MS, LONGEST_INTERVAL_MS)
    yield f"charged ÷ sent, {minutes:g} minutes, mean (lowest … highest) of {seeds} runs, and the bare rate × time"
    widths = (24, *[24, 13] * len(intervals))
    yield line(widths, ["client", *(head for ms in intervals for head in (f"every {ms / 1000:g} s", "rate × time"))])
    for aim, patterns in ((3, STEADY), (7, BURSTS)):
        yield f"{'steady' if aim == 3 else 'bursts'}, aim: within {aim} %"
        for name, requests in patterns.items():
            cells = []
            for interval_ms in intervals:
                found = [ratios(requests, interval_ms, seed, minutes) for seed in range(seeds)]
                ours = [one for one, _ in found]
                cells.append(f"{mean(ours):.3f} ({min(ours):.3f} … {max(ours):.3f})")
                cells.append(f"{mean(bare for _, bare in found):.3f}")
            yield line(widths, [name, *cells])


# When a violation begins.


class Watched:
    """The engine with one quota, and when it first saw it violated."""

    def __init__(self) -> None:
        self._engine = QuotaEngine()
        self._engine.load_quotas(QuotaSnapshot.from_rows([{"user": "u", "producer_byte_rate": BOUND}], 1))
        self._at_ms = 0
        self.violated_ms: int | None = None

    def record(self, events: Sequence[tuple[int, int]], now_ms: int) -> None:
        rows = [
            {
                "broker_id": "", "user": "u", "client_id": "c", "produced_bytes": size_bytes,
                "sample_start_ms": (START_MS + at_ms) // 1000 * 1000, "last_event_ms": START_MS + at_ms,
            }
            for at_ms, size_bytes in events
        ]  # fmt: skip
        if not rows or self.violated_ms is not None:
            return
        self._at_ms = max(self._at_ms, START_MS + max(at_ms for at_ms, _ in events))
        if len(self._engine.record(pa.Table.from_pylist(rows, USAGE_SCHEMA), evaluated_at_ms=self._at_ms)):
            self.violated_ms = now_ms


def delay_ms(overload: float, before: float, interval_ms: int, seed: int) -> int:
    """How much later a violation begins with scrapes than with exact usage; `before` is the load until it is k."""
    one, exact, late = Scraped(interval_ms, random.Random(seed)), Watched(), Watched()
    pending: list[tuple[int, int]] = []
    since_ms = 60_000 if before else 5_000
    for at_ms in range(0, since_ms + 90_000, _REQUEST_MS):
        while one.due_ms < at_ms:
            scraped_ms = one.due_ms
            late.record(one.scrape(), scraped_ms + STORE_EVERY_MS)
        share = overload if at_ms >= since_ms else before
        size_bytes = round(share * BOUND * _REQUEST_MS / 1000)
        if size_bytes:
            one.request(at_ms, size_bytes)
            pending.append((at_ms, size_bytes))
        if at_ms % _TRIGGER_MS < _REQUEST_MS:
            exact.record(pending, at_ms)
            pending = []
        if exact.violated_ms is not None and late.violated_ms is not None:
            return late.violated_ms - exact.violated_ms
    message = f"no violation at k = {overload}"
    raise AssertionError(message)


def delays_table(seeds: int) -> Iterator[str]:
    yield f"s from a violation by exact usage to that by scrapes, mean and highest of {seeds}; aim: at most 11 s"
    intervals = (INTERVAL_MS, LONGEST_INTERVAL_MS)
    heads = [f"{what}, every {ms / 1000:g} s" for ms in intervals for what in ("from 0", "from 0.8 T")]
    widths = (6, *[24] * len(heads))
    yield line(widths, ["k", *heads])
    for overload in OVERLOADS:
        cells = []
        for interval_ms in intervals:
            for before in (0.0, 0.8):
                found = [delay_ms(overload, before, interval_ms, seed) / 1000 for seed in range(seeds)]
                cells.append(f"{mean(found):.1f}, {max(found):.1f}")
        yield line(widths, [f"{overload:g}", *cells])


# The closed loop.


class ScrapedLoop(Loop):
    """As `bench.closed_loop`, with usage from scrapes."""

    def __init__(self, lead_ms: int, carry_debt: bool, offenders: list[Offender]) -> None:
        super().__init__(lead_ms, carry_debt, offenders)
        self._scraped = {key: Scraped(INTERVAL_MS, random.Random(at)) for at, key in enumerate(self.offenders)}

    def _live_until_trigger(self) -> list[dict[str, object]]:
        for row in super()._live_until_trigger():
            key = next(key for key in self.offenders if key.user == row["user"] and key.client_id == row["client_id"])
            at_ms = int(str(row["last_event_ms"])) - START_MS
            size_bytes = row.get("produced_bytes") or row.get("fetched_bytes") or 0
            self._scraped[key].request(at_ms, int(str(size_bytes)))
        now_ms = self.clock.steady_ms - START_MS
        rows = []
        for key, one in self._scraped.items():
            while one.due_ms <= now_ms - STORE_EVERY_MS // 2:
                rows += [
                    self._row(key, (START_MS + end_ms) // 1000 * 1000, used, START_MS + end_ms)
                    for end_ms, used in one.scrape()
                    if used
                ]
        return rows


def loop_table(hours: float) -> Iterator[str]:
    yield f"clients that obey throttles, {hours:g} h: rate ÷ T, largest sent − T · t in seconds of T, records a minute"
    widths = (6, 24, 24)
    yield line(widths, ["k", "exact usage", "scrapes"])
    columns = []
    for kind in (Loop, ScrapedLoop):
        loop = kind(1000, True, [Offender(overload, 200, "window") for overload in OVERLOADS])
        loop.run(hours)
        columns.append({one.overload: one for one in loop.offenders.values()})
    for overload in OVERLOADS:
        cells = [
            f"{one.sent / BOUND / (hours * 3600):.3f}; {one.excess_seconds:.1f}; {one.records_per_minute:.0f}"
            for one in (column[overload] for column in columns)
        ]
        yield line(widths, [f"{overload:g}", *cells])


# What it costs.


def page_of(broker: int, dice: random.Random, in_use: int = SENSORS) -> bytes:
    """1 000 sensors, so many of them in use, with the lines that an exporter shows beside each rate."""
    lines = ["# TYPE kafka_server_quota_byte_rate gauge", f"process_start_time_seconds 1.732E9{broker}"]
    for number in range(SENSORS // 2):
        labels = f'user="team-{number % 40}",clientId="service-{broker}-{number}"'
        for resource, attribute in (("Produce" if number % 5 else "Fetch", "byte_rate"), ("Request", "request_time")):
            value = dice.uniform(1e3, 1e6) if attribute == "byte_rate" else dice.uniform(0.01, 5)
            value = value if 2 * number < in_use else 0.0
            lines.append(f'kafka_server_quota_{attribute}{{resource="{resource}",{labels},}} {value!r}')
            lines.append(f'kafka_server_quota_throttle_time{{resource="{resource}",{labels},}} NaN')
    return "\n".join([*lines, ""]).encode()


def show_next(pages: Iterator[Answer], handler: BaseHTTPRequestHandler) -> None:
    next(pages)(handler)


def serve(brokers: int, in_use: int) -> None:
    """Exporters, one for each broker; prints their addresses, and runs until it is terminated."""
    with ExitStack() as stack:
        for broker in range(brokers):
            pages = itertools.cycle([page(page_of(broker, random.Random(seed), in_use)) for seed in range(4)])
            served = stack.enter_context(exporter(partial(show_next, pages)))
            print(served.url, end=" ")
        print(flush=True)
        threading.Event().wait()


def cpu_per_minute(
    asked: list[ExporterSource], topic: UsageWriter, codec: UsageCodec, seconds: float
) -> tuple[float, int, int]:
    """Seconds of CPU a minute of the meter, all its threads; scrapes, and events stored, meanwhile."""
    publisher = UsagePublisher(SCRAPES, topic, USAGE_TOPIC)
    publisher.take_over()
    began = time.monotonic()
    marks: list[tuple[float, float, int, int]] = []

    def wait(pause_seconds: float) -> bool:
        time.sleep(pause_seconds)
        now = time.monotonic() - began
        if now > _WARM_SECONDS + len(marks) * seconds:
            scrapes = sum(target.counts.scrapes for target in meter.targets)
            marks.append((now, time.process_time(), scrapes, publisher.counts.events))
        return len(marks) > 1

    meter = ScrapeMeter(asked, NameMap(), publisher, codec, SystemClock(), wait)
    meter.run()
    (begin, cpu, scrapes, events), (end, cpu_end, scrapes_end, events_end) = marks
    return (cpu_end - cpu) * 60 / (end - begin), scrapes_end - scrapes, events_end - events


@contextmanager
def exporters(brokers: int, in_use: int) -> Iterator[list[ExporterSource]]:
    """Exporters in a process of their own."""
    command = [sys.executable, "-m", "bench.scrapes", "--serve", str(brokers), str(in_use)]
    with child(command, subprocess.PIPE) as running:
        urls = running.stdout.readline().decode().split() if running.stdout else []
        yield [ExporterSource(str(at), url) for at, url in enumerate(urls)]


def cost_table(brokers: int, seconds: float) -> Iterator[str]:
    yield f"CPU of the meter, {brokers} brokers of {SENSORS:,} sensors, {seconds:g} s, stored on a real broker"
    yield f"aim: {TARGET_SECONDS:g} s a minute"
    widths = (8, 8, 16, 10, 16)
    yield line(widths, ["codec", "in use", "CPU s a minute", "scrapes", "events stored"])
    with big_broker(*topic_specs(4, 10_000)) as broker:
        access = ClusterAccess(broker.bootstrap_servers)
        for in_use in (SENSORS // 10, SENSORS):
            with exporters(brokers, in_use) as asked:
                for name, codec in (("json", JSON), ("packed", PACKED)):
                    topic = KafkaUsageTopic(SCRAPES, USAGE_TOPIC, MARKER_TOPIC, access, 10_000)
                    spent, scrapes, events = cpu_per_minute(asked, topic, codec, seconds)
                    yield line(widths, [name, f"{in_use:,}", f"{spent:.2f}", f"{scrapes:,}", f"{events:,}"])


def main() -> None:
    if "--serve" in sys.argv:
        serve(*map(int, sys.argv[sys.argv.index("--serve") + 1 :]))
        return
    names = ["sums", "delays", "loop", "cost"]
    given = options(__doc__, seeds=4, minutes=5.0, hours=0.25, cpu_seconds=60.0, brokers=10, only=names)
    tables = {
        "sums": lambda: sums_table(given.seeds, given.minutes),
        "delays": lambda: delays_table(given.seeds),
        "loop": lambda: loop_table(given.hours),
        "cost": lambda: cost_table(given.brokers, given.cpu_seconds),
    }
    for name in given.only:
        print(flush=True)
        for shown in tables[name]():
            print(shown, flush=True)


if __name__ == "__main__":
    main()
