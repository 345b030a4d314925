"""How long `kquota what-if` takes to replay stored usage with other quotas, from the first file to the report.

    python -m bench.what_if [--demo] [--days 1] [--hours 24] [--clients 1000] [--quick] [--keep FOLDER]

Without options it measures the last minutes of a demo, a day of 1 000 clients, and seven days of 100 clients. A week
of 1 000 clients (`--days 7 --clients 1000`) needs 11 GB of disk and takes seven times as long as a day.

The demo's tables have its ten clients in the exact batches, for 15 minutes and some before: a job without Spark
and Kafka decides some minutes, which are repeated. The time is that of the command's process.

Writes `usage_by_second` (one row per second and client, ten minutes per file) under a temporary folder, then replays it
with the quotas that were live and with a candidate, as the command does: slice by slice, one process per core. One
client in twenty is over its live quota for 30 s of every 120 s; the candidate halves the bounds of half the clients,
which puts some 90 of 1 000 over quota in every second.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from bench.machine import arguments
from bench.stage import KQUOTA
from pipeline.demo.plan import DEMO_CLIENTS, DEMO_QUOTAS, STOCK_CLIENTS
from pipeline.replay.report import compare, totals_of
from pipeline.replay.request import Plan, ReplayRequest, Timeline, live_timeline
from pipeline.replay.run import run
from pipeline.replay.usage_batches import recorded_outcomes
from pipeline.settings.model import Settings
from pipeline.tables.address import table_uri
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange, altered
from pipeline.tables.quotas.files import to_document
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable, local_audit
from pipeline.throttle.assembly import nominal_slicing
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from schemas.arrow import conform
from schemas.usage import UsageBySecondRow
from tests.faults.hand_job import HandJob

BOUND: Final = 100_000.0
FILE_SECONDS: Final = 600
DAY_SECONDS: Final = 86_400
DAY_CLIENTS: Final = 1_000
WEEK_CLIENTS: Final = 100
TARGETS: Final = {(DAY_SECONDS, DAY_CLIENTS): "target 120 s"}


def quota_rows(clients: int, bound: float) -> list[dict[str, Any]]:
    """A default for all users; every second user also has a bound of its own."""
    own = [{"user": f"user-{i:05d}", "client_id": "", "producer_byte_rate": bound} for i in range(0, clients, 2)]
    return [{"user": "<default>", "client_id": "", "producer_byte_rate": BOUND, "consumer_byte_rate": 1e7}, *own]


def write_quotas(root: str, clients: int) -> QuotaTable:
    create_missing(root)
    table = QuotaTable(root)
    changes = [QuotaChange(row.pop("user"), row.pop("client_id"), row) for row in quota_rows(clients, BOUND)]
    table.alter(changes, local_audit("bench"))
    return table


def write_usage(root: str, start_ms: int, seconds: int, clients: int) -> int:
    """Write the table, file by file; returns how many rows it has."""
    draw = np.random.default_rng(1)
    names = {
        "user": pa.array([f"user-{i:05d}" for i in range(clients)]),
        "client_id": pa.array([f"client-{i % 97:03d}" for i in range(clients)]),
    }
    usual = draw.integers(5_000, 80_000, clients)
    for first in range(0, seconds, FILE_SECONDS):
        span = min(FILE_SECONDS, seconds - first)
        size = span * clients
        own = np.tile(np.arange(clients), span)
        second_ms = np.repeat(start_ms + 1_000 * (first + np.arange(span)), clients)
        over = (own % 20 == 0) & (second_ms // 1_000 % 120 < 30)
        rows = pa.table(
            {
                **{name: column.take(pa.array(own)) for name, column in names.items()},
                "second_start_ms": second_ms,
                "broker_id": pa.repeat("1", size),
                "produced_bytes": usual[own] // 2 + draw.integers(0, 30_000, size) + np.where(over, 300_000, 0),
                "fetched_bytes": draw.integers(0, 50_000, size),
                "io_time_ns": draw.integers(0, 1_000_000, size),
                "network_time_ns": draw.integers(0, 1_000_000, size),
                "request_count": pa.repeat(10, size),
                "last_event_ms": second_ms + draw.integers(900, 1_000, size),
            }
        )
        rows = conform(rows, UsageBySecondRow, cluster="bench")
        write_deltalake(table_uri(root, "usage_by_second"), rows, mode="append")
    return seconds * clients


def measure(root: str, seconds: int, clients: int) -> None:
    table = write_quotas(root, clients)
    start_ms = (time.time_ns() // 1_000_000_000 + 60) * 1_000
    began = time.perf_counter()
    rows = write_usage(root, start_ms, seconds, clients)
    files = DeltaTable(table_uri(root, "usage_by_second")).file_uris()
    size = sum(Path(file.removeprefix("file://")).stat().st_size for file in files)
    print(f"written in {time.perf_counter() - began:.0f} s: {rows:,} rows, {len(files)} files, {size / 1e6:,.0f} MB")

    candidate = QuotaSnapshot.from_rows(quota_rows(clients, BOUND / 2), 0)
    until_ms = start_ms + seconds * 1_000
    began = time.perf_counter()
    timelines = live_timeline(table, QuotaSource(table), start_ms), Timeline((0,), (candidate,))
    slicing = nominal_slicing(Settings())
    engine = Settings().engine
    request = ReplayRequest(root, "usage_by_second", "cluster", engine, slicing, start_ms, until_ms, timelines)
    live, other = run(Plan.of(request), lambda done, whole: None)
    comparisons = compare(live, live, other, recorded_outcomes(root, start_ms, until_ms, 1_000))
    totals = totals_of(comparisons)
    spent = time.perf_counter() - began
    target = TARGETS.get((seconds, clients), "no target")
    print(
        f"what-if: measured {spent:.1f} s ({target}) for {seconds / 3600:g} h × {clients} clients, {live.rows:,} rows, "
        f"{2 * live.evaluations:,} evaluations in both replays"
    )
    print(f"         {spent / seconds * 1e3:.2f} ms per second of usage; load average {os.getloadavg()[0]:.1f}")
    print(f"{totals.throttled} throttled, {totals.newly_throttled} newly, held {totals.throttle_seconds:,.0f} s")


TRIGGERS_MS: Final = (500, 250)
_TICK_MS: Final = 10
_LIVED_MS, _REPEATED_MS, _TIMES = 100_000, 60_000, 25
_MEASURE: Final = {"produce": "produced_bytes", "consume": "fetched_bytes"}
_EDIT: Final = QuotaChange("alice", "etl", {"producer_byte_rate": 300_000.0})


def measure_demo(trigger_ms: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kquota-what-if-") as folder:
        job = demo_job(Path(folder), trigger_ms)
        for name in ("usage", "batches", "decisions", "throttle_events", "sensor_state"):
            for rows in repeated(job.rows(name)):
                write_deltalake(table_uri(job.settings.tables.root, name), rows, mode="append")
        candidate = Path(folder) / "candidate.json"
        candidate.write_text(json.dumps(to_document(altered(job.quota_table.read().rows, [_EDIT]))), encoding="utf-8")
        command = [*KQUOTA, "what-if", "-f", str(candidate), "--since", "15m", "--from", "usage", "-o", "json"]
        command += ["--tables", str(job.settings.tables.root)]
        variables = {**os.environ, "KQUOTA_STREAM__TRIGGER_MS": str(trigger_ms)}
        began = time.perf_counter()
        answer = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True).stdout
        spent, about = time.perf_counter() - began, json.loads(answer)[0]["about"]
        print(
            f"15 minutes of the demo at a trigger of {trigger_ms} ms: measured {spent:.1f} s (target 10 s), of which "
            f"the replays {about['seconds']} s; {about['evaluations']:,} batches, {about['usage_rows']:,} rows; "
            f"load average {os.getloadavg()[0]:.1f}"
        )


def demo_job(folder: Path, trigger_ms: int) -> HandJob:
    """A job that has decided the first minutes of the demo's clients; those who obey wait while they are throttled."""
    job = HandJob(folder, {"producer_byte_rate": 1e9}, in_memory=True)
    stream = Settings().stream.model_copy(update={"trigger_ms": trigger_ms})
    before = job.settings
    job.settings = Settings(job="hand", cluster="demo", kafka=before.kafka, tables=before.tables, stream=stream)
    changes = [
        QuotaChange(row["user"], row["client_id"], {name: row[name] for name in QUOTA_TYPES if row[name] is not None})
        for row in DEMO_QUOTAS
    ]
    job.quota_table.alter(changes, local_audit("bench"))
    start_ms = time.time_ns() // 1_000_000 - _LIVED_MS - (_TIMES - 1) * _REPEATED_MS
    job.clock.set_wall(start_ms)
    job.clock.steady_ms = start_ms
    job.start()
    draw = np.random.default_rng(3)
    for _ in range(_LIVED_MS // trigger_ms):
        until_ms = {(one.user, one.client_id): one.throttled_until_ms for one in job.broker.records[-200:]}
        now_ms = job.clock.wall_ms
        events = [
            {
                "event_time_ms": now_ms - 50,
                "user": client.user,
                "client_id": client.client_id,
                "broker_id": "1",
                _MEASURE[client.role]: int(client.bytes_per_second * trigger_ms / 1_000 * draw.uniform(0.7, 1.3)),
                "io_time_ns": int(draw.integers(100_000, 1_000_000)),
                "network_time_ns": int(draw.integers(100_000, 1_000_000)),
            }
            for client in (*DEMO_CLIENTS, *STOCK_CLIENTS)
            if until_ms.get((client.user, client.client_id), 0) <= now_ms
        ]
        job.send(json.dumps(events).encode())
        job.step()
        for _ in range(trigger_ms // _TICK_MS):
            job.clock.advance(_TICK_MS)
            job.purgatory.tick()
    create_missing(job.settings.tables.root)
    return job


def repeated(rows: pa.Table) -> Iterator[pa.Table]:
    """Rows of a job, and the last of its minutes again and again, each time later and with higher numbers."""
    instants = rows["evaluated_at_ms"].to_numpy()
    yield rows
    last = rows.filter(pa.array(instants > instants.max() - _REPEATED_MS))
    for time_number in range(1, _TIMES):
        again = last
        for place, name in enumerate(last.column_names):
            if name.endswith("_ms") and name not in _SPANS:
                again = again.set_column(place, last.schema.field(name), pc.add(last[name], time_number * _REPEATED_MS))
            elif name in _NUMBERS:
                again = again.set_column(place, last.schema.field(name), pc.add(last[name], time_number * _EACH))
        yield again


_NUMBERS: Final = ("batch_id", "publish_seq")
_EACH: Final = 100_000
_SPANS: Final = (
    *("window_ms", "raw_throttle_time_ms", "max_throttle_time_ms", "throttle_time_ms", "owed_ms"),
    *("lateness_ms", "broker_throttle_ms"),
)


def main() -> None:
    asked = arguments(__doc__, demo=False, days=0.0, hours=0.0, clients=DAY_CLIENTS, quick=False, keep=None)
    if asked.demo or not (asked.quick or asked.days or asked.hours or asked.keep):
        for trigger_ms in TRIGGERS_MS:
            measure_demo(trigger_ms)
    if asked.demo:
        return
    hours = 1.0 if asked.quick else asked.days * 24 + asked.hours
    runs = [(DAY_SECONDS, DAY_CLIENTS), (7 * DAY_SECONDS, WEEK_CLIENTS)]
    if hours or asked.keep:
        runs = [(round((hours or 24) * 3_600), asked.clients)]
    for seconds, clients in runs:
        with tempfile.TemporaryDirectory(prefix="kquota-what-if-") as root:
            measure(asked.keep or root, seconds, clients)


if __name__ == "__main__":
    main()
