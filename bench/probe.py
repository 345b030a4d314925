"""The latency of a decision, minute by minute from the job's start.

A probe is a client that was never seen before. Its first event puts it above its quota. The time is measured from the
produce call until a `read_committed` consumer has the throttle record. Probes come at random times while a generator
sends steady load. Broker, generator, job and prober share the machine; each is a process of its own, and its CPU is in
the table.

    python -m bench.probe [--minutes 8] [--messages objects arrays] [--events-per-second 20000] [--clients 10000]

It is compared with an empty Spark query on the same topic under the same load, in the same run: a trigger that reads
offsets and does nothing. The ratios at the end are to the p50 of its last minute. After the last minute the job is
stopped for some seconds, and the micro-batches are counted until it has caught up.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import CpuMeter, java_below
from bench.machine import arguments as options
from bench.pages import line, percentiles
from bench.stage import STEPS, BatchLog, Prober, probe_quotas, staged
from pipeline.tables.reading import read_table

STALL_SECONDS: Final = 5.0
_BATCHES_AFTER: Final = 12
_PATIENCE_SECONDS: Final = 60.0
_AS_USUAL: Final = 1.5


def stall(pids: Sequence[int], batches: Sequence[Mapping[str, int]]) -> str:
    """Stop the job for `STALL_SECONDS` and say after how many micro-batches it is as quick as before.

    The first one is the one that was under way when the job was stopped, or the one with all that has piled up.
    """
    usual_ms = statistics.median(batch["age_ms"] for batch in batches)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STALL_SECONDS)
    before = len(batches)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(batches) < before + _BATCHES_AFTER and time.monotonic() < deadline:
        time.sleep(0.1)
    after = batches[before:]
    needed = next((place for place, batch in enumerate(after, 1) if batch["age_ms"] <= _AS_USUAL * usual_ms), None)
    told = ", ".join(f"{batch['events']} events {batch['age_ms']} ms" for batch in after[:5])
    return (
        f"stall of {STALL_SECONDS:g} s: caught up with micro-batch {needed or 'none'} after it "
        f"(age at most {_AS_USUAL:g} x the usual {usual_ms:.0f} ms); {told}"
    )


EVENTS_PER_MESSAGE: Final = {"objects": 1, "arrays": 100}
_SHOWN: Final = (*STEPS, "age_ms")
_MINUTE_SECONDS: Final = 60.0
_PROBES_PER_MINUTE: Final = 60  # more quotas than probes do no harm
_WIDTHS: Final = (6, *[9] * (len(_SHOWN) + 3), 3)
_EMPTY_QUERY = """
import sys, time
from pipeline.stream.session import SparkStarter
from pipeline.settings.model import Settings
from pipeline.stream.query import read_usage_topic
servers, checkpoint, trigger_ms, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
settings = Settings()
with SparkStarter(settings) as starter:
    spark = starter.session()
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "240")
    source = read_usage_topic(spark, servers, settings.kafka.usage_topic, client_options={},
                              starting_offsets="latest", max_offsets_per_trigger=2_000_000)
    query = (source.writeStream.option("checkpointLocation", checkpoint)
             .trigger(processingTime=f"{trigger_ms} milliseconds").foreachBatch(lambda frame, number: None).start())
    time.sleep(seconds)
    for progress in query.recentProgress:
        print(progress.durationMs["triggerExecution"], flush=True)
    query.stop()
"""


@dataclass
class Minute:
    """What was measured in one minute of the job's life: of probes, from the produce call to the record."""

    batches: Sequence[Mapping[str, int]]
    latencies_ms: Sequence[float]
    cores: Mapping[str, float]


def main() -> None:
    arguments = options(
        __doc__,
        minutes=8,
        empty_minutes=3.0,
        messages=list(EVENTS_PER_MESSAGE),
        events_per_second=20_000,
        clients=10_000,
        trigger_ms=250,
    )
    for messages in arguments.messages:
        _measure(messages, arguments)


