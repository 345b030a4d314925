"""What a job costs with few and with many entities: batch time, memory, and a restart after kill -9.

Entities take turns to send, at a steady rate, until each has sent at least once; only then is measured. A thousand of
them are above their quota and held whenever they have sent. Then the job is killed with its JVM and started again at
once, under the same load.

    python -m bench.scale [--loads 10000:20000 …] [--seconds 45] [--write]

A load is a number of entities, and how many events all of them send per second. With `--write` the figures become those
of `kquota size` (`pipeline/sizing/measured.json`).

    collect, append, decide, publish   medians of a micro-batch, ms
    batch, longest                     the four together: median and longest
    driver, JVM                        the most memory that each has held, MB
    cores                              CPU of both per second
    back                               from kill -9 until a micro-batch is done, s
    state                              of that: reading tables, rates and debts, s
    roll-up                            CPU of rolling up a minute of usage, by second and by minute, s
    view, server                       beside the job: the dashboard's view of a client, the slowest but one of 20, ms;
                                       the most memory of its server, MB
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

from bench.machine import CpuMeter, java_below, machine_line
from bench.stage import child, create_topics_and_tables, dashboard, job
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.address import table_uri
from pipeline.tables.audit import local_audit
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.from_settings import open_quota_table
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.reader import DeltaRsReader
from pipeline.tables.rollups.usage_by_minute import UsageByMinute
from pipeline.tables.rollups.usage_by_second import UsageBySecond
from tests.waiting import wait_until

_REQUESTS: Final = 20
_MINUTE_MS: Final = 60_000


def roll_up_seconds(root: str) -> float:
    """CPU seconds that rolling up a minute of the usage under a root takes, by second and by minute together.

    It is done once more, into tables of its own. What of the usage is complete enough to be rolled up is rolled up.
    """
    names = ("usage_by_second", "usage_by_minute")
    with tempfile.TemporaryDirectory() as folder:
        create_missing(folder, [TABLES[name] for name in names])
        seconds, minutes = (_writer(folder, name) for name in names)
        usage = DeltaRsReader(table_uri(root, "usage"))
        begin_ms = usage.oldest_value("sample_start_ms") or 0
        by_second = UsageBySecond(usage, seconds, "bench", TablesSettings().seconds_retention_ms)
        return sum(
            _cpu_seconds_a_minute(roll_up, begin_ms) for roll_up in (by_second, UsageByMinute(usage, minutes, "bench"))
        )


def _writer(root: str, name: str) -> DeltaRsWriter:
    writer = DeltaRsWriter(table_uri(root, name), "bench")
    writer.raise_epoch(1)
    return writer


def _cpu_seconds_a_minute(roll_up: UsageBySecond | UsageByMinute, begin_ms: int) -> float:
    began = time.process_time()
    roll_up.step()
    spent = time.process_time() - began
    rolled_up_ms = roll_up.written_until_ms - begin_ms
    return spent * _MINUTE_MS / rolled_up_ms if rolled_up_ms > 0 else float("nan")


def view_of_clients(root: str, entities: int) -> tuple[float, float]:
    """The dashboard's view of a client, over 15 minutes, one client after another; the job may go on meanwhile.

    Returns:
        ms of the slowest but one of twenty, and the most memory that the server has held, in MB.
    """
    chosen = random.Random(1)
    times_ms = []
    with dashboard(root) as (address, pid):
        wait_until(lambda: _is_ready(address), "the dashboard to have read the tables")
        for _ in range(_REQUESTS):
            number = chosen.randrange(entities)
            path = f"api/v1/client?user=team-{number % 997}&client_id=service-{number}&since=15m"
            began = time.perf_counter()
            with urllib.request.urlopen(f"{address}{path}", timeout=60) as answer:  # noqa: S310 - our server
                answer.read()
            times_ms.append((time.perf_counter() - began) * 1_000)
        return sorted(times_ms)[-2], peak_mb(pid)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}readyz", timeout=60) as answer:  # noqa: S310 - our server
            return bool(answer.status == 200)
    except HTTPError:
        return False


def peak_mb(pid: int) -> float:
    """The most memory that a process has held."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kibibytes) / 1024


