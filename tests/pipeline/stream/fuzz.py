"""Reads random messages by the million: none may end the stream, and each must be accounted for.

    python -m tests.pipeline.stream.fuzz [--messages 1000000] [--seed 1]

A message without elements is ignored, or is one dead letter. Of any other message every element is a usage event or a
dead letter. Chunks of comparable messages (see `fuzz_corpus`) must be read exactly as plain Python reads them: dead
letters, counts and sums. For the others the number of elements is compared with Python's own reading. Messages have up
to the largest size, names around the largest length, event times from 0 to 2^62, and brokers' clocks up to a day wrong.
Each chunk also goes through the driver's steps: limited event times, rows of the tables, decisions. A part of each
chunk is read on both paths: by Spark, and by the driver. Exit code 1 if anything differs.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from pyspark.sql import SparkSession

from pipeline.stream.event_time_limit import limit_event_times
from pipeline.stream.reading.collect import collect, collect_on_driver
from pipeline.stream.reading.collected_batch import CollectedBatch
from pipeline.stream.reading.dead_letters import capped
from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from schemas.arrow import conform
from schemas.rows import DeadLetterRow
from schemas.usage import UsageRow
from tests.pipeline.stream.fuzz_corpus import append_times, beyond, comparable, large_messages, messages
from tests.pipeline.stream.messages import APPENDED_AT_MS, RULES, expected_of, raw_frame, usage

CHUNK_MESSAGES = 20_000
ON_DRIVER_MESSAGES = 1_500
"""So many messages of a chunk are read on both paths; the driver reads no larger number."""
LIMIT_MS = APPENDED_AT_MS + 2_000
"""The latest event time that the driver believes; some brokers' clocks are a day ahead of it."""
_LETTERS_PER_MESSAGE = 100
_QUOTAS = [{"user": "<default>", "client_id": "", "producer_byte_rate": 10.0, "request_percentage": 1.0}]
Rows = dict[tuple[Any, ...], dict[str, Any]]
_DEPTH_LIMIT = 1000  # Jackson's, as is the next
_DEEP_ENOUGH = 40_000
_LONG_NUMBER = re.compile(r"[0-9]{900,}")


@dataclass
class Tally:
    """How the messages so far were read.

    Attributes:
        outcomes: Counts of messages, good, dead and ignored.
        faults: Every difference from Python's reading, one line each.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def take(self, batch: CollectedBatch, values: Sequence[bytes | None]) -> None:
        """Count one chunk."""
        self.outcomes.update(
            messages=len(values), good=batch.good_count, dead=batch.dead_count, ignored=batch.ignored_count
        )


def run_comparable(spark: SparkSession, seed: int, count: int, tally: Tally) -> None:
    """Read a chunk of comparable messages and compare every outcome with Python's, before and after the time limit."""
    values, appended_ms = messages(seed, count, comparable), append_times(seed, count)
    batch = collect(raw_frame(spark, values, appended_ms), RULES)
    tally.take(batch, values)
    expected = expected_of(values, appended_ms)
    dead = {(row["offset"], row["element_index"]) for row in batch.dead_letters.to_pylist()}
    differ = sorted(dead ^ set(expected.dead), key=str)
    tally.faults += [f"seed {seed}: {place} {values[place[0]]!r}"[:500] for place in differ]
    got = (batch.good_count, batch.clamped_count, batch.ignored_count, batch.dead_count)
    wanted = (expected.good_count, expected.clamped_count, expected.ignored_count, len(expected.dead))
    if got != wanted:
        tally.faults.append(f"seed {seed}: good, clamped, ignored, dead must be {wanted}; got {got}")
    _compare_usage(f"seed {seed}", usage(batch), expected.usage, tally)
    limited = run_driver(batch, f"seed {seed}", tally)
    expected = expected_of(values, appended_ms, LIMIT_MS)
    if not batch.clamped_count <= limited.clamped_count <= expected.clamped_count:
        text = f"{batch.clamped_count} to {expected.clamped_count} must be clamped; got {limited.clamped_count}"
        tally.faults.append(f"seed {seed}: {text}")
    # The driver does not know the single events: of a window that holds the limit it may count fewer as clamped.
    got_rows, wanted_rows = usage(limited), expected.usage
    for rows in (got_rows, wanted_rows):
        for row in rows.values():
            del row["clamped_count"]
    _compare_usage(f"seed {seed}, limited", got_rows, wanted_rows, tally)


def run_beyond(
    spark: SparkSession,
    values: Sequence[bytes | None],
    name: str,
    tally: Tally,
    appended_ms: int | Sequence[int] = APPENDED_AT_MS,
) -> None:
    """Read other messages and compare the number of elements with Python's reading."""
    batch = collect(raw_frame(spark, values, appended_ms), RULES)
    tally.take(batch, values)
    run_driver(batch, name, tally)
    whole = {row["offset"] for row in batch.dead_letters.to_pylist() if row["element_index"] is None}
    unread = 0
    wanted = 0
    for offset, value in enumerate(values):
        elements = 1 if value is None else _element_count(value)
        if offset in whole:
            wanted += 1
            if elements is not None and elements > 1 and not _beyond_limits(value):
                tally.faults.append(f"{name}: {elements} elements are one dead letter: {value!r}"[:500])
        elif elements is None:
            unread += 1
            wanted += 1
            tally.faults.append(f"{name}: is no JSON and was read: {value!r}"[:500])
        else:
            wanted += elements
    got = batch.good_count + batch.ignored_count + batch.dead_count
    if got != wanted and not unread:
        tally.faults.append(f"{name}: {wanted} must be accounted for; got {got}")


