"""How many log lines a second the meter of request logs reads on one core.

    python -m bench.meter [--lines 200000] [--rounds 5] [--no-broker]

The log has lines in the form of Kafka 4.3.1: 45 % produce, 40 % fetch, 15 % other requests of 200 clients, about 1 kB
each. The figures are CPU time of the meter's process, all its threads, the median of the rounds.

    split     the file is read and cut into lines
    parse     and the lines become events
    batch     and the events become messages
    broker    and they are stored with the place, in transactions on a real broker; the broker's time is not counted
    packed    as batch, with packed messages
    stored    as broker, with packed messages
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.machine import machine_line
from pipeline.clock import SystemClock
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.broker_config import BrokerOptions
from pipeline.meter.kafka_usage_topic import KafkaUsageTopic
from pipeline.meter.log_follower import LogFollower
from pipeline.meter.packed_usage import PACKED
from pipeline.meter.request_log import MalformedLine, RequestLogParser
from pipeline.meter.request_meter import RequestMeter
from pipeline.meter.usage_batch import UsageBatch
from pipeline.meter.usage_codec import JSON, UsageCodec
from pipeline.meter.usage_publisher import UsagePublisher
from schemas.topic_names import MARKER_TOPIC, USAGE_TOPIC
from tests.pipeline.meter.request_lines import RequestLines

TARGET: Final = 50_000


def main() -> None:
    """Print the machine, and lines a second of each stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-broker", action="store_true", help="leave the last stage out")
    arguments = parser.parse_args()
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "request.log"
        with log.open("w", encoding="utf-8") as file:
            file.writelines(RequestLines().take(arguments.lines))
        size = log.stat().st_size / arguments.lines
        print(f"{arguments.lines:,} lines of {size:,.0f} bytes, {arguments.rounds} rounds; target {TARGET:,} lines/s")
        for name, run in (
            ("split", split),
            ("parse", parse),
            ("batch", batch),
            ("packed", partial(batch, codec=PACKED)),
        ):
            tell(name, arguments.lines, [seconds(lambda run=run: run(log)) for _ in range(arguments.rounds)])  # type: ignore[misc]
        for name, codec in () if arguments.no_broker else (("broker", JSON), ("stored", PACKED)):
            tell(
                name, arguments.lines, list(stored(log, Path(folder) / name, arguments.lines, arguments.rounds, codec))
            )


def tell(name: str, lines: int, spent: list[float]) -> None:
    """One line of the table."""
    print(
        f"{name:<8} {lines / median(spent):>10,.0f} lines/s  {median(spent) / lines * 1e6:>6.2f} us a line", flush=True
    )


def seconds(run: Callable[[], object]) -> float:
    """CPU time of one call, all threads."""
    began = time.process_time()
    run()
    return time.process_time() - began


def blocks(log: Path) -> Iterator[list[bytes]]:
    """The log as the follower hands it out."""
    follower = LogFollower(log, "beginning")
    while lines := follower.read():
        yield lines
    follower.close()


def split(log: Path) -> None:
    """Read and cut."""
    for _ in blocks(log):
        pass


def parse(log: Path) -> None:
    """Read, cut and parse."""
    parser = RequestLogParser("1")
    for lines in blocks(log):
        for _ in parser.elements(lines, refuse):
            pass


def batch(log: Path, codec: UsageCodec = JSON) -> None:
    """Read, cut, parse, and put into messages."""
    parser, collected = RequestLogParser("1", codec=codec), UsageBatch(4, codec)
    for lines in blocks(log):
        collected.add(parser.elements(lines, refuse))
        if len(collected) > 10_000:
            collected.clear()


def stored(log: Path, folder: Path, lines: int, rounds: int, codec: UsageCodec) -> Iterator[float]:
    """The whole meter, each round as the meter of another broker; its CPU time."""
    with EmbeddedBroker(folder, options=BrokerOptions(heap_mib=1024, quick_start=False)) as broker:
        access = ClusterAccess(broker.bootstrap_servers)
        with access.admin() as admin:
            create_topics(admin, topic_specs(2, 10_000))
        for number in range(rounds):
            topic = KafkaUsageTopic(str(number), USAGE_TOPIC, MARKER_TOPIC, access, 10_000)
            publisher = UsagePublisher(str(number), topic, USAGE_TOPIC)
            place = publisher.take_over()
            follower = LogFollower(log, "beginning", place)
            parser = RequestLogParser("1", codec=codec)
            meter = RequestMeter(follower, parser, publisher, SystemClock(), time.sleep)
            yield seconds(lambda meter=meter, publisher=publisher: meter.run(lambda: publisher.counts.events >= lines))  # type: ignore[misc]


def refuse(error: MalformedLine, line: bytes) -> None:
    """No line of this log is malformed."""
    raise AssertionError(line) from error


if __name__ == "__main__":
    main()
