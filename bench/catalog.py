"""The job with its tables in Spark's own catalog, written by Delta-Spark: time of a micro-batch and latency by trigger.

    python -m bench.catalog [--triggers 1000 2000 3000 5000] [--seconds 45]

Broker, load, job and prober share the machine. The latency is from the produce call of a client's first event above its
quota until a `read_committed` reader has the throttle record. The trigger that docs/catalog-tables.md advises is the
shortest one that leaves room: a micro-batch takes less than it.
"""

import os
import sys
import tempfile
from statistics import median
from typing import Final
from unittest.mock import patch

from bench.machine import arguments
from bench.pages import percentiles, row, table
from bench.stage import PROBED_LOAD, probing
from pipeline.jvm.jars import fetch

_ROOT: Final = "catalog:spark_catalog.kquota"
_WARM_UP_SECONDS: Final = 30.0


def main() -> None:
    given = arguments(__doc__, triggers=[1_000, 2_000, 3_000, 5_000], seconds=45.0)
    fetch(lambda line: print(line, file=sys.stderr))
    print("", table(["trigger ms", "batches", "batch ms, median", "worst", "probes", "p50 ms", "p99 ms"]), sep="\n")
    for trigger_ms in given.triggers:
        print(_measured(trigger_ms, given.seconds), flush=True)
    events_per_second, clients = PROBED_LOAD
    print(
        f"\nEach was measured for {given.seconds:g} s, with {events_per_second} events a second of {clients} clients."
    )


def _measured(trigger_ms: int, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        variables = {"KQUOTA_TABLES__LOCATION": f"{folder}/tables", "KQUOTA_TABLES__WRITER": "delta-spark"}
        with patch.dict(os.environ, variables), probing(_ROOT, trigger_ms, seconds, _WARM_UP_SECONDS) as (log, prober):
            before = len(log.batches)
            latencies_ms = prober.probe(seconds)
    batches_ms = [batch["batch_ms"] for batch in log.batches[before:]]  # without Spark's own work around them
    if not batches_ms:
        sys.exit(f"the job decided no batch at a trigger of {trigger_ms} ms")
    batch_ms = len(batches_ms), median(batches_ms), max(batches_ms)
    return row([trigger_ms, *batch_ms, len(latencies_ms), *percentiles(latencies_ms)])


if __name__ == "__main__":
    main()