def _measure(messages: str, arguments: argparse.Namespace) -> None:
    print(
        f"\n{messages}: {arguments.events_per_second} ev/s, {EVENTS_PER_MESSAGE[messages]} per message, "
        f"{arguments.clients} clients, trigger {arguments.trigger_ms} ms",
        flush=True,
    )
    with staged(probe_quotas(arguments.minutes * _PROBES_PER_MINUTE)) as stage, ExitStack() as stack:
        load = stage.load(arguments.events_per_second, arguments.clients, EVENTS_PER_MESSAGE[messages])
        generator = stack.enter_context(load)
        minutes: list[Minute] = []
        log = BatchLog()
        with stage.job(arguments.trigger_ms, log.heard) as running:
            processes = {"generator": generator.pid, "broker": stage.broker.pid, "driver": running.pid}
            java = java_below(running.pid)
            processes |= {"JVM": java, "prober": os.getpid()}
            meter = CpuMeter({name: pid for name, pid in processes.items() if pid is not None})
            with closing(Prober(stage.servers)) as prober:
                for number in range(arguments.minutes):
                    before = sum(len(minute.batches) for minute in minutes)
                    latencies_ms = prober.probe(_MINUTE_SECONDS)
                    minutes.append(Minute(log.batches[before:], latencies_ms, meter.cores()))
                    _print_minute(number, minutes[-1])
            # Before the stall, which makes everything late.
            lateness_ms = read_table(f"{stage.root}/throttle_events", ["lateness_ms"])["lateness_ms"]
            told_of_stall = stall([running.pid, *([java] if java else [])], log.batches)
        # Last, so that its minutes leave no backlog to the job.
        empty_ms = _empty_query(stage.servers, stage.folder, arguments)
    _print_summary(minutes, empty_ms, lateness_ms.drop_null().to_pylist())
    print(told_of_stall, flush=True)


def _empty_query(bootstrap_servers: str, folder: Path, arguments: argparse.Namespace) -> list[float]:
    """Trigger times of the empty query in the last minute of its run."""
    seconds = arguments.empty_minutes * _MINUTE_SECONDS
    command = [sys.executable, "-c", _EMPTY_QUERY, bootstrap_servers, str(folder / "empty")]
    command += [str(arguments.trigger_ms), str(seconds)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=seconds + 180)
    per_minute = int(_MINUTE_SECONDS * 1_000 / arguments.trigger_ms)
    return [float(line) for line in done.stdout.split()][-per_minute:]


def _print_minute(number: int, minute: Minute) -> None:
    """One line; a heading before the first."""
    if number == 0:
        steps = (step.removesuffix("_ms") for step in _SHOWN)
        print(line(_WIDTHS, ["minute", *steps, "p50", "p99", "probes", ""]) + "cores", flush=True)
    medians = (_median([one[step] for one in minute.batches]) for step in _SHOWN)
    figures = *medians, *percentiles(minute.latencies_ms), len(minute.latencies_ms)
    cores = "  ".join(f"{name} {used:.2f}" for name, used in minute.cores.items())
    print(line(_WIDTHS, [number, *figures, ""]) + cores, flush=True)


def _print_summary(minutes: Sequence[Minute], empty_ms: list[float], lateness_ms: list[float]) -> None:
    empty_p50 = _median(empty_ms)
    print("(medians of a minute in ms; p50 and p99 are from the produce call to the record at a reader)")
    print(f"empty Spark query, trigger execution in its last minute: p50 {empty_p50:.0f} ms")
    steady = [latency for minute in minutes[2:] for latency in minute.latencies_ms]
    p50, p99 = percentiles(steady)
    print(f"from minute 2 on: p50 {p50:.0f} ms = {p50 / empty_p50:.1f} x, p99 {p99:.0f} ms = {p99 / empty_p50:.1f} x")
    if len(minutes) > 2:
        first, last = (percentiles(minutes[number].latencies_ms)[0] for number in (1, -1))
        print(f"minute 1 to minute {len(minutes) - 1}: {first / last:.2f} x")
    late_p50, late_p99 = percentiles(lateness_ms)
    print(f"due -> handed out by the wheel, while batches run: p50 {late_p50:.0f}, p99 {late_p99:.0f} ms", flush=True)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


if __name__ == "__main__":
    main()
