"""What else the tables of a job cost, when it has run with many entities: roll-ups, and a view of the dashboard."""

import random
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

from bench.stage import dashboard
from pipeline.settings.model import TablesSettings
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
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
