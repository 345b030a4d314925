"""The published purgatory benchmark: the old design and the new one, in Python and on the JVM.

    python -m bench.purgatory [--requests 1000000] [--limit-seconds 4]

Requests arrive as a Poisson process at a target rate. Latencies are log-normal: median 20 and 75th percentile 60 ms
(few time-outs), or 200 and 400 ms (half of the requests time out). The time-out is 200 ms, and every request is watched
on the same three keys. A request whose latency is over before its time-out is completed from a second queue. Arrivals
stop after `--requests` or `--limit-seconds`.

    0.8.2 design      watch lists and a heap of requests, purged by the rule of 0.8.2
    object by object  our DelayedOperationPurgatory over the timing wheel: one Python thread, as for the 0.8 design
    Kafka             its DelayedOperationPurgatory on the JVM: threads for arrivals, completions, expiry and executor
    batches           our batch wheel and watch lists in arrays, one thread, one batch per millisecond of arrivals

A design has kept up if the share of time-outs differs by at most a quarter from what the latencies demand. "Not paced"
means that requests come as fast as they are taken; a batch API cannot be run in this way, and gets higher target rates
instead. CPU is that of the whole process per request, including garbage collection and idle polling.
"""

import math
import os
from collections.abc import Iterator
from typing import Final

from bench.machine import KAFKA_VERSION, arguments
from bench.pages import row, table
from bench.purgatory.designs import (
    CASES,
    TIMEOUT_MS,
    Case,
    NewDesign,
    OldDesign,
    Run,
    draw_load,
    run_in_batches,
    run_java,
    run_one_by_one,
)

PACED: Final = (25_000.0, 50_000.0, 100_000.0, math.inf)
JVM_PACED: Final = (50_000.0, 100_000.0, 200_000.0, 400_000.0, 800_000.0, math.inf)
BATCH_PACED: Final = (100_000.0, 400_000.0, 800_000.0, 1_600_000.0, 3_200_000.0, 6_400_000.0)
OLD: Final = "0.8.2 design, Python"
NEW: Final = "ours, object by object"
KAFKA: Final = f"Kafka {KAFKA_VERSION}, JVM"
BATCHES: Final = "ours, batches of 1 ms, one thread"


def python_runs(design: type[NewDesign | OldDesign], case: Case, requests: int, limit_seconds: float) -> Iterator[Run]:
    for rate in PACED:
        yield run_one_by_one(design(), draw_load(case, requests, rate), rate, limit_seconds)


def batch_runs(case: Case, requests: int, limit_seconds: float) -> Iterator[Run]:
    for rate in BATCH_PACED:
        yield run_in_batches(draw_load(case, requests, rate), rate, limit_seconds)


def jvm_runs(case: Case, requests: int, limit_seconds: float) -> Iterator[Run]:
    settings = [requests, case.median_ms, case.p75_ms, TIMEOUT_MS, limit_seconds, *JVM_PACED]
    words = [str(one).replace("inf", "Infinity") for one in settings]
    for target, achieved, cpu_us, taken, expired in run_java("PurgatoryBench.java", words, ("-Xms1g", "-Xmx1g")):
        yield Run(float(target), float(achieved), float(cpu_us), int(taken), int(expired))


def measure(case: Case, requests: int, limit_seconds: float) -> None:
    """Run all designs in one case. Prints, for each, its highest rates and its least CPU, and some ratios."""
    designs = {
        OLD: python_runs(OldDesign, case, requests, limit_seconds),
        NEW: python_runs(NewDesign, case, requests, limit_seconds),
        KAFKA: jvm_runs(case, requests, limit_seconds),
        BATCHES: batch_runs(case, requests, limit_seconds),
    }
    print(f"\nlatency {case}, {case.expired_share:.1%} must time out, load average {os.getloadavg()[0]:.1f}\n")
    print(table(["", "keeps up to /s", "highest rate taken in /s", "least CPU µs per request"]))
    rates: dict[str, float] = {}
    for name, sweep in designs.items():
        runs = list(sweep)
        if runs:
            rates[name] = max((run.achieved_per_second for run in runs if run.kept_up(case)), default=0.0)
            taken, cpu_us = max(run.achieved_per_second for run in runs), min(run.cpu_us for run in runs)
            print(row([name, f"{rates[name]:,.0f}", f"{taken:,.0f}", f"{cpu_us:.2f}"]), flush=True)
    for over, under in ((OLD, NEW), (BATCHES, KAFKA)):
        if rates.get(over) and rates.get(under):
            print(f"\n{over} ÷ {under} = {rates[over] / rates[under]:.2f}")


def main() -> None:
    asked = arguments(__doc__, requests=1_000_000, limit_seconds=4.0)
    for case in CASES:
        measure(case, asked.requests, asked.limit_seconds)


if __name__ == "__main__":
    main()
