"""`kquota size`: what a job needs, from measured figures."""

import sys
from math import ceil
from typing import Annotated

import typer

from pipeline.cli.options import Output


def size(
    entities: Annotated[int, typer.Option(min=1, help="Clients that send usage: distinct <user, client-id>.")],
    events: Annotated[int, typer.Option(min=0, help="Usage events per second, of all together.")] = 20_000,
    output: Output = "table",
) -> None:
    """Print how many jobs are needed; the memory, CPU and trigger of each; and how long a restart takes.

    The figures come from a benchmark on one machine; they are lines between its points. Yours may be quicker or slower.
    """
    from pipeline.cli.output import is_table, print_rows
    from pipeline.sizing.measured import read_measured
    from pipeline.sizing.size import shards_for, size_of

    measured = read_measured()
    shards = shards_for(entities, events, measured)
    found = size_of(ceil(entities / (shards or 1)), events, measured)
    rows = [
        {"what": "jobs (setting shard)", "needs": _jobs(shards)},
        {"what": "micro-batch", "needs": f"{found.batch_ms:.0f} ms"},
        {"what": "trigger (stream.trigger_ms)", "needs": f"{found.trigger_ms} ms or more"},
        {"what": "memory of the driver", "needs": f"{found.driver_mb:.0f} MB"},
        {"what": "memory of Spark's JVM", "needs": f"{found.jvm_mb:.0f} MB"},
        {"what": "cores in use", "needs": f"{found.cores:.1f}"},
        {"what": "restart after kill -9", "needs": f"{found.back_s:.0f} s"},
    ]
    print_rows(rows, output)
    if is_table(output):
        beyond = "" if found.is_measured else "; this is beyond what was measured"
        sys.stderr.write(f"measured on {measured.machine}, arrays of 100 events{beyond}\n")


def _jobs(shards: int | None) -> str:
    if shards is None:
        return "more than shards can give: each reads all events"
    return "1" if shards == 1 else f"{shards}, each for its share of the users; the figures are those of one"
