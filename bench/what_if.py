"""How long `kquota what-if` takes to replay stored usage with other quotas, from the first file to the report.

    python -m bench.what_if [--days 1] [--hours 24] [--clients 1000] [--quick] [--keep FOLDER]

Without options it measures a day of 1 000 clients, and seven days of 100 clients. A week of 1 000 clients
(`--days 7 --clients 1000`) needs 11 GB of disk and takes seven times as long as a day.

Writes `usage_by_second` (one row per second and client, ten minutes per file) under a temporary folder, then replays it
with the quotas that were live and with a candidate, as the command does: slice by slice, one process per core. One
client in twenty is over its live quota for 30 s of every 120 s; the candidate halves the bounds of half the clients,
which puts some 90 of 1 000 over quota in every second.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.machine import arguments
from pipeline.replay.report import compare, totals_of
from pipeline.replay.request import Plan, ReplayRequest, Timeline, live_timeline
from pipeline.replay.run import run
from pipeline.replay.usage_batches import recorded_outcomes
from pipeline.settings.model import Settings
from pipeline.tables.address import table_uri
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable, local_audit
from pipeline.throttle.assembly import nominal_slicing
from quota.snapshot import QuotaSnapshot
from schemas.arrow import conform
from schemas.usage import UsageBySecondRow

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
    (live, other), ran_on = run(Plan.of(request), lambda done, whole: None)
    comparisons = compare(live, live, other, recorded_outcomes(root, start_ms, until_ms, 1_000))
    totals = totals_of(comparisons)
    spent = time.perf_counter() - began
    target = TARGETS.get((seconds, clients), "no target")
    print(
        f"what-if: measured {spent:.1f} s ({target}) for {seconds / 3600:g} h × {clients} clients, {live.rows:,} rows, "
        f"{2 * live.evaluations:,} evaluations in both replays, on {ran_on}"
    )
    print(f"         {spent / seconds * 1e3:.2f} ms per second of usage; load average {os.getloadavg()[0]:.1f}")
    print(f"{totals.throttled} throttled, {totals.newly_throttled} newly, held {totals.throttle_seconds:,.0f} s")


def main() -> None:
    asked = arguments(__doc__, days=0.0, hours=0.0, clients=DAY_CLIENTS, quick=False, keep=None)
    hours = 1.0 if asked.quick else asked.days * 24 + asked.hours
    runs = [(DAY_SECONDS, DAY_CLIENTS), (7 * DAY_SECONDS, WEEK_CLIENTS)]
    if hours or asked.keep:
        runs = [(round((hours or 24) * 3_600), asked.clients)]
    for seconds, clients in runs:
        with tempfile.TemporaryDirectory(prefix="kquota-what-if-") as root:
            measure(asked.keep or root, seconds, clients)


if __name__ == "__main__":
    main()
