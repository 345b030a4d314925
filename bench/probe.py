"""The latency of a decision: from a client's first event above its quota until a reader has the record.

A probe is a client that was never seen before. Its first event puts it above its quota. The time is measured from the
produce call until a `read_committed` consumer has the throttle record. Probes come at random times while a generator
sends steady load. Broker, generator, job and prober share the machine; job and generator are processes of their own.

    python -m bench.probe [--probes 120] [--events-per-second 20000] [--clients 10000] [--trigger-ms 250]

It is compared with an empty Spark query on the same topic under the same load: a trigger that reads offsets and does
nothing.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from bench.machine import machine_line
from bench.stage import child, job
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import create_tables, open_quota_table
from pipeline.tables.reader import read_table
from schemas.topic_names import THROTTLE_TOPIC, USAGE_TOPIC

_LINES_TOLD = 60
_PATIENCE_SECONDS = 240
_CAUGHT_UP_MS = 2_000
_FACT = re.compile(r"(\w+_ms)=(\d+)")
_EMPTY_QUERY = """
import sys, time
from pipeline.stream.spark_starter import SparkStarter
from pipeline.settings.model import Settings
from pipeline.stream.reading_rules import ReadingRules
from pipeline.stream.source import read_usage_topic
servers, checkpoint, trigger_ms, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
settings = Settings()
with SparkStarter(settings.spark, checkpoint, ReadingRules.from_settings(settings)) as starter:
    source = read_usage_topic(starter.session(), servers, settings.kafka.usage_topic, client_options={},
                              starting_offsets="latest", max_offsets_per_trigger=2_000_000)
    query = (source.writeStream.option("checkpointLocation", checkpoint)
             .trigger(processingTime=f"{trigger_ms} milliseconds").foreachBatch(lambda frame, number: None).start())
    time.sleep(seconds)
    for progress in query.recentProgress[-60:]:
        print(progress.durationMs["triggerExecution"], flush=True)
    query.stop()
"""


def main() -> None:
    """Run the whole measurement and print its table."""
    arguments = _arguments()
    print(machine_line())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        _prepare(folder, broker.bootstrap_servers, arguments.probes)
        load = [sys.executable, "-m", "bench.load", broker.bootstrap_servers]
        load += [str(arguments.events_per_second), str(arguments.clients)]
        stack.enter_context(child(load))
        empty_ms = _empty_query(broker.bootstrap_servers, folder, arguments.trigger_ms)
        batches: list[dict[str, int]] = []
        last_lines: deque[str] = deque(maxlen=_LINES_TOLD)

        def heard(line: str) -> None:
            last_lines.append(line)
            facts = {name: int(value) for name, value in _FACT.findall(line)}
            if "collect_ms" in facts:
                batches.append(facts)

        with job(folder, broker.bootstrap_servers, arguments.trigger_ms, heard):
            _await_caught_up(batches)
            time.sleep(15)
            latencies_ms, missing = _probe(broker.bootstrap_servers, arguments.probes)
        if missing:
            sys.exit(f"the job must publish a record for {missing}; got none within 30 s\n{''.join(last_lines)}")
        lateness_ms = read_table(str(folder / "tables" / "throttle_events"), ["lateness_ms"])["lateness_ms"]
    print(
        f"{arguments.events_per_second} ev/s, {arguments.clients} clients, trigger {arguments.trigger_ms} ms, "
        f"{len(latencies_ms)} probes, {len(batches)} micro-batches"
    )
    _row("produce call -> record at a read_committed reader", latencies_ms)
    print("of which, per micro-batch:")
    for step in ("collect_ms", "append_ms", "decide_ms", "publish_ms"):
        _row(f"  {step}", [batch[step] for batch in batches[20:] if step in batch])
    _row("due -> handed out by the wheel, while batches run", lateness_ms.drop_null().to_pylist())
    _row("peer: empty Spark query, trigger execution", empty_ms)


def _prepare(folder: Path, bootstrap_servers: str, probes: int) -> None:
    settings = Settings(tables=TablesSettings(root=str(folder / "tables")))
    with ClusterAccess(bootstrap_servers).admin() as admin:
        create_topics(admin, wanted_topics(settings))
    create_tables(settings.tables)
    rows: list[dict[str, Any]] = [{"user": "<default>", "client_id": "<default>", "producer_byte_rate": 1e9}]
    rows += [{"user": f"probe-{number}", "client_id": "", "producer_byte_rate": 1_000.0} for number in range(probes)]
    open_quota_table(settings.tables).edit(lambda _: rows, local_audit("bench"))


def _probe(bootstrap_servers: str, probes: int) -> tuple[list[float], str]:
    """One latency in ms per probe, without the first ten, which warm up; and who was never throttled, or ""."""
    options = {"bootstrap_servers": bootstrap_servers}
    consumer: Any = KafkaConsumer(
        THROTTLE_TOPIC,
        isolation_level="read_committed",
        auto_offset_reset="latest",
        fetch_max_wait_ms=500,
        **options,
    )
    consumer.poll(timeout_ms=2_000)
    producer: Any = KafkaProducer(linger_ms=0, **options)
    draw = random.Random(7)
    latencies_ms: list[float] = []
    for number in range(probes):
        deadline = time.monotonic() + 0.8 + draw.random()
        while time.monotonic() < deadline:
            consumer.poll(timeout_ms=20)
        user = f"probe-{number}"
        event = {"event_time_ms": time.time_ns() // 1_000_000, "user": user, "client_id": "p", "produced_bytes": 10**9}
        began = time.perf_counter()
        producer.send(USAGE_TOPIC, json.dumps(event).encode())
        producer.flush()
        while user not in {json.loads(r.value)["user"] for rs in consumer.poll(timeout_ms=5_000).values() for r in rs}:
            if time.perf_counter() - began > 30:
                return latencies_ms[10:], user
        latencies_ms.append((time.perf_counter() - began) * 1000)
    return latencies_ms[10:], ""


def _await_caught_up(batches: list[dict[str, int]]) -> None:
    """Wait until the job has decided what was sent before it started: a backlog of a minute, on a cold JVM."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not batches or batches[-1].get("age_ms", _CAUGHT_UP_MS) >= _CAUGHT_UP_MS:
        if time.monotonic() > deadline:
            sys.exit(f"the job must catch up with the load; it has not within {_PATIENCE_SECONDS} s")
        time.sleep(0.5)


def _empty_query(bootstrap_servers: str, folder: Path, trigger_ms: int) -> list[float]:
    command = [sys.executable, "-c", _EMPTY_QUERY, bootstrap_servers, str(folder / "empty"), str(trigger_ms), "30"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=180)
    return [float(line) for line in done.stdout.split()]


def _row(name: str, values: Sequence[float]) -> None:
    if len(values) < 2:
        print(f"{name:<52} not measured")
        return
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    print(f"{name:<52} p50 {cuts[49]:>6.0f}   p95 {cuts[94]:>6.0f}   p99 {cuts[98]:>6.0f} ms")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=int, default=130)
    parser.add_argument("--events-per-second", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--trigger-ms", type=int, default=250)
    return parser.parse_args()


if __name__ == "__main__":
    main()
