"""Reads random messages by the million: each must be read exactly as the model reads it, and none may end the stream.

    python -m tests.pipeline.stream.fuzz [--messages 1000000] [--seed 1]

Both corpora of `fuzz_corpus` are compared with `usage_model`, which shares nothing with the reader: dead letters with
their bytes, counts and sums. The same messages are read a second time without the reader's quick step, which must
change nothing. Messages have up to the largest size, names around the largest length, event times from 0 to 2^62, and
brokers' clocks up to a day wrong. Each chunk also goes through the driver's steps: limited event times, rows of the
tables, decisions. Exit code 1 if anything differs.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pipeline.stream import usage_reader
from pipeline.stream.usage_columns import CollectedBatch, limit_event_times
from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from schemas.arrow import conform
from schemas.rows import DeadLetterRow
from schemas.usage import UsageRow
from tests.pipeline.stream.fuzz_corpus import append_times, beyond, comparable, large_messages, messages
from tests.pipeline.stream.messages import APPENDED_AT_MS, RULES, counts, read, usage
from tests.pipeline.stream.usage_model import expected_of, judged

CHUNK_MESSAGES = 20_000
LIMIT_MS = APPENDED_AT_MS + 2_000
"""The latest event time that the driver believes; some brokers' clocks are a day ahead of it."""
ALL_LETTERS = replace(RULES, letters_per_message=10**9)
_QUOTAS = [{"user": "<default>", "client_id": "", "producer_byte_rate": 10.0, "request_percentage": 1.0}]
Rows = dict[tuple[Any, ...], dict[str, Any]]


@dataclass
class Tally:
    """How the messages so far were read.

    Attributes:
        outcomes: Counts of messages, good, dead and ignored.
        faults: Every difference from the model, one line each.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def compare(self, what: str, got: object, wanted: object) -> None:
        """Note a difference."""
        if got != wanted:
            self.faults.append(f"{what} must be {wanted!r}; got {got!r}"[:500])


@contextmanager
def without_quick_step() -> Iterator[None]:
    """The reader without its quick step: each message is read with causes."""
    decoded = usage_reader._decoded
    usage_reader._decoded = lambda value: None
    try:
        yield
    finally:
        usage_reader._decoded = decoded


def run_chunk(values: Sequence[bytes | None], appended_ms: Sequence[int], name: str, tally: Tally) -> None:
    """Read messages in both ways and compare every outcome with the model's, before and after the time limit."""
    batch = read(*values, appended_at_ms=appended_ms, rules=ALL_LETTERS)
    tally.outcomes.update(
        messages=len(values), good=batch.good_count, dead=batch.dead_count, ignored=batch.ignored_count
    )
    by_model = judged(values)
    expected = expected_of(by_model, appended_ms, RULES.max_event_age_ms)
    letters = batch.dead_letters.to_pylist()
    got, wanted = {(row["offset"], row["element_index"], row["value"]) for row in letters}, set(expected.dead)
    tally.faults += [f"{name}, dead letter: {one!r}"[:500] for one in sorted(got ^ wanted, key=str)]
    tally.compare(f"{name}: dead letters", len(letters), len(expected.dead))
    tally.compare(
        f"{name}: good, clamped, ignored, dead",
        (batch.good_count, batch.clamped_count, batch.ignored_count, batch.dead_count),
        (expected.good_count, expected.clamped_count, expected.ignored_count, len(expected.dead)),
    )
    _compare_usage(name, usage(batch), expected.usage, tally)
    with without_quick_step():
        again = read(*values, appended_at_ms=appended_ms, rules=ALL_LETTERS)
    tally.compare(f"{name}, with causes: counts", counts(again), counts(batch))
    tally.compare(f"{name}, with causes: dead letters", again.dead_letters.equals(batch.dead_letters), True)
    _compare_usage(f"{name}, with causes", usage(again), expected.usage, tally)
    limited = run_driver(batch, name, tally)
    in_time = expected_of(by_model, appended_ms, RULES.max_event_age_ms, LIMIT_MS)
    if not batch.clamped_count <= limited.clamped_count <= in_time.clamped_count:
        tally.faults.append(f"{name}: {limited.clamped_count} are clamped, of {in_time.clamped_count}")
    # The driver does not know the single events: of a window that holds the limit it may count fewer as clamped.
    got_rows, wanted_rows = usage(limited), in_time.usage
    for rows in (got_rows, wanted_rows):
        for row in rows.values():
            del row["clamped_count"]
    _compare_usage(f"{name}, limited", got_rows, wanted_rows, tally)


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
    conform(limited.dead_letters, DeadLetterRow, topic="quota.usage.v1", **identity)
    engine = QuotaEngine()
    engine.load_quotas(QuotaSnapshot.from_rows(_QUOTAS, version=1))
    tally.outcomes["decisions"] += engine.record(limited.usage, evaluated_at_ms).num_rows
    return limited


def _compare_usage(name: str, got: Rows, wanted: Rows, tally: Tally) -> None:
    differ = [key for key in got.keys() | wanted.keys() if got.get(key) != wanted.get(key)]
    tally.faults += [f"{name}: {key} must be {wanted.get(key)}; got {got.get(key)}"[:500] for key in differ]


def fuzz(count: int, seed: int) -> Tally:
    """Read the large messages, then chunks of both kinds by turns until `count` messages have been read."""
    tally = Tally()
    large = large_messages(seed)
    run_chunk(large, [APPENDED_AT_MS] * len(large), "large", tally)
    number = printed = 0
    while (left := count - tally.outcomes["messages"]) > 0:
        number += 1
        size, chunk_seed = min(left, CHUNK_MESSAGES), seed * 1_000_000 + number
        kind: Callable[[Random], bytes | None] = comparable if number % 2 else beyond
        run_chunk(
            messages(chunk_seed, size, kind), append_times(chunk_seed, size), f"{kind.__name__} {chunk_seed}", tally
        )
        sys.stderr.writelines(f"{fault}\n" for fault in tally.faults[printed:])
        printed = len(tally.faults)
        if number % 5 == 0:
            sys.stderr.write(f"{dict(tally.outcomes)}, {len(tally.faults)} faults\n")
    return tally


def main() -> int:
    """Run and print how the messages were read."""
    from bench.machine import machine_line  # noqa: PLC0415 - only the command needs it

    parser = argparse.ArgumentParser(description="Fuzzed messages through the reading path.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    tally = fuzz(arguments.messages, arguments.seed)
    sys.stdout.write(f"{machine_line()}\n")
    found = ", ".join(f"{value} {name}" for name, value in tally.outcomes.items())
    sys.stdout.write(
        f"seed {arguments.seed}: {found}; {len(tally.faults)} faults, {time.perf_counter() - begun:.0f} s\n"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
