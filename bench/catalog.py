"""The job with its tables in Spark's own catalog, written by Delta-Spark: time of a micro-batch and latency by trigger.

    python -m bench.catalog [--triggers 1000 2000 3000 5000] [--seconds 45]

Broker, load, job and prober share the machine. The latency is from the produce call of a client's first event above its
quota until a `read_committed` reader has the throttle record. The trigger that docs/catalog-tables.md advises is the
shortest one that leaves room: a micro-batch takes less than it.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.machine import machine_line
from bench.pages import write_part
from bench.probe import prepare
from bench.stage import Prober, child, job
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from pipeline.settings.loading import load_settings

PAGE: Final = Path(__file__).parents[1] / "docs" / "catalog-tables.md"
_MARKS: Final = ("<!-- measured: triggers -->", "<!-- /measured: triggers -->")
_ROOT: Final = "catalog:spark_catalog.kquota"
_WARM_UP_SECONDS: Final = 30.0
_LOAD: Final = ("2000", "1000", "1")  # events a second, clients, events a message
_STEPS: Final = ("collect_ms", "append_ms", "decide_ms", "publish_ms")
_FACT: Final = re.compile(rf"\b({'|'.join(_STEPS)})=(\d+)")


@dataclass
class Measured:
    """One job under steady load.

    Attributes:
        trigger_ms: Of its query.
        batches_ms: How long each micro-batch took, without Spark's own work around it.
        latencies_ms: Of the probes.
    """

    trigger_ms: int
    batches_ms: list[int] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    def heard(self, line: str) -> None:
        """Take a line of the job's log."""
        steps = dict(_FACT.findall(line))
        if len(steps) == len(_STEPS):
            self.batches_ms.append(sum(map(int, steps.values())))


def main() -> None:
    """Measure each trigger, print, and write the page."""
    given = _arguments()
    fetch(lambda line: print(line, file=sys.stderr))
    machine = machine_line()
    rows = ["| trigger ms | batches | batch ms, median | worst | probes | p50 ms | p99 ms |", "|" + " --- |" * 7]
    print(machine, "", *rows, sep="\n", flush=True)
    for trigger_ms in given.triggers:
        with tempfile.TemporaryDirectory() as temporary:
            rows.append(_row(_measured(Path(temporary), trigger_ms, given.seconds)))
        print(rows[-1], flush=True)
    load = f"Each was measured for {given.seconds:g} s, with {_LOAD[0]} events a second of {_LOAD[1]} clients."
    if not given.no_report:
        write_part(PAGE, *_MARKS, "\n".join([machine, "", *rows, "", load]))


def _measured(folder: Path, trigger_ms: int, seconds: float) -> Measured:
    measured = Measured(trigger_ms)
    with _environment(folder / "tables"), EmbeddedBroker(folder / "broker") as broker:
        probes = 2 * int(seconds + _WARM_UP_SECONDS)
        prepare(load_settings(flags={"tables": {"root": _ROOT}}), broker.bootstrap_servers, probes)
        with (
            child([sys.executable, "-m", "bench.load", broker.bootstrap_servers, *_LOAD]),
            job(folder, broker.bootstrap_servers, trigger_ms, measured.heard, _ROOT),
            Prober(broker.bootstrap_servers) as prober,
        ):
            prober.probe(_WARM_UP_SECONDS)
            measured.batches_ms.clear()
            measured.latencies_ms = prober.probe(seconds)
    return measured


def _row(measured: Measured) -> str:
    batches_ms, latencies_ms = measured.batches_ms, measured.latencies_ms
    if not batches_ms or len(latencies_ms) < 2:
        sys.exit(f"the job must decide batches at a trigger of {measured.trigger_ms} ms; got {len(batches_ms)}")
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    batch = f"{len(batches_ms)} | {statistics.median(batches_ms):.0f} | {max(batches_ms)}"
    return f"| {measured.trigger_ms} | {batch} | {len(latencies_ms)} | {cuts[49]:.0f} | {cuts[98]:.0f} |"


@contextmanager
def _environment(tables: Path) -> Iterator[None]:
    """The settings that the job is not told by options."""
    before = dict(os.environ)
    os.environ.update({"KQUOTA_TABLES__LOCATION": str(tables), "KQUOTA_TABLES__WRITER": "delta-spark"})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.catalog", description="Tables in Spark's own catalog.")
    parser.add_argument("--triggers", type=int, nargs="+", default=[1_000, 2_000, 3_000, 5_000], help="in ms")
    parser.add_argument("--seconds", type=float, default=45, help="that each trigger is measured")
    parser.add_argument("--no-report", action="store_true", help="print only, and leave the page as it is")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
