"""How long a command takes from its start to its end: `--help`, and the four that only read the tables.

Each runs as a process of its own, on tables of a job that made two hundred batches, or on yours.

    python -m bench.cli [--rounds 9] [--tables FOLDER]

The targets are 0.3 s for `--help` and 0.6 s for the others, on a machine that does nothing else.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.machine import machine_line
from pipeline.tables.quotas.edit import QuotaChange
from quota.entity import QUOTA_TYPES
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.event_table import EventTable
from tests.quota.factories import usage_row

_COMMANDS: Final = (
    (0.3, "--help"),
    (0.6, "throttles list"),
    (0.6, "throttles explain alice etl"),
    (0.6, "quotas describe"),
    (0.6, "status"),
)
_NOBODY_IS_THROTTLED: Final = 3
# A file each, as many as a job has written when its upkeep merges them.
_BATCHES: Final = 200
_THROTTLES: Final = 60


def main() -> None:
    """Make the tables, run the commands in turn, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tables", help="a folder of tables with a decision on alice/etl")
    arguments = parser.parse_args()
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.tables or _made(Path(folder))
        seconds: dict[str, list[float]] = {command: [] for _, command in _COMMANDS}
        # In turn, so that a busy moment of the machine meets all of them.
        for _ in range(arguments.rounds):
            for command, times in seconds.items():
                times.append(_timed(command, root))
    print(f"{f'seconds, of {arguments.rounds} runs':<32}{'least':>8}{'median':>8}{'most':>8}{'target':>8}")
    for target, command in _COMMANDS:
        times = seconds[command]
        figures = (min(times), statistics.median(times), max(times), target)
        print(f"kquota {command:<25}" + "".join(f"{figure:>8.2f}" for figure in figures))


def _made(root: Path) -> str:
    """Tables of a job with one client over its quota, which is throttled for the next hour."""
    changes = [
        QuotaChange("alice", "etl", {QUOTA_TYPES[0]: 1_000.0}),
        QuotaChange("<default>", "", {QUOTA_TYPES[0]: 1e6}),
    ]
    job = KeptJob(str(root), *changes)
    for _ in range(_BATCHES):
        job.clock.advance(500)
        used = [("alice", "etl", 50_000), ("bob", "app", 500)]
        rows = [
            usage_row(job.clock.wall_ms, user=user, client_id=client_id, produced_bytes=size)
            for user, client_id, size in used
        ]
        decided = job.batch(rows)
        job.flush()
    events = EventTable(root, epoch=2)  # that of the job is 1
    now_ms = time.time_ns() // 1_000_000
    about = {"user": "alice", "quota_type": QUOTA_TYPES[0], "decision_id": decided[0]["decision_id"]}
    for number in range(_THROTTLES):
        events.write(("etl", "throttle", now_ms + number, 3_600_000), **about, observed=5e3, bound=1e3)
    return str(root)


def _timed(command: str, root: str) -> float:
    tables = [] if command == "--help" else ["--tables", root]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli.main", *command.split(), *tables],
        check=False,
        capture_output=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    seconds = time.perf_counter() - began
    if done.returncode not in {0, _NOBODY_IS_THROTTLED}:
        raise SystemExit(done.stderr.decode())
    return seconds


if __name__ == "__main__":
    main()
