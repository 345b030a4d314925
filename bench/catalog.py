"""The job with its tables in Spark's own catalog, written by Delta-Spark: time of a micro-batch and latency by trigger.

    python -m bench.catalog [--triggers 1000 2000 3000 5000] [--seconds 45] [--no-report]

Broker, load, job and prober share the machine. The latency is from the produce call of a client's first event above its
quota until a `read_committed` reader has the throttle record. The trigger that docs/catalog-tables.md advises is the
shortest one that leaves room: a micro-batch takes less than it.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.machine import arguments, machine_line
from bench.pages import row, table, write_part
from bench.stage import BatchLog, Prober, environment, percentiles, probe_quotas, staged
from pipeline.jvm.jars import fetch

PAGE: Final = Path(__file__).parents[1] / "docs" / "catalog-tables.md"
_MARKS: Final = ("<!-- measured: triggers -->", "<!-- /measured: triggers -->")
_ROOT: Final = "catalog:spark_catalog.kquota"
_WARM_UP_SECONDS: Final = 30.0
_LOAD: Final = (2_000, 1_000)  # events a second, clients


def main() -> None:
    given = arguments(__doc__, triggers=[1_000, 2_000, 3_000, 5_000], seconds=45.0, no_report=False)
    fetch(lambda line: print(line, file=sys.stderr))
    machine = machine_line()
    rows = [table(["trigger ms", "batches", "batch ms, median", "worst", "probes", "p50 ms", "p99 ms"])]
    print("", *rows, sep="\n", flush=True)
    for trigger_ms in given.triggers:
        rows.append(_measured(trigger_ms, given.seconds))
        print(rows[-1], flush=True)
    about = f"Each was measured for {given.seconds:g} s, with {_LOAD[0]} events a second of {_LOAD[1]} clients."
    if not given.no_report:
        write_part(PAGE, *_MARKS, "\n".join([machine, "", *rows, "", about]))


def _measured(trigger_ms: int, seconds: float) -> str:
    log, quotas = BatchLog(), probe_quotas(2 * int(seconds + _WARM_UP_SECONDS))
    with tempfile.TemporaryDirectory() as folder:
        variables = {"KQUOTA_TABLES__LOCATION": f"{folder}/tables", "KQUOTA_TABLES__WRITER": "delta-spark"}
        with (
            environment(variables),
            staged(quotas, _ROOT) as stage,
            stage.load(*_LOAD),
            stage.job(trigger_ms, log.heard),
            Prober(stage.servers) as prober,
        ):
            prober.probe(_WARM_UP_SECONDS)
            before = len(log.batches)
            latencies_ms = prober.probe(seconds)
    batches_ms = [batch["batch_ms"] for batch in log.batches[before:]]  # without Spark's own work around them
    if not batches_ms or len(latencies_ms) < 2:
        sys.exit(f"the job decided {len(batches_ms)} batches at a trigger of {trigger_ms} ms")
    p50, p99 = percentiles(latencies_ms)
    figures = len(batches_ms), statistics.median(batches_ms), max(batches_ms), len(latencies_ms), p50, p99
    return row([f"{trigger_ms}", *(f"{figure:.0f}" for figure in figures)])


if __name__ == "__main__":
    main()
