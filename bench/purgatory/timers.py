"""Insert, cancel and expire while n entries are pending: our timers, heapq, and Kafka's timer on the JVM.

    python -m bench.purgatory.timers [--pending 1000 … 10000000] [--batch 10000] [--rounds 5] [--quick]

A round begins with n entries, whose expirations are uniform over the next 1 to 1000 ms. It inserts n more in batches
and cancels these in random order. Then it lets the first n expire, about one batch per step of the clock; once beside
the remains of the cancelled ones, and once in a second structure without them. The figures are CPU time of the calling
thread, the median of the rounds after one that warms up. With few entries, rounds are repeated until there are 50 000
operations.

On the JVM every entry is an object and every call is for one entry. Measured are Kafka's `SystemTimer` (it hands each
task to an executor, whose own time is not counted) and `java.util.concurrent.DelayQueue` (its cancel is O(n) and is
left out). Ten million entries are only for timers that need no more than seconds for them: the batch wheel's array
calls, and `SystemTimer` (three rounds).
"""

import gc
import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.machine import arguments
from bench.pages import row, table
from bench.purgatory.designs import run_java
from purgatory.batch_wheel import BatchTimingWheel

START_MS: Final = 1_795_000_000_000

Int64s = npt.NDArray[np.int64]


class Batches:
    """The batch wheel, with array calls. `insert` returns what `cancel` needs.

    `prepare` is not measured: it turns an array into what the timer takes.
    """

    def __init__(self) -> None:
        self._wheel = BatchTimingWheel(START_MS)

    def prepare(self, values: Int64s) -> Int64s:
        return values

    def insert(self, expirations: Int64s) -> Int64s:
        return self._wheel.schedule_many(expirations)

    def cancel(self, entries: Int64s) -> None:
        self._wheel.cancel_many(entries)

    def expire(self, now_ms: int) -> None:
        self._wheel.advance(now_ms)

    def __len__(self) -> int:
        return len(self._wheel)


