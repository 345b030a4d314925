"""What refused messages cost the others: one job under the same load, without junk, with a little and with a flood.

For each share of junk the good events stay the same, 20 000 a second in arrays of 100, or one by one; the junk comes
beside them. Probes (see `bench.probe`) tell whether decisions are on time. At the end of each share the job is stopped
for some seconds, so that it has to read a large batch: good events per second of that batch.

    python -m bench.junk [--messages arrays objects] [--seconds 60]

The ratios are to the medians of the shares without junk before and after. Targets: `collect` with 2 % at most 1.2, good
events per second with 50 % at least 0.5.
"""

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.machine import java_below, machine_line
from bench.probe import EVENTS_PER_MESSAGE
from bench.stage import BatchLog, Prober, percentiles, probe_quotas, staged

_EVENTS_PER_SECOND: Final = 20_000
_CLIENTS: Final = 10_000
_SHARES_PERCENT: Final = (0, 2, 50, 0)
_WARM_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 10.0
_STALL_SECONDS: Final = 5.0
_CATCH_UP_SECONDS: Final = 20.0

Batch = dict[str, int]
"""The facts of a micro-batch, from the job's log."""


@dataclass(frozen=True, slots=True)
class Share:
    """What was measured with one share of junk.

    Attributes:
        junk_percent: of all messages.
        batches: of the steady part.
        latencies_ms: of the probes of the steady part.
        large: the largest batch after the stall.
    """

    junk_percent: int
    batches: Sequence[Batch]
    latencies_ms: Sequence[float]
    large: Batch

    @property
    def collect_ms(self) -> float:
        return statistics.median(batch["collect_ms"] for batch in self.batches)

    @property
    def good_events_per_second(self) -> float:
        steps = ("collect_ms", "append_ms", "publish_ms")
        return self.large["events"] * 1_000 / sum(self.large[step] for step in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", nargs="+", choices=list(EVENTS_PER_MESSAGE), default=list(EVENTS_PER_MESSAGE))
    parser.add_argument("--seconds", type=float, default=60, help="of steady load for each share")
    asked = parser.parse_args()
    print(machine_line())
    for messages in asked.messages:
        print(f"\n{messages}: {_EVENTS_PER_SECOND} good ev/s, {EVENTS_PER_MESSAGE[messages]} per message, ", end="")
        print(f"{_CLIENTS} clients, trigger 250 ms; ms are medians of {asked.seconds:.0f} s", flush=True)
        _tell(_measured(messages, asked.seconds))


def _measured(messages: str, seconds: float) -> list[Share]:
    log, per_message = BatchLog(), EVENTS_PER_MESSAGE[messages]
    with (
        staged(probe_quotas(len(_SHARES_PERCENT) * int(seconds + _WARM_SECONDS))) as stage,
        stage.job(250, log.heard) as running,
        Prober(stage.servers) as prober,
    ):
        java = java_below(running.pid)
        pids = [running.pid, *([java] if java else [])]
        # Every kind of batch is met before the first one that counts.
        with stage.load(_EVENTS_PER_SECOND, _CLIENTS, per_message, 2):
            prober.probe(_WARM_SECONDS)
        found = []
        for percent in _SHARES_PERCENT:
            with stage.load(_EVENTS_PER_SECOND, _CLIENTS, per_message, percent):
                found.append(_share(percent, prober, pids, log.batches, seconds))
        return found


def _share(percent: int, prober: Prober, pids: Sequence[int], batches: list[Batch], seconds: float) -> Share:
    prober.probe(_SETTLE_SECONDS)
    first = len(batches)
    latencies_ms = prober.probe(seconds)
    steady = batches[first:]
    if prober.missing:
        sys.exit(f"no record for the probe {prober.missing}")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(_STALL_SECONDS)
    first = len(batches)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    prober.probe(_CATCH_UP_SECONDS)
    return Share(percent, steady, latencies_ms, max(batches[first:], key=lambda batch: batch["events"]))


def _tell(shares: Sequence[Share]) -> None:
    clean = [share for share in shares if not share.junk_percent]
    clean_collect_ms = statistics.median(share.collect_ms for share in clean)
    clean_rate = statistics.median(share.good_events_per_second for share in clean)
    names = "junk dead/batch collect ratio age p50 p99 probes large took good_ev/s ratio"
    print("".join(f"{name.replace('_', ' '):>11}" for name in names.split()))
    for share in shares:
        p50, p99 = percentiles(share.latencies_ms)
        dead = statistics.mean(batch["dead_letters"] for batch in share.batches)
        age_ms = statistics.median(batch["age_ms"] for batch in share.batches)
        rate = share.good_events_per_second
        cells = [f"{share.junk_percent} %", f"{dead:.1f}", f"{share.collect_ms:.0f}"]
        cells += [f"{share.collect_ms / clean_collect_ms:.2f}", f"{age_ms:.0f}", f"{p50:.0f}", f"{p99:.0f}"]
        cells += [f"{len(share.latencies_ms)}", f"{share.large['events']}"]
        cells += [f"{share.large['events'] / rate * 1_000:.0f}", f"{rate:.0f}", f"{rate / clean_rate:.2f}"]
        print("".join(f"{cell:>11}" for cell in cells), flush=True)
    print("(p50 and p99 of the probes: from the produce call to the record at a reader; large: the largest batch after")
    print(f"a stall of {_STALL_SECONDS:g} s, its good events and the ms of its steps)", flush=True)


if __name__ == "__main__":
    main()
