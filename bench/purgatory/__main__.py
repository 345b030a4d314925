"""The published purgatory benchmark: the old design and the new one, in Python and on the JVM.

    python -m bench.purgatory [--requests 1000000] [--limit-seconds 4] [--quick]

Requests arrive as a Poisson process at a target rate. Latencies are log-normal: median 20 and 75th percentile 60 ms
(few time-outs), or 200 and 400 ms (half of the requests time out). The time-out is 200 ms, and every request is watched
on the same three keys. A request whose latency is over before its time-out is completed from a second queue. Arrivals
stop after `--requests` or `--limit-seconds`.

    0.8 design        watch lists and a heap of requests, purged by the rule of 0.8.2
    object by object  our DelayedOperationPurgatory over the timing wheel: one Python thread, as for the 0.8 design
    Kafka 4.3.1       its DelayedOperationPurgatory on the JVM: threads for arrivals, completions, expiry and executor
    0.8 on the JVM    the 0.8 design in Java, with a delay queue and a reaper thread
    batches           our BatchPurgatory, single-threaded batch API, one batch per millisecond of arrivals; completed
                      from a second wheel, or "by key": with an event on one of the three keys in every millisecond

The rate of a design is the highest one at which it kept up. A design has not kept up if expiry or completion is so late
that the share of time-outs differs by more than a quarter from what the latencies demand.

"Not paced" means that requests come as fast as they are taken. A batch API cannot be run in this way; it gets higher
target rates instead. CPU is that of the whole process per request, including garbage collection and idle polling.
"""

import argparse
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bench.machine import arguments
from bench.pages import row, table
from bench.purgatory.designs import (
    CASES,
    TIMEOUT_MS,
    Case,
    Design,
    NewDesign,
    OldDesign,
    Run,
    draw_load,
    run_in_batches,
    run_java,
    run_one_by_one,
)

PACED: Final = (25_000.0, 50_000.0, 100_000.0)
JVM_PACED: Final = (50_000.0, 100_000.0, 200_000.0, 400_000.0, 800_000.0)
BATCH_PACED: Final = (100_000.0, 400_000.0, 800_000.0, 1_600_000.0, 3_200_000.0, 6_400_000.0)
JVM_OPTIONS: Final = ("-Xms1g", "-Xmx1g")

OLD: Final = "0.8.2 design, Python"
NEW: Final = "ours, object by object"
KAFKA: Final = "Kafka 4.3.1, JVM"
OLD_JVM: Final = "0.8.2 design, JVM"
BATCHES: Final = "ours, batches of 1 ms (single-threaded batch API)"
BATCHES_BY_KEY: Final = "the same, completed by key"


def python_runs(make: Callable[[], Design], case: Case, asked: argparse.Namespace) -> Iterator[Run]:
    for rate in (*PACED, math.inf):
        yield run_one_by_one(make(), draw_load(case, asked.requests, rate), rate, asked.limit_seconds)


def batch_runs(case: Case, asked: argparse.Namespace, *, by_key: bool) -> Iterator[Run]:
    for rate in BATCH_PACED:
        yield run_in_batches(draw_load(case, asked.requests, rate), rate, asked.limit_seconds, by_key=by_key)


def jvm_runs(design: str, case: Case, asked: argparse.Namespace) -> Iterator[Run]:
    settings = [design, asked.requests, case.median_ms, case.p75_ms, TIMEOUT_MS, asked.limit_seconds]
    words = run_java("PurgatoryBench.java", [*map(str, settings), *map(str, (*JVM_PACED, "Infinity"))], JVM_OPTIONS)
    for target, achieved, cpu_us, requests, expired in words:
        yield Run(float(target), float(achieved), float(cpu_us), int(requests), int(expired))


def measure(case: Case, asked: argparse.Namespace) -> dict[str, list[Run]]:
    """Run all designs in one case, in the order of the table. Prints every run."""
    sweeps: dict[str, Iterator[Run]] = {
        OLD: python_runs(OldDesign, case, asked),
        NEW: python_runs(NewDesign, case, asked),
        OLD_JVM: jvm_runs("0.8.2", case, asked),
        KAFKA: jvm_runs("kafka", case, asked),
        BATCHES: batch_runs(case, asked, by_key=False),
        BATCHES_BY_KEY: batch_runs(case, asked, by_key=True),
    }
    print(f"\nlatency {case}, load average {os.getloadavg()[0]:.1f}")
    print(table(["", "target /s", "achieved /s", "CPU µs per request", "requests", "timed out"]))
    measured: dict[str, list[Run]] = {}
    for name, sweep in sweeps.items():
        measured[name] = []
        for run in sweep:
            measured[name].append(run)
            target = f"{run.target_per_second:,.0f}" if math.isfinite(run.target_per_second) else "not paced"
            numbers = f"{run.achieved_per_second:,.0f}", f"{run.cpu_us:.2f}", f"{run.requests:,}"
            print(row([name, target, *numbers, f"{run.expired / run.requests:.1%}"]), flush=True)
    return measured


def highest(runs: Sequence[Run]) -> float:
    """The highest of some rates; 0 if there are none."""
    return max((run.achieved_per_second for run in runs), default=0.0)


def summarise(by_case: dict[Case, dict[str, list[Run]]]) -> None:
    """Print for each design the highest rate at which it kept up, its highest rate, its least CPU, and some ratios."""
    ratios = ((OLD, NEW), (OLD_JVM, KAFKA), (BATCHES, KAFKA), (BATCHES_BY_KEY, KAFKA))
    for case, by_name in by_case.items():
        rates = {name: highest([run for run in runs if run.kept_up(case)]) for name, runs in by_name.items()}
        print(f"\nlatency {case}, {case.expired_share:.1%} must time out")
        print(table(["", "keeps up to /s", "highest rate taken in /s", "least CPU µs per request"]))
        for name, runs in by_name.items():
            cpu_us = min((run.cpu_us for run in runs), default=math.nan)
            print(row([name, f"{rates[name]:,.0f}", f"{highest(runs):,.0f}", f"{cpu_us:.2f}"]))
        for over, under in ratios:
            if rates.get(over) and rates.get(under):
                print(f"{over} ÷ {under} = {rates[over] / rates[under]:.2f}")


def main() -> None:
    asked = arguments(__doc__, requests=1_000_000, limit_seconds=4.0, quick=False)
    if asked.quick:
        asked.requests, asked.limit_seconds = 100_000, 1.0
    by_case = {case: measure(case, asked) for case in CASES}
    summarise(by_case)


if __name__ == "__main__":
    main()
