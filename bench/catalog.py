"""The job with its tables in Spark's own catalog, written by Delta-Spark: time of a micro-batch and latency by trigger.

    python -m bench.catalog [--triggers 1000 2000 3000 5000] [--seconds 45] [--no-report]

Broker, load, job and prober share the machine. The latency is from the produce call of a client's first event above its
quota until a `read_committed` reader has the throttle record. The trigger that docs/catalog-tables.md advises is the
shortest one that leaves room: a micro-batch takes less than it.
"""

import re
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.machine import arguments, machine_line
from bench.pages import write_part
from bench.stage import Prober, environment, job, load, percentiles, prepare, probe_quotas
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from pipeline.settings.loading import load_settings

PAGE: Final = Path(__file__).parents[1] / "docs" / "catalog-tables.md"
_MARKS: Final = ("<!-- measured: triggers -->", "<!-- /measured: triggers -->")
_ROOT: Final = "catalog:spark_catalog.kquota"
_WARM_UP_SECONDS: Final = 30.0
_LOAD: Final = (2_000, 1_000)  # events a second, clients
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
    given = arguments(__doc__, triggers=[1_000, 2_000, 3_000, 5_000], seconds=45.0, no_report=False)
    fetch(lambda line: print(line, file=sys.stderr))
    machine = machine_line()
    rows = ["| trigger ms | batches | batch ms, median | worst | probes | p50 ms | p99 ms |", "|" + " --- |" * 7]
    print("", *rows, sep="\n", flush=True)
    for trigger_ms in given.triggers:
        with tempfile.TemporaryDirectory() as temporary:
            rows.append(_row(_measured(Path(temporary), trigger_ms, given.seconds)))
        print(rows[-1], flush=True)
    about = f"Each was measured for {given.seconds:g} s, with {_LOAD[0]} events a second of {_LOAD[1]} clients."
    if not given.no_report:
        write_part(PAGE, *_MARKS, "\n".join([machine, "", *rows, "", about]))


def _measured(folder: Path, trigger_ms: int, seconds: float) -> Measured:
    measured = Measured(trigger_ms)
    variables = {"KQUOTA_TABLES__LOCATION": str(folder / "tables"), "KQUOTA_TABLES__WRITER": "delta-spark"}
    with environment(variables), EmbeddedBroker(folder / "broker") as broker:
        quotas = probe_quotas(2 * int(seconds + _WARM_UP_SECONDS))
        prepare(load_settings(flags={"tables": {"root": _ROOT}}), broker.bootstrap_servers, quotas)
        with (
            load(broker.bootstrap_servers, *_LOAD),
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
    p50, p99 = percentiles(latencies_ms)
    batch = f"{len(batches_ms)} | {statistics.median(batches_ms):.0f} | {max(batches_ms)}"
    return f"| {measured.trigger_ms} | {batch} | {len(latencies_ms)} | {p50:.0f} | {p99:.0f} |"


if __name__ == "__main__":
    main()