def compare_paths(
    spark: SparkSession, values: Sequence[bytes | None], appended_ms: Sequence[int], name: str, tally: Tally
) -> None:
    """A batch is the same, whether the driver reads it or Spark: sums, counts, causes and texts."""
    raw = raw_frame(spark, values[:ON_DRIVER_MESSAGES], appended_ms[:ON_DRIVER_MESSAGES])
    by_spark, on_driver = collect(raw, RULES), collect_on_driver(raw, RULES, len(values))
    _compare_usage(f"{name}, on the driver", usage(on_driver), usage(by_spark), tally)
    got, wanted = (batch.dead_letters.to_pylist() for batch in (on_driver, by_spark))
    tally.faults += [
        f"{name}, on the driver: {other} must be {one}"[:900] for one, other in zip_longest(wanted, got) if one != other
    ][:20]
    if on_driver.ignored_count != by_spark.ignored_count:
        tally.faults.append(f"{name}: {by_spark.ignored_count} are ignored, on the driver {on_driver.ignored_count}")


def run_driver(batch: CollectedBatch, name: str, tally: Tally) -> CollectedBatch:
    """Do what the driver does with a batch until it is stored and decided; returns the batch with limited times."""
    limited, _ = limit_event_times(batch, LIMIT_MS, RULES.sample_window_ms)
    evaluated_at_ms = limited.newest_event_ms or 0
    if evaluated_at_ms > LIMIT_MS:
        tally.faults.append(f"{name}: evaluated at {evaluated_at_ms}, after {LIMIT_MS}")
    in_rows = sum(limited.usage["event_count"].to_pylist())
    if (in_rows, limited.good_count) != (batch.good_count, batch.good_count):
        tally.faults.append(f"{name}: {batch.good_count} events must be in the rows; got {in_rows}")
    identity: dict[str, str | int] = {"cluster": "test", "query_id": "q", "batch_id": 1}
    evaluated = {"evaluated_at_ms": evaluated_at_ms, "quota_version": 1}
    conform(limited.usage, UsageRow, **identity, **evaluated)
    conform(capped(limited.dead_letters, _LETTERS_PER_MESSAGE), DeadLetterRow, **identity)
    engine = QuotaEngine()
    engine.load_quotas(QuotaSnapshot.from_rows(_QUOTAS, version=1))
    tally.outcomes["decisions"] += engine.record(limited.usage, evaluated_at_ms).num_rows
    return limited


def _compare_usage(name: str, got: Rows, wanted: Rows, tally: Tally) -> None:
    differ = [key for key in got.keys() | wanted.keys() if got.get(key) != wanted.get(key)]
    tally.faults += [f"{name}: {key} must be {wanted.get(key)}; got {got.get(key)}"[:500] for key in differ]


def _element_count(value: bytes) -> int | None:
    """The number of elements of an array; 1 for an empty array or any other value, None if Python can not read it."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEEP_ENOUGH)
    try:
        # As in the stream, bytes that are not UTF-8 are replaced by another character.
        parsed: Any = json.loads(value.decode(errors="replace"), parse_constant=refuse, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return None
    finally:
        sys.setrecursionlimit(limit)
    return max(1, len(parsed)) if isinstance(parsed, list) else 1


def _beyond_limits(value: bytes | None) -> bool:
    text = (value or b"").decode(errors="replace")
    return text.count("[") + text.count("{") >= _DEPTH_LIMIT or _LONG_NUMBER.search(text) is not None


def fuzz(spark: SparkSession, count: int, seed: int) -> Tally:
    """Read the large messages, then chunks of both kinds by turns until `count` messages have been read."""
    tally = Tally()
    run_beyond(spark, large_messages(seed), "large", tally)
    number = printed = 0
    while (left := count - tally.outcomes["messages"]) > 0:
        number += 1
        chunk, chunk_seed = min(left, CHUNK_MESSAGES), seed * 1_000_000 + number
        if number % 2:
            run_comparable(spark, chunk_seed, chunk, tally)
        else:
            values = messages(chunk_seed, chunk, beyond)
            run_beyond(spark, values, f"seed {chunk_seed}", tally, append_times(chunk_seed, chunk))
        values = messages(chunk_seed, min(chunk, ON_DRIVER_MESSAGES), comparable if number % 2 else beyond)
        compare_paths(spark, values, append_times(chunk_seed, len(values)), f"seed {chunk_seed}", tally)
        sys.stderr.writelines(f"{fault}\n" for fault in tally.faults[printed:])
        printed = len(tally.faults)
        if number % 5 == 0:
            sys.stderr.write(f"{dict(tally.outcomes)}, {len(tally.faults)} faults\n")
    return tally


def main() -> int:
    """Run and print how the messages were read."""
    from bench.machine import machine_line  # noqa: PLC0415 - only the command needs a session of its own
    from tests.conftest import spark_session  # noqa: PLC0415

    parser = argparse.ArgumentParser(description="Fuzzed messages through the reading path.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    with spark_session() as spark:
        tally = fuzz(spark, arguments.messages, arguments.seed)
    sys.stdout.write(f"{machine_line()}\n")
    counts = ", ".join(f"{value} {name}" for name, value in tally.outcomes.items())
    sys.stdout.write(
        f"seed {arguments.seed}: {counts}; {len(tally.faults)} faults, {time.perf_counter() - begun:.0f} s\n"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
