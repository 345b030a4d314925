"""Insert, cancel and expire with a million pending: our batch wheel, heapq, Kafka's timer and a DelayQueue.

    python -m bench.purgatory.timers [--pending 1000000] [--batch 10000] [--rounds 5]

A round begins with n entries, whose expirations are uniform over the next 1 to 1000 ms. It inserts n more in batches
and cancels these in random order. Then the first n expire in a second structure, about one batch per step of the clock.
The figures are CPU time of the calling thread, the median of the rounds after one that warms up.

On the JVM every entry is an object and every call is for one entry. Measured are Kafka's `SystemTimer` (it hands each
task to an executor, whose own time is not counted) and `java.util.concurrent.DelayQueue` (its cancel is O(n) and is
left out).
"""

import gc
import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.machine import arguments
from bench.pages import row, table
from bench.purgatory.designs import run_java
from purgatory.batch_wheel import BatchTimingWheel

START_MS: Final = 1_795_000_000_000
SPAN_MS: Final = 1000
TARGETS: Final = (30.0, 60.0, 20.0)

Int64s = npt.NDArray[np.int64]


class Heap:
    """heapq of (expiration, submission), and a dictionary of the pending submissions. Cancelling removes one there."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._pending: dict[int, None] = {}
        self._submissions = 0

    def schedule_many(self, expirations: list[int]) -> range:
        first = self._submissions
        for submission, expiration_ms in enumerate(expirations, start=first):
            self._pending[submission] = None
            heapq.heappush(self._heap, (expiration_ms, submission))
        self._submissions += len(expirations)
        return range(first, self._submissions)

    def cancel_many(self, entries: list[int]) -> None:
        for submission in entries:
            del self._pending[submission]

    def advance(self, now_ms: int) -> None:
        while self._heap and self._heap[0][0] <= now_ms:
            self._pending.pop(heapq.heappop(self._heap)[1], None)

    def __len__(self) -> int:
        return len(self._pending)


def one_round(make: Callable[[], Any], prepare: Callable[[Int64s], Any], pending: int, batch: int) -> list[float]:
    """Million inserts, cancels and expiries per second. `prepare` is not measured: it makes what the timer takes."""
    random = np.random.default_rng(1)
    expirations = START_MS + random.integers(1, SPAN_MS + 1, 2 * pending)
    first, later = ([prepare(part) for part in split(half, batch)] for half in np.split(expirations, 2))
    filled, other = make(), make()
    for part in first:
        filled.schedule_many(part)
        other.schedule_many(part)
    inserted, entries = spent(filled.schedule_many, later)
    shuffled = np.concatenate(entries)[random.permutation(pending)]
    cancelled, _ = spent(filled.cancel_many, [prepare(part) for part in split(shuffled, batch)])
    step_ms = max(1, SPAN_MS * batch // pending)
    expired, _ = spent(other.advance, range(START_MS + step_ms, START_MS + SPAN_MS + step_ms, step_ms))
    if len(other) or len(filled) != pending:
        msg = f"{len(other)} entries were never handed out, {len(filled) - pending} not cancelled"
        raise AssertionError(msg)
    return [pending / 1e6 / seconds for seconds in (inserted, cancelled, expired)]


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


def main() -> None:
    asked = arguments(__doc__, pending=1_000_000, batch=10_000, rounds=5)
    print(f"M/s of CPU time, {asked.pending:,} pending, batches of {asked.batch:,}\n")
    print(table(["", "insert", "cancel", "expire"]))
    for name, make, prepare in (
        ("batch wheel", lambda: BatchTimingWheel(START_MS), lambda values: values),
        ("heapq", Heap, lambda values: values.tolist()),
    ):
        rounds = [one_round(make, prepare, asked.pending, asked.batch) for _ in range(1 + asked.rounds)][1:]
        print(row([name, *map(median, zip(*rounds, strict=True))], digits=2), flush=True)
    options = ("-Xms6g", "-Xmx6g", "-XX:+UseParallelGC")
    for name, *figures in run_java("TimerBench.java", [str(asked.rounds), str(asked.pending)], options):
        print(row([f"{name}, JVM", *map(float, figures)], digits=2).replace("nan", "–"))
    print(row(["target of the batch wheel", *TARGETS]))


if __name__ == "__main__":
    main()
