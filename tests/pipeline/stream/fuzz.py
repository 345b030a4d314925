"""Reads random messages by the million: none may end the stream, and each must be accounted for.

    python -m tests.pipeline.stream.fuzz [--messages 1000000] [--seed 1]

A message without elements is ignored, or is one dead letter. Of any other message every element is a usage event or a
dead letter. Chunks of comparable messages (see `fuzz_corpus`) must be read exactly as plain Python reads them. For the
others the number of elements is compared with Python's own reading. Exit code 1 if anything differs.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from pipeline.stream.collect import collect
from pipeline.stream.collected_batch import CollectedBatch
from tests.pipeline.stream.fuzz_corpus import beyond, comparable, large_messages, messages
from tests.pipeline.stream.messages import RULES, expected_of, raw_frame

CHUNK_MESSAGES = 20_000
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
    """Read a chunk of comparable messages and compare every outcome with Python's."""
    values = messages(seed, count, comparable)
    batch = collect(raw_frame(spark, values), RULES)
    tally.take(batch, values)
    expected = expected_of(values)
    dead = {(row["offset"], row["element_index"]) for row in batch.dead_letters.to_pylist()}
    differ = sorted(dead ^ set(expected.dead), key=str)
    tally.faults += [f"seed {seed}: {place} {values[place[0]]!r}"[:500] for place in differ]
    got = (batch.good_count, batch.ignored_count, batch.dead_count)
    wanted = (expected.good_count, expected.ignored_count, len(expected.dead))
    if got != wanted:
        tally.faults.append(f"seed {seed}: good, ignored, dead must be {wanted}; got {got}")


def run_beyond(spark: SparkSession, values: Sequence[bytes | None], name: str, tally: Tally) -> None:
    """Read other messages and compare the number of elements with Python's reading."""
    batch = collect(raw_frame(spark, values), RULES)
    tally.take(batch, values)
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


def _element_count(value: bytes) -> int | None:
    """How many elements an array has. 1 for an empty array or any other value, None if Python can not read it."""

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
            run_beyond(spark, messages(chunk_seed, chunk, beyond), f"seed {chunk_seed}", tally)
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
