"""What a job costs with few and with many entities: batch time, memory, and a restart after kill -9.

Entities take turns to send, at a steady rate, until each has sent at least once; only then is measured. A thousand of
them are above their quota and held whenever they have sent. Then the job is killed with its JVM and started again at
once, under the same load.

    python -m bench.scale [--loads 10000:20000 …] [--seconds 45]

A load is a number of entities, and how many events all of them send per second.

    collect, append, decide, publish   medians of a micro-batch, ms
    batch, longest                     the four together: median and longest
    driver, JVM                        the most memory that each has held, MB
    cores                              CPU of both per second
    back                               from kill -9 until a micro-batch is done, s
    state                              of that: reading tables, rates and debts, s
    roll-up                            CPU of rolling up a minute of usage, by second and by minute, s
    view, server                       beside the job: the dashboard's view of a client, the slowest but one of 20, ms;
                                       the most memory of its server, MB; with up to 100 000 entities
"""

import os
import random
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Final

from bench.machine import CpuMeter, arguments, cpu_spent, java_below, memory_of
from bench.pages import line
from bench.stage import STEPS, BatchLog, answer_ms, await_ready, bound, dashboard, staged, writer_of
from pipeline.settings.model import TablesSettings
from pipeline.tables.address import table_uri
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.reading import DeltaRsReader
from pipeline.tables.usage_roll_ups import UsageByMinute, UsageBySecond

LOADS: Final = ("10000:20000", "100000:20000", "1000000:20000", "100000:100000")
_EVENTS_PER_MESSAGE: Final = 100
_OFFENDERS: Final = 1_000  # entities with a bound that their first event is above
_PATIENCE_SECONDS: Final = 120.0
_STATE = re.compile(r"tables and recovery ([\d.]+) s")
_REQUESTS: Final = 20
_MOST_OF_PAGE: Final = 100_000
_MINUTE_MS: Final = 60_000


def roll_up_seconds(root: str) -> float:
    """CPU seconds that rolling up a minute of the usage under a root takes, by second and by minute together.

    It is done once more, into tables of its own. What of the usage is complete enough to be rolled up is rolled up.
    """
    names = ("usage_by_second", "usage_by_minute")
    with tempfile.TemporaryDirectory() as folder:
        create_missing(folder, [TABLES[name] for name in names])
        seconds, minutes = (writer_of(folder, name) for name in names)
        usage = DeltaRsReader(table_uri(root, "usage"))
        begin_ms = usage.oldest_value("sample_start_ms") or 0
        by_second = UsageBySecond(usage, seconds, "bench", TablesSettings().seconds_retention_ms)
        return sum(
            _cpu_seconds_a_minute(roll_up, begin_ms) for roll_up in (by_second, UsageByMinute(usage, minutes, "bench"))
        )


def _cpu_seconds_a_minute(roll_up: UsageBySecond | UsageByMinute, begin_ms: int) -> float:
    spent = cpu_spent(roll_up.step)
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
        await_ready(address)
        for _ in range(_REQUESTS):
            number = chosen.randrange(entities)
            path = f"api/v1/client?user=team-{number % 997}&client_id=service-{number}&range=15m"
            times_ms.append(answer_ms(f"{address}{path}")[0])
        return sorted(times_ms)[-2], memory_of(pid)["VmHWM"]


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
    given = arguments(__doc__, loads=list(LOADS), seconds=45)
    print(f"arrays of {_EVENTS_PER_MESSAGE} events, trigger 250 ms")
    steps = [step.removesuffix("_ms") for step in STEPS]
    names = ["batch", "longest", "driver", "JVM", "cores", "back", "state", "roll-up", "view", "server"]
    widths = [9, 8, *[9] * len(steps + names)]
    print(line(widths, ["entities", "ev/s", *steps, *names]), flush=True)
    for load in given.loads:
        entities, events_per_second = map(int, load.split(":"))
        point = _measure(entities, events_per_second, given.seconds)
        figures = [*point.steps_ms.values(), *astuple(point)[3:]]
        print(line(widths, [str(entities), str(events_per_second), *figures], digits=1), flush=True)


def _measure(entities: int, events_per_second: int, seconds: int) -> Point:
    rows = [bound("<default>", 1e9, "<default>")]
    rows += [bound(f"team-{n % 997}", 1.0, f"service-{n}") for n in range(_OFFENDERS)]
    with staged(rows) as stage, stage.load(events_per_second, entities, _EVENTS_PER_MESSAGE):
        log = BatchLog()
        with stage.job(250, log.heard) as running:
            java = java_below(running.pid) or running.pid
            time.sleep(1.3 * entities / events_per_second + 15)
            meter = CpuMeter({"driver": running.pid, "JVM": java})
            batches = log.of_next(seconds)
            cores = sum(meter.cores().values())
            memory = [memory_of(pid)["VmHWM"] for pid in (running.pid, java)]
            for pid in (java, running.pid):
                os.kill(pid, signal.SIGKILL)
        killed_at, again = time.monotonic(), BatchLog()
        with stage.job(250, again.heard):
            while not again.batches and time.monotonic() < killed_at + _PATIENCE_SECONDS:
                time.sleep(0.05)
            back_s = time.monotonic() - killed_at
            has_page = entities <= _MOST_OF_PAGE
            view_ms, server_mb = view_of_clients(stage.root, entities) if has_page else (float("nan"), float("nan"))
        roll_up_s = roll_up_seconds(stage.root)
    state = _STATE.search("".join(again.lines))
    whole_ms = [batch["batch_ms"] for batch in batches]
    return Point(
        entities=entities,
        events_per_second=events_per_second,
        steps_ms={step.removesuffix("_ms"): statistics.median(batch[step] for batch in batches) for step in STEPS},
        batch_ms=statistics.median(whole_ms),
        longest_batch_ms=max(whole_ms),
        driver_mb=round(memory[0]),
        jvm_mb=round(memory[1]),
        cores=round(cores, 2),
        back_s=round(back_s, 1),
        state_s=float(state[1]) if state else float("nan"),
        roll_up_s=round(roll_up_s, 1),
        view_ms=round(view_ms, 1),
        server_mb=round(server_mb, 1),
    )


if __name__ == "__main__":
    main()
