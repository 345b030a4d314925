"""Schedule, cancel and release beside a million pending entries: the batch wheel against heapq.

    python -m bench.wheel [--pending 1000000] [--batch 10000] [--rounds 5]

Process CPU time, median of the rounds, one warm-up round before them (it pays for the first touch of the memory).
A round starts with the pending entries in place, schedules as many again in batches, cancels those in random order
in batches of the same size, then moves the clock in 10 ms steps until everything is handed out: the release beside
as many dead references. A second structure holds the pending entries alone and is released the same way.
Expirations are uniform over the next 1 to 1000 ms. heapq holds (expiration, submission) tuples beside a dictionary
of the pending submissions; cancelling forgets the submission and leaves the tuple.
"""

import argparse
import gc
import heapq
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from purgatory.batch_wheel import BatchTimingWheel

Int64s = npt.NDArray[np.int64]

START_MS = 1_795_000_000_000
SPAN_MS = 1000
STEP_MS = 10


@dataclass(frozen=True)
class Speed:
    """Million operations per second of CPU time."""

    schedule: float
    cancel: float
    release: float
    release_half_dead: float


@dataclass(frozen=True)
class Load:
    """Batches of expirations: those already pending, and those scheduled beside them."""

    pending: list[Int64s]
    scheduled: list[Int64s]
    cancel_order: Int64s

    @property
    def entries(self) -> int:
        """Entries scheduled beside the pending ones."""
        return sum(batch.size for batch in self.scheduled)


def draw_load(pending: int, batch: int, seed: int) -> Load:
    """Draw the load of one round."""
    random = np.random.default_rng(seed)
    batches = [START_MS + random.integers(1, SPAN_MS + 1, batch) for _ in range(2 * pending // batch)]
    half = len(batches) // 2
    return Load(batches[:half], batches[half:], random.permutation(half * batch))


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU time of one call, garbage collected before and not during it."""
    gc.collect()
    gc.disable()
    started = time.process_time()
    run()
    spent = time.process_time() - started
    gc.enable()
    return spent


def batch_wheel_round(load: Load) -> Speed:
    """One round on the batch wheel."""
    wheel = BatchTimingWheel(START_MS)
    for batch in load.pending:
        wheel.schedule_many(batch)
    handles: list[Int64s] = []
    schedule = cpu_seconds(lambda: handles.extend(wheel.schedule_many(batch) for batch in load.scheduled))
    to_cancel = np.concatenate(handles)[load.cancel_order].reshape(len(load.scheduled), -1)
    cancel = cpu_seconds(lambda: [wheel.cancel_many(batch) for batch in to_cancel])
    stops_ms = range(START_MS + STEP_MS, START_MS + SPAN_MS + 1, STEP_MS)
    half_dead = cpu_seconds(lambda: [wheel.advance(now_ms) for now_ms in stops_ms])
    alone = BatchTimingWheel(START_MS)
    for batch in load.pending:
        alone.schedule_many(batch)
    release = cpu_seconds(lambda: [alone.advance(now_ms) for now_ms in stops_ms])
    if len(wheel) or len(alone):
        msg = f"{len(wheel)} and {len(alone)} entries were never handed out"
        raise AssertionError(msg)
    return in_millions(load.entries, schedule, cancel, release, half_dead)


def heapq_round(load: Load) -> Speed:
    """One round on a heap with lazy cancel."""
    heap: list[tuple[int, int]] = []
    pending: dict[int, None] = {}
    submissions = count()

    def schedule_all(batches: list[list[int]]) -> None:
        for batch in batches:
            for expiration_ms in batch:
                submission = next(submissions)
                pending[submission] = None
                heapq.heappush(heap, (expiration_ms, submission))

    def release_all() -> int:
        handed_out = 0
        while heap:
            _, submission = heapq.heappop(heap)
            if submission in pending:
                del pending[submission]
                handed_out += 1
        return handed_out

    schedule_all([batch.tolist() for batch in load.pending])
    first = len(heap)
    scheduled = [batch.tolist() for batch in load.scheduled]
    schedule = cpu_seconds(lambda: schedule_all(scheduled))
    to_cancel = (load.cancel_order + first).tolist()
    cancel = cpu_seconds(lambda: [pending.pop(submission) for submission in to_cancel])
    half_dead = cpu_seconds(release_all)
    schedule_all([batch.tolist() for batch in load.pending])
    release = cpu_seconds(release_all)
    return in_millions(load.entries, schedule, cancel, release, half_dead)


def in_millions(entries: int, *seconds: float) -> Speed:
    """Entries over seconds, each."""
    return Speed(*(entries / spent / 1e6 for spent in seconds))


def median_speed(run_round: Callable[[Load], Speed], loads: list[Load]) -> Speed:
    """Median of each figure over all loads but the first."""
    speeds = [run_round(load) for load in loads][1:]
    return Speed(
        median(speed.schedule for speed in speeds),
        median(speed.cancel for speed in speeds),
        median(speed.release for speed in speeds),
        median(speed.release_half_dead for speed in speeds),
    )


def machine_line() -> str:
    """Processor, cores and versions this ran on."""
    model = "unknown processor"
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = [line.split(":")[1].strip() for line in cpu_info.read_text().splitlines() if "model name" in line]
        model = f"{len(names)} x {names[0]}" if names else model
    return f"{model}, {platform.system()}, Python {platform.python_version()}, NumPy {np.__version__}"


def main() -> None:
    """Run both and print one table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pending", type=int, default=1_000_000)
    arguments.add_argument("--batch", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=5)
    asked = arguments.parse_args()
    loads = [draw_load(asked.pending, asked.batch, seed) for seed in range(asked.rounds + 1)]
    print(f"machine: {machine_line()}")
    print(f"{asked.pending:,} pending, batches of {asked.batch:,}, CPU time, median of {asked.rounds} rounds; M/s")
    print(f"{'':<22}{'schedule':>10}{'cancel':>10}{'release':>10}{'release, half dead':>20}")
    for name, run_round in (("batch wheel", batch_wheel_round), ("heapq, one by one", heapq_round)):
        speed = median_speed(run_round, loads)
        figures = f"{speed.schedule:>10.2f}{speed.cancel:>10.2f}{speed.release:>10.2f}"
        print(f"{name:<22}{figures}{speed.release_half_dead:>20.2f}", flush=True)
    print(f"{'target':<22}{30:>10}{60:>10}{20:>10}")


if __name__ == "__main__":
    main()
