"""How many log lines a second the meter of request logs reads on one core.

    python -m bench.meter [--lines 200000] [--rounds 5]

The log has lines in the form of Kafka 4.3.1: 45 % produce, 40 % fetch, 15 % other requests of 200 clients, about 1 kB
each. The figures are CPU time of the meter's process, all its threads, the median of the rounds.

    cut into lines       the file is read and cut
    parsed               and the lines become events
    put into messages    and the events become messages, of JSON or packed
    stored               and they are stored with the place, in transactions on a real broker; the broker's time is not
                         counted
"""

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.machine import arguments as options
from bench.machine import cpu_spent
from bench.pages import row, table
from bench.stage import big_broker
from pipeline.clock import SystemClock
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import topic_specs
from pipeline.meter.log_follower import LogFollower
from pipeline.meter.long_line import Line
from pipeline.meter.request_log import MalformedLine, RequestLogParser
from pipeline.meter.request_meter import RequestMeter
from pipeline.meter.usage_messages import JSON, PACKED, UsageBatch, UsageCodec
from pipeline.meter.usage_topic import KafkaUsageTopic, UsagePublisher
from schemas.names import MARKER_TOPIC, USAGE_TOPIC
from tests.pipeline.meter.request_lines import RequestLines

TARGET: Final = 50_000


def main() -> None:
    arguments = options(__doc__, lines=200_000, rounds=5)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "request.log"
        with log.open("w", encoding="utf-8") as file:
            file.writelines(RequestLines().take(arguments.lines))
        size = log.stat().st_size / arguments.lines
        about = f"median of {arguments.rounds}; target {TARGET:,} lines/s"
        print(f"\n{arguments.lines:,} lines of {size:,.0f} bytes, {about}\n")
        print(table(["up to", "lines/s", "µs a line"]), flush=True)
        for name, rounds in stages(log, arguments.lines, arguments.rounds):
            spent = median(rounds)
            print(row([name, f"{arguments.lines / spent:,.0f}", f"{spent / arguments.lines * 1e6:.1f}"]), flush=True)


def stages(log: Path, lines: int, rounds: int) -> Iterator[tuple[str, Iterator[float]]]:
    """Each stage: its name, and the CPU time of each round, which is measured when it is asked for."""
    for name, run in (
        ("cut into lines", split),
        ("parsed", parse),
        ("put into messages, JSON", batch),
        ("put into messages, packed", partial(batch, codec=PACKED)),
    ):
        yield name, (cpu_spent(partial(run, log)) for _ in range(rounds))
    for name, codec in (("JSON", JSON), ("packed", PACKED)):
        yield f"stored in transactions on a broker, {name}", stored(log, lines, rounds, codec)


def blocks(log: Path) -> Iterator[list[Line]]:
    follower = LogFollower(log, "beginning")
    while lines := follower.read():
        yield lines
    follower.close()


def split(log: Path) -> None:
    for _ in blocks(log):
        pass


def parse(log: Path) -> None:
    parser = RequestLogParser("1")
    for lines in blocks(log):
        for _ in parser.elements(lines, refuse):
            pass


def batch(log: Path, codec: UsageCodec = JSON) -> None:
    parser, collected = RequestLogParser("1", codec=codec), UsageBatch(4, codec)
    for lines in blocks(log):
        collected.add(parser.elements(lines, refuse))
        if len(collected) > 10_000:
            collected.clear()


def stored(log: Path, lines: int, rounds: int, codec: UsageCodec) -> Iterator[float]:
    """The whole meter, each round as the meter of another broker; its CPU time."""
    with big_broker(*topic_specs(2, 10_000)) as broker:
        access = ClusterAccess(broker.bootstrap_servers)
        for number in range(rounds):
            topic = KafkaUsageTopic(str(number), USAGE_TOPIC, MARKER_TOPIC, access, 10_000)
            publisher = UsagePublisher(str(number), topic, USAGE_TOPIC)
            place = publisher.take_over()
            follower = LogFollower(log, "beginning", place)
            parser = RequestLogParser("1", codec=codec)
            meter = RequestMeter(follower, parser, publisher, SystemClock(), time.sleep)
            is_over = partial(lambda counts: counts.events >= lines, publisher.counts)
            yield cpu_spent(partial(meter.run, is_over))


def refuse(error: MalformedLine, line: bytes) -> None:
    raise AssertionError(line) from error


if __name__ == "__main__":
    main()
