"""How many events a second the driver reads from packed messages, compared with JSON arrays of the same events.

    python -m bench.packed [--events 400000] [--rounds 7]

The messages are in memory: what Kafka and Spark take to bring them is not in the figures. A message has 100 or 1 000
events of 1 000 clients, within one second. Reading is decoding, all checks of the fields, and the sum by sample window,
broker, user and client-id, in the parts in which the job reads a batch. Before any speed is printed the sums are
compared with a dictionary that plain Python has filled. `wall` is events per second of wall time, the median of the
rounds; `core` is events per second of CPU time of all threads: Arrow sums on all cores, msgspec reads on one.

    json       arrays of JSON objects, read as the job reads them
    packed     Arrow IPC streams of one record batch
    refused    packed, and every event breaks a rule: each becomes a dead letter
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from typing import Any, Final

import pyarrow as pa

from bench.machine import machine_line
from pipeline.stream.usage_columns import EVENT_SCHEMA, CollectedBatch, ReadingRules
from pipeline.stream.usage_reader import MESSAGE_SCHEMA, read_usage

START_MS: Final = 1_795_000_000_000
CLIENTS: Final = 1_000
RULES: Final = ReadingRules(sample_window_ms=1_000, max_event_age_ms=86_400_000)
TARGET: Final = 1_000_000

Event = dict[str, Any]
Sums = Counter[tuple[str, str, str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(machine_line())
    print(f"{arguments.events:,} events, {arguments.rounds} rounds; target {TARGET:,} events/s")
    print(f"{'codec':>8} {'events a message':>17} {'bytes an event':>15} {'wall ev/s':>12} {'core ev/s':>12}")
    for per_message in (100, 1_000):
        messages = [events(per_message, seed) for seed in range(arguments.events // per_message)]
        wanted = oracle(messages)
        refused = [[{**event, "produced_bytes": -1} for event in message] for message in messages]
        runs: tuple[tuple[str, list[bytes], Sums], ...] = (
            ("json", [json.dumps(message, separators=(",", ":")).encode() for message in messages], wanted),
            ("packed", [packed(message) for message in messages], wanted),
            ("refused", [packed(message) for message in refused], Counter()),
        )
        for name, values, sums in runs:
            fetched = as_fetched(values)
            read = read_usage(fetched, RULES)
            if sums_of(read) != sums or read.usage.num_rows + read.dead_count == 0:
                print(f"{name}: the sums differ from those of plain Python")
                return 1
            wall, core = speed(lambda fetched=fetched: read_usage(fetched, RULES), arguments)  # type: ignore[misc]
            size = sum(map(len, values)) / arguments.events
            print(f"{name:>8} {per_message:>17,} {size:>15.0f} {wall:>12,.0f} {core:>12,.0f}", flush=True)
    return 0


def events(count: int, seed: int) -> list[Event]:
    random = Random(seed)
    return [_event(random, random.randrange(CLIENTS)) for _ in range(count)]


def _event(random: Random, client: int) -> Event:
    return {
        "event_time_ms": START_MS + random.randrange(1_000),
        "user": f"user-{client:04d}",
        "client_id": f"client-{client % 7}",
        "broker_id": str(client % 3),
        "produced_bytes": random.randrange(10_000),
        "io_time_ns": random.randrange(100_000),
        "request_count": 1,
    }


def packed(message: Sequence[Event]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, EVENT_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(list(message), EVENT_SCHEMA))
    return bytes(sink.getvalue().to_pybytes())


def as_fetched(values: Sequence[bytes]) -> pa.Table:
    count = len(values)
    columns = [values, ["usage"] * count, [0] * count, range(count), [START_MS + 2_000] * count]
    return pa.table([pa.array(*one) for one in zip(columns, MESSAGE_SCHEMA.types, strict=True)], schema=MESSAGE_SCHEMA)


def oracle(messages: Sequence[Sequence[Event]]) -> Sums:
    sums: Sums = Counter()
    for message in messages:
        for event in message:
            for name in ("produced_bytes", "io_time_ns", "request_count"):
                sums[event["user"], event["client_id"], name] += event[name]
    return sums


def sums_of(read: CollectedBatch) -> Sums:
    sums: Sums = Counter()
    for row in read.usage.to_pylist():
        for name in ("produced_bytes", "io_time_ns", "request_count"):
            sums[row["user"], row["client_id"], name] += row[name]
    return sums


def speed(read: Callable[[], object], arguments: argparse.Namespace) -> tuple[float, float]:
    """Events per second of wall time and of CPU time, medians."""
    wall, core = [], []
    for _ in range(arguments.rounds):
        began, began_core = time.perf_counter(), time.process_time()
        read()
        wall.append(time.perf_counter() - began)
        core.append(time.process_time() - began_core)
    return arguments.events / median(wall), arguments.events / median(core)


if __name__ == "__main__":
    sys.exit(main())