STEPS: Final = ("collect", "append", "decide", "publish")
LOADS: Final = ("10000:20000", "100000:20000", "1000000:20000", "100000:100000")
MEASURED: Final = Path(__file__).parents[1] / "pipeline" / "sizing" / "measured.json"
_EVENTS_PER_MESSAGE: Final = 100
_OFFENDERS: Final = 1_000  # entities with a bound that their first event is above
_PATIENCE_SECONDS: Final = 120.0
_STEP = re.compile(r"(collect|append|decide|publish)_ms=(\d+)")
_STATE = re.compile(r"tables and recovery ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured under one load; the names of its figures are those in the table above."""

    entities: int
    events_per_second: int
    steps_ms: Mapping[str, float]
    batch_ms: float
    longest_batch_ms: float
    driver_mb: float
    jvm_mb: float
    cores: float
    back_s: float
    state_s: float
    roll_up_s: float
    view_ms: float
    server_mb: float


def main() -> None:
    """Measure each load and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", nargs="+", default=LOADS, metavar="ENTITIES:EVENTS_PER_SECOND")
    parser.add_argument("--seconds", type=int, default=45, help="that are measured, after all entities have sent")
    parser.add_argument("--write", action="store_true", help="take the figures for `kquota size`")
    given = parser.parse_args()
    print(f"{machine_line()}\narrays of {_EVENTS_PER_MESSAGE} events, trigger 250 ms")
    names = (*STEPS, "batch", "longest", "driver", "JVM", "cores", "back", "state", "roll-up", "view", "server")
    print(f"{'entities':>9}{'ev/s':>8}{''.join(f'{name:>9}' for name in names)}", flush=True)
    points = []
    for load in given.loads:
        entities, events_per_second = map(int, load.split(":"))
        point = _measure(entities, events_per_second, given.seconds)
        points.append(point)
        figures = [*point.steps_ms.values(), point.batch_ms, point.longest_batch_ms, point.driver_mb, point.jvm_mb]
        figures += [point.cores, point.back_s, point.state_s, point.roll_up_s, point.view_ms, point.server_mb]
        print(f"{entities:>9}{events_per_second:>8}{''.join(f'{one:>9.1f}' for one in figures)}", flush=True)
    if given.write:
        measured = {"machine": machine_line(), "points": [asdict(point) for point in points]}
        MEASURED.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


def _measure(entities: int, events_per_second: int, seconds: int) -> Point:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        _prepare(folder, broker.bootstrap_servers)
        load = [sys.executable, "-m", "bench.load", broker.bootstrap_servers]
        stack.enter_context(child([*load, str(events_per_second), str(entities), str(_EVENTS_PER_MESSAGE)]))
        lines: list[str] = []
        with job(folder, broker.bootstrap_servers, 250, lines.append) as running:
            java = java_below(running.pid) or running.pid
            time.sleep(1.3 * entities / events_per_second + 15)
            meter = CpuMeter({"driver": running.pid, "JVM": java})
            del lines[:]
            time.sleep(seconds)
            cores, batches = sum(meter.cores().values()), _batches(lines)
            memory = [peak_mb(pid) for pid in (running.pid, java)]
            for pid in (java, running.pid):
                os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        again: list[str] = []
        with job(folder, broker.bootstrap_servers, 250, again.append) as running:
            while not _batches(again) and time.monotonic() < killed_at + _PATIENCE_SECONDS:
                time.sleep(0.05)
            back_s = time.monotonic() - killed_at
            view_ms, server_mb = view_of_clients(str(folder / "tables"), entities)
        roll_up_s = roll_up_seconds(str(folder / "tables"))
    state = _STATE.search("".join(again))
    whole_ms = [sum(batch.values()) for batch in batches]
    return Point(
        entities=entities,
        events_per_second=events_per_second,
        steps_ms={step: statistics.median(batch[step] for batch in batches) for step in STEPS},
        batch_ms=statistics.median(whole_ms),
        longest_batch_ms=max(whole_ms),
        driver_mb=round(memory[0]),
        jvm_mb=round(memory[1]),
        cores=round(cores, 2),
        back_s=round(back_s, 1),
        state_s=float(state[1]) if state else float("nan"),
        roll_up_s=round(roll_up_s, 1),
        view_ms=round(view_ms),
        server_mb=round(server_mb),
    )


def _prepare(folder: Path, bootstrap_servers: str) -> None:
    settings = Settings(tables=TablesSettings(root=str(folder / "tables")))
    create_topics_and_tables(settings, bootstrap_servers)
    rows = [{"user": "<default>", "client_id": "<default>", "producer_byte_rate": 1e9}]
    rows += [
        {"user": f"team-{n % 997}", "client_id": f"service-{n}", "producer_byte_rate": 1.0} for n in range(_OFFENDERS)
    ]
    open_quota_table(settings.tables).edit(lambda _: rows, local_audit("bench"))


def _batches(lines: Sequence[str]) -> list[dict[str, int]]:
    """The steps of each micro-batch that the log tells of."""
    told = [{name: int(value) for name, value in _STEP.findall(line)} for line in list(lines)]
    return [steps for steps in told if len(steps) == len(STEPS)]


if __name__ == "__main__":
    main()
