"""How long `kquota what-if` takes to replay stored usage with other quotas: the command's whole process.

    python -m bench.what_if [--demo-minutes 15] [--hours 24] [--clients 1000]

The demo's twelve clients in the exact batches of a job, which has no Spark and Kafka here; and usage by the second of
many clients: one in twenty is over its live quota for 30 s of every 120 s, and the candidate halves the bounds of half
the clients, which puts some 90 of 1 000 over quota in every second.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from bench.machine import arguments
from bench.pages import row, table
from bench.stage import KQUOTA
from pipeline.clock import wall_ms
from pipeline.demo.folder import DEMO_CLIENTS, DEMO_QUOTAS, STOCK_CLIENTS
from pipeline.tables.layout import create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange, altered
from pipeline.tables.quotas.files import to_document
from pipeline.tables.quotas.table import QuotaTable, local_audit
from schemas.arrow import conform
from schemas.usage import UsageBySecondRow
from tests.pipeline.dashboard.shop import LivedTables, Sender

BOUND: Final = 100_000.0
FILE_SECONDS: Final = 600
TRIGGER_MS: Final = 500
_MEASURE: Final = {"produce": "produced_bytes", "consume": "fetched_bytes"}


def write_quotas(root: str, clients: int) -> None:
    """A default for all users; every second user also has a bound of its own."""
    create_missing(root)
    changes = [QuotaChange("<default>", "", {"producer_byte_rate": BOUND, "consumer_byte_rate": 1e7})]
    changes += [QuotaChange(f"user-{i:05d}", "", {"producer_byte_rate": BOUND}) for i in range(0, clients, 2)]
    QuotaTable(root).alter(changes, local_audit("bench"))


def write_usage(root: str, start_ms: int, seconds: int, clients: int) -> None:
    """Write the table, file by file."""
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


def by_second(root: Path, start_ms: int, seconds: int, clients: int) -> list[QuotaChange]:
    """Usage by the second. Returns what the candidate changes."""
    write_quotas(str(root), clients)
    write_usage(str(root), start_ms, seconds, clients)
    return [QuotaChange(f"user-{i:05d}", "", {"producer_byte_rate": BOUND / 2}) for i in range(0, clients, 2)]


def demo(root: Path, start_ms: int, seconds: int) -> list[QuotaChange]:
    """A job that decides the demo's clients; those that obey wait while they are throttled."""
    draw = np.random.default_rng(3)
    senders = [
        Sender(
            client.user,
            client.client_id,
            lambda _second, client=client: {  # type: ignore[misc]
                _MEASURE[client.role]: client.bytes_per_second * draw.uniform(0.7, 1.3),
                "io_time_ns": draw.integers(200_000, 2_000_000),
                "network_time_ns": draw.integers(200_000, 2_000_000),
            },
        )
        for client in (*DEMO_CLIENTS, *STOCK_CLIENTS)
    ]
    LivedTables(root.parent, DEMO_QUOTAS, senders, start_ms, at_once=True).live(seconds, TRIGGER_MS)
    return [QuotaChange("alice", "etl", {"producer_byte_rate": 300_000.0})]


def measure(name: str, target: str, seconds: int, given: Callable[[Path, int, int], list[QuotaChange]]) -> None:
    """Make tables with usage until now, and print how long the command takes."""
    with tempfile.TemporaryDirectory(prefix="kquota-what-if-") as folder:
        root, candidate = Path(folder) / "tables", Path(folder) / "candidate.json"
        start_ms = wall_ms() // 1_000 * 1_000 - seconds * 1_000
        changes = given(root, start_ms, seconds)
        rows = altered(QuotaTable(str(root)).read().rows, changes)
        candidate.write_text(json.dumps(to_document(rows)), encoding="utf-8")
        command = [*KQUOTA, "what-if", "-f", str(candidate), "-o", "json", "--tables", str(root)]
        command += ["--since", str(start_ms), "--until", str(start_ms + seconds * 1_000)]
        began = time.perf_counter()
        answer = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        spent, about = time.perf_counter() - began, json.loads(answer)[0]["about"]
    print(row([name, f"{spent:.1f}", target, f"{about['usage_rows']:,}", f"{about['evaluations']:,}"]), flush=True)


def main() -> None:
    asked = arguments(__doc__, demo_minutes=15, hours=24, clients=1_000)
    print(table(["usage", "seconds", "target", "rows", "evaluations"]))
    about = f"{asked.demo_minutes} minutes of the demo, trigger {TRIGGER_MS} ms"
    measure(about, "10", 60 * asked.demo_minutes, demo)
    about = f"{asked.hours} h of {asked.clients} clients, by the second"
    measure(about, "300", 3_600 * asked.hours, partial(by_second, clients=asked.clients))


if __name__ == "__main__":
    main()
