"""The job on a standalone Spark cluster of two workers: `python -m tests.spark_cluster [--kills 3] [--report FILE]`.

First the same usage goes through a local job and through one on the cluster. Then a worker is killed under load, again
and again. Prints what was compared, and ends with 1 if anything was lost, written twice or different.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.machine import machine_line
from bench.pages import MEASURED, table, write_part
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from tests.faults.verdict import KINDS, Verdict
from tests.spark_cluster.rounds import Comparison, Killed, play_kills, play_same
from tests.spark_cluster.standalone import standalone_cluster


def main() -> int:
    """Play both and print the table. Returns 1 on a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark_cluster", description="The job on a Spark cluster.")
    parser.add_argument("--kills", type=int, default=3, help="how often a worker is killed, in a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="a Markdown file whose measured table is replaced")
    given = parser.parse_args()
    fetch()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with EmbeddedBroker(folder / "broker") as broker, standalone_cluster(folder / "spark") as cluster:
            same = play_same(cluster, folder, broker.bootstrap_servers, given.seed)
            killed = play_kills(cluster, folder, broker.bootstrap_servers, given.seed, given.kills)
    verdicts = (*same.verdicts, killed.verdict)
    text = f"{machine_line()}\n\n{_table(same, killed, verdicts)}"
    differences = [f"    {difference}" for verdict in verdicts for difference in verdict.told()]
    print(text, *differences, sep="\n")  # noqa: T201
    if given.report:
        write_part(given.report, *MEASURED, text)
    return int(any(same.differing.values()) or any(verdict.differences for verdict in verdicts))


def _table(same: Comparison, killed: Killed, verdicts: Sequence[Verdict]) -> str:
    kills = f"{len(killed.recovery_seconds)} workers killed −9 in a row under load"
    of_two = [str(sum(counts.values())) for counts in (same.rows, same.differing)]
    rows = [["rows of both jobs, against each other", of_two[0], "0", "0", of_two[1]]]
    for name, verdict in zip(("the local job", "the job on the cluster", kills), verdicts, strict=True):
        counts = (verdict.compared.total(), *(verdict.count(kind) for kind in KINDS[:3]))
        rows.append([f"verifier: {name}", *map(str, counts)])
    recovered = ", ".join(f"{seconds:.1f}" for seconds in killed.recovery_seconds)
    after = f"Seconds from a kill to the end of the first micro-batch that began after it: {recovered}."
    return f"{table(['what', 'compared', 'lost', 'duplicated', 'different'], rows)}\n\n{after}"


if __name__ == "__main__":
    sys.exit(main())
