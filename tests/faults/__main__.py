"""All failpoints, one after the other: kill, restart, verify.

    python -m tests.faults [--points NAME,…] [--rounds N] [--keep FOLDER] [--report FILE]

Each round has a broker, topics, tables and a job of its own. The wall clocks of job, broker and generator are set
forward and back, before the kill and after it; without a C compiler (cc) they are not. Prints one line per round and a
table at the end. Ends with 1 if anything was lost, written twice or different.
"""

import sys
import tempfile
import time
from pathlib import Path

from bench.machine import arguments, machine_line
from bench.pages import MEASURED, write_part
from bench.pages import table as table_of
from pipeline.failpoints import FAILPOINTS
from pipeline.jvm.jars import fetch
from tests.faults.rounds import STEPS, Outcome, play_apart
from tests.faults.stepped_clock import COMPILER
from tests.faults.verdict import KINDS


def main() -> int:
    """Run the rounds and print the table. Returns 1 if a round failed."""
    given = arguments(__doc__, points=",".join(FAILPOINTS), rounds=1, keep="", report="")
    points = given.points.split(",")
    fetch()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.keep or temporary)
        for number in range(given.rounds):
            for place_number, point in enumerate(points):
                began = time.monotonic()
                steps = STEPS[(number + place_number) % len(STEPS)] if COMPILER else (0, 0)
                outcome = play_apart(point, folder / f"{point}-{number}", number + 1, steps)
                outcomes.append(outcome)
                print(f"{_line(outcome)}  steps {steps}  ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201
                for difference in outcome.verdict.told():
                    print(f"    {difference}", flush=True)  # noqa: T201
    stepped = "All wall clocks were set twice a round: while the job ran, and while it was down."
    sums = ", ".join(f"{sum(outcome.verdict.count(kind) for outcome in outcomes)} {kind}" for kind in KINDS[:3])
    head = f"{machine_line()}. {stepped if COMPILER else 'Without a C compiler no clock was set.'}"
    head += f" {len(outcomes)} kills: {sums}."
    table = _table(outcomes)
    print(f"\n{head}\n\n{table}")  # noqa: T201
    if given.report:
        write_part(Path(given.report), *MEASURED, f"{head}\n\n{table}")
    return int(any(outcome.verdict.differences for outcome in outcomes))


def _line(outcome: Outcome) -> str:
    verdict = outcome.verdict
    counts = "  ".join(f"{kind} {verdict.count(kind)}" for kind in KINDS)
    told = f"{'DIFFERENT' if verdict.differences else 'equal':<10} compared {verdict.compared.total():>6}"
    return f"{outcome.point:<22} {told}  {counts}  recovery {outcome.recovery_seconds:.1f} s"


def _table(outcomes: list[Outcome]) -> str:
    rows = []
    for point in dict.fromkeys(outcome.point for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.point == point]
        compared = sum(outcome.verdict.compared.total() for outcome in own)
        slowest = max(outcome.recovery_seconds for outcome in own)
        rows.append([f"`{point}`", str(compared), f"{slowest:.1f}"])
    return table_of(["failpoint", "compared", "recovery s, worst"], rows)


if __name__ == "__main__":
    sys.exit(main())
