"""What a job costs with few and with many entities: batch time, memory, and a restart after kill -9.

Entities take turns to send, at a steady rate, until each has sent at least once; only then is measured. A thousand of
them are above their quota and held whenever they have sent. Then the job is killed with its JVM and started again at
once, under the same load.

    python -m bench.scale [--entities 10000 100000 1000000] [--events-per-second 20000] [--seconds 20]

    collect, append, decide, publish   medians of a micro-batch, ms
    batch                              the four together: median and longest
    driver, JVM                        the most memory that each has held, MB
    back                               from kill -9 until a micro-batch is done, s
    state                              of that: reading tables, rates and debts, s
"""

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.cpu import java_below
from bench.machine import machine_line
from bench.stage import child, job
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import create_tables, open_quota_table

STEPS: Final = ("collect", "append", "decide", "publish")
_EVENTS_PER_MESSAGE: Final = 100
_OFFENDERS: Final = 1_000  # entities with a bound that their first event is above
_PATIENCE_SECONDS: Final = 120.0
_STEP = re.compile(r"(collect|append|decide|publish)_ms=(\d+)")
_STATE = re.compile(r"tables and recovery ([\d.]+) s")


def main() -> None:
    """Measure each number of entities and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--events-per-second", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=20, help="that are measured, after all entities have sent")
    given = parser.parse_args()
    print(f"{machine_line()}\n{given.events_per_second} ev/s, arrays of {_EVENTS_PER_MESSAGE}, trigger 250 ms")
    heading = "".join(f"{name:>9}" for name in (*STEPS, "batch", "longest", "driver", "JVM", "back", "state"))
    print(f"{'entities':>9}{heading}", flush=True)
    for entities in given.entities:
        row = _measure(entities, given.events_per_second, given.seconds)
        print(f"{entities:>9}{''.join(f'{figure:>9.1f}' for figure in row)}", flush=True)


def _measure(entities: int, events_per_second: int, seconds: int) -> list[float]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        _prepare(folder, broker.bootstrap_servers)
        load = [sys.executable, "-m", "bench.load", broker.bootstrap_servers]
        stack.enter_context(child([*load, str(events_per_second), str(entities), str(_EVENTS_PER_MESSAGE)]))
        lines: list[str] = []
        with job(folder, broker.bootstrap_servers, 250, lines.append) as running:
            time.sleep(1.3 * entities / events_per_second + 15)
            del lines[:]
            time.sleep(seconds)
            batches = _batches(lines)
            java = java_below(running.pid)
            memory = [_peak_mb(pid) for pid in (running.pid, java) if pid is not None]
            for pid in (java, running.pid):
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        again: list[str] = []
        with job(folder, broker.bootstrap_servers, 250, again.append) as running:
            while not _batches(again) and time.monotonic() < killed_at + _PATIENCE_SECONDS:
                time.sleep(0.05)
            back = time.monotonic() - killed_at
        state = _STATE.search("".join(again))
    return [
        *[statistics.median(batch[step] for batch in batches) for step in STEPS],
        statistics.median(sum(batch.values()) for batch in batches),
        max(sum(batch.values()) for batch in batches),
        *memory,
        back,
        float(state[1]) if state else float("nan"),
    ]


def _prepare(folder: Path, bootstrap_servers: str) -> None:
    settings = Settings(tables=TablesSettings(root=str(folder / "tables")))
    with ClusterAccess(bootstrap_servers).admin() as admin:
        create_topics(admin, wanted_topics(settings))
    create_tables(settings.tables)
    rows = [{"user": "<default>", "client_id": "<default>", "producer_byte_rate": 1e9}]
    rows += [
        {"user": f"team-{n % 997}", "client_id": f"service-{n}", "producer_byte_rate": 1.0} for n in range(_OFFENDERS)
    ]
    open_quota_table(settings.tables).edit(lambda _: rows, local_audit("bench"))


def _batches(lines: Sequence[str]) -> list[dict[str, int]]:
    """The steps of each micro-batch that the log tells of."""
    told = [{name: int(value) for name, value in _STEP.findall(line)} for line in list(lines)]
    return [steps for steps in told if len(steps) == len(STEPS)]


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kibibytes) / 1024


if __name__ == "__main__":
    main()