class Heap:
    """heapq of (expiration, submission), and a dictionary of the pending submissions. Cancelling removes one there."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._pending: dict[int, None] = {}
        self._submissions = 0

    def prepare(self, values: Int64s) -> list[int]:
        expirations: list[int] = values.tolist()
        return expirations

    def insert(self, expirations: list[int]) -> range:
        first = self._submissions
        for submission, expiration_ms in enumerate(expirations, start=first):
            self._pending[submission] = None
            heapq.heappush(self._heap, (expiration_ms, submission))
        self._submissions += len(expirations)
        return range(first, self._submissions)

    def cancel(self, entries: list[int]) -> None:
        for submission in entries:
            del self._pending[submission]

    def expire(self, now_ms: int) -> None:
        while self._heap and self._heap[0][0] <= now_ms:
            self._pending.pop(heapq.heappop(self._heap)[1], None)

    def __len__(self) -> int:
        return len(self._pending)


Structure = Batches | Heap
STRUCTURES: Final[dict[str, Callable[[], Structure]]] = {"batch wheel": Batches, "heapq": Heap}


SPAN_MS: Final = 1000
FEWEST_OPERATIONS: Final = 50_000
MOST_OBJECTS: Final = 1_000_000
MOST_CALLS: Final = 5_000
TARGETS: Final = {"insert": 30.0, "cancel": 60.0, "expire": 20.0}


class Speed(NamedTuple):
    """Million operations per second of CPU time. NaN for what was not measured."""

    insert: float
    cancel: float
    expire: float
    expire_beside_cancelled: float

    def row(self, name: str, pending: int) -> str:
        return row([name, f"{pending:,}", *self], digits=2).replace("nan", "–")


def spent(call: Callable[[Any], Any], values: Iterable[Any]) -> tuple[float, list[Any]]:
    """CPU seconds of this thread for some calls, and what they returned. Garbage is collected before, not meanwhile."""
    gc.collect()
    gc.disable()
    started = time.thread_time()
    returned = [call(value) for value in values]
    seconds = time.thread_time() - started
    gc.enable()
    return seconds, returned


def split(values: Int64s, batch: int) -> Iterator[Int64s]:
    return (values[start : start + batch] for start in range(0, len(values), batch))


def one_round(make: Callable[[], Structure], pending: int, batch: int, seed: int) -> Speed:
    """One round on a new structure. At most MOST_CALLS calls of each kind are measured."""
    random = np.random.default_rng(seed)
    operations = min(pending, MOST_CALLS * batch)
    span_ms = max(SPAN_MS, pending // batch)
    step_ms = max(1, span_ms * batch // pending)
    structure = make()
    pending_ms = START_MS + random.integers(1, span_ms + 1, pending)
    first: list[Any] = [structure.prepare(part) for part in split(pending_ms, 10_000)]
    later = START_MS + random.integers(1, span_ms + 1, operations)
    inserted: list[Any] = [structure.prepare(part) for part in split(later, batch)]
    for part in first:
        structure.insert(part)
    del first
    insert_seconds, entries = spent(structure.insert, inserted)
    shuffled = np.concatenate(entries)[random.permutation(operations)]
    cancelled: list[Any] = [structure.prepare(part) for part in split(shuffled, batch)]
    del entries, shuffled
    cancel_seconds, _ = spent(structure.cancel, cancelled)
    del cancelled, inserted
    stops_ms = range(START_MS + step_ms, START_MS + span_ms + step_ms, step_ms)[:MOST_CALLS]
    beside_cancelled = expiry(structure, stops_ms)
    alone: Any = make()
    for part in split(pending_ms, 10_000):
        alone.insert(alone.prepare(part))
    millions = operations / 1e6
    return Speed(millions / insert_seconds, millions / cancel_seconds, expiry(alone, stops_ms), beside_cancelled)


def expiry(structure: Structure, stops_ms: range) -> float:
    """Million expirations per second."""
    pending = len(structure)
    seconds, _ = spent(structure.expire, stops_ms)
    if len(structure) and len(stops_ms) < MOST_CALLS:
        msg = f"{len(structure)} entries were never handed out"
        raise AssertionError(msg)
    return (pending - len(structure)) / 1e6 / seconds


def measure(name: str, pending: int, batch: int, rounds: int) -> Speed:
    """The median of the rounds after the first."""
    repeats = max(1, FEWEST_OPERATIONS // pending)
    make = STRUCTURES[name]
    timed = [one_round(make, pending, batch, seed) for seed in range(1 + rounds * repeats)][1:]
    return Speed(*map(median, zip(*timed, strict=True)))


def in_fresh_process(name: str, pending: int, batch: int, rounds: int) -> Speed:
    """Run `measure` in a process of its own, so that nothing is left over from another structure."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, name, pending, batch, rounds).result()


def jvm_speeds(pending: list[int], rounds: int) -> Iterator[tuple[str, int, Speed]]:
    settings = [str(rounds), *map(str, pending)]
    for name, size, *figures in run_java("TimerBench.java", settings, ("-Xms6g", "-Xmx6g", "-XX:+UseParallelGC")):
        insert, cancel, expire, _ = map(float, figures)
        yield f"{name}, JVM", int(size), Speed(insert, cancel, expire, float("nan"))


def by_pending(pending: list[int], batch: int, rounds: int) -> Speed | None:
    """Print the table. Returns the batch wheel's speed at the largest size up to a million."""
    print(f"\nM/s of CPU time, batches of {batch:,}, load average {os.getloadavg()[0]:.1f}")
    beside = "expire, beside as many cancelled ones"
    print(table(["", "pending", "insert", "cancel", "expire", beside]))
    judged: Speed | None = None
    for name in STRUCTURES:
        for size in pending:
            if size > MOST_OBJECTS and name != "batch wheel":
                continue
            speed = in_fresh_process(name, size, min(batch, size), rounds)
            print(speed.row(name, size), flush=True)
            if name == "batch wheel" and size <= MOST_OBJECTS:
                judged = speed
    for name, size, speed in jvm_speeds(pending, rounds):
        print(speed.row(name, size), flush=True)
    return judged


def main() -> None:
    asked = arguments(__doc__, pending=[10**power for power in range(3, 8)], batch=10_000, rounds=5, quick=False)
    if asked.quick:
        asked.pending, asked.rounds = [1000, 10_000, 100_000], 1
    judged = by_pending(asked.pending, asked.batch, asked.rounds)
    if judged is None:
        return
    reached = " · ".join(f"{name} {getattr(judged, name):.0f} of {target:.0f}" for name, target in TARGETS.items())
    print(f"\nbatch wheel against its targets, M/s: {reached}")


if __name__ == "__main__":
    main()
