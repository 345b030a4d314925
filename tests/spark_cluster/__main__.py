"""The job on a standalone Spark cluster of two workers: `python -m tests.spark_cluster [--kills 3] [--report FILE]`.

First the same usage goes through a local job and through one on the cluster. Then a worker is killed under load, again
and again. Prints what was compared, and ends with 1 if anything was lost, written twice or different.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from bench.machine import machine_line
from bench.pages import MEASURED, write_part
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
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
    text = f"{machine_line()}\n\n{_table(same, killed)}\n"
    print(text)  # noqa: T201
    for verdict in (*same.verdicts, killed.verdict):
        for difference in verdict["differences"]:
            print(f"    {difference}")  # noqa: T201
    for line in killed.foreign:
        print(line)  # noqa: T201
    if given.report:
        write_part(given.report, *MEASURED, text.rstrip())
    return int(any(same.differing.values()) or not all(v["equal"] for v in (*same.verdicts, killed.verdict)))


def _table(same: Comparison, killed: Killed) -> str:
    columns = "| what | compared | lost | duplicated | different |"
    of_two = sum(same.rows.values())
    rows = [f"| rows of both jobs, against each other | {of_two} | 0 | 0 | {sum(same.differing.values())} |"]
    names = ("verifier: the local job", "verifier: the job on the cluster", f"verifier: {_kills(killed)}")
    for name, verdict in zip(names, (*same.verdicts, killed.verdict), strict=True):
        sums = " | ".join(str(verdict[kind]) for kind in ("lost", "duplicated", "different"))
        rows.append(f"| {name} | {sum(verdict['compared'].values())} | {sums} |")
    recovered = ", ".join(f"{seconds:.1f}" for seconds in killed.recovery_seconds)
    local, there = same.batch_seconds
    return "\n".join(
        [
            columns,
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            f"Seconds from a kill to the end of the first micro-batch that began after it: {recovered}. Reading one "
            f"micro-batch of 150 messages, median: {local:.2f} s locally, {there:.2f} s on the cluster.",
        ]
    )


def _kills(killed: Killed) -> str:
    return f"{len(killed.recovery_seconds)} workers killed −9 in a row under load"


if __name__ == "__main__":
    sys.exit(main())
