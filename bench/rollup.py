"""What the roll-ups by minute take of the driver: 10 000 clients that send all the time and are held all the time.

Each client has a row of `usage` in every second, and a renewal every 10 s. Each minute is then rolled up, as the job
does it, on one thread. The steps are timed in CPU time of the whole process, Arrow's own threads included.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from bench.machine import machine_line
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.commits import EditAudit
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.owners import StoredOwners
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.reader import DeltaRsReader
from pipeline.tables.rollups.throttle_by_minute import ThrottleByMinute
from pipeline.tables.rollups.usage_by_minute import UsageByMinute
from schemas.arrow import conform
from schemas.throttle_event_row import ThrottleEventRow
from schemas.usage_row import UsageRow

_T0_MS: Final = 1_700_000_040_000
_NAMES: Final = ("quotas", "usage", "usage_by_minute", "throttle_events", "throttle_by_minute")


class Stored:
    """Tables into which minutes of usage and renewals are written.

    Args:
        root: Root of the tables.
        clients: How many.
    """

    def __init__(self, root: str, clients: int) -> None:
        create_missing(root, [TABLES[name] for name in _NAMES])
        self.quotas = QuotaTable(root)
        self._root = root
        self._users = np.array([f"user-{number:05}" for number in range(clients)])
        rows = [
            QuotaChange(str(user), "", {"producer_byte_rate": 1e6, "owner": f"team-{number % 50}"})
            for number, user in enumerate(self._users)
        ]
        self._version = self.quotas.alter(rows, EditAudit("bench", "", "", "bench"))
        self._seq = 0

    def writer(self, name: str) -> DeltaRsWriter:
        """The guarded writer of a table."""
        writer = DeltaRsWriter(table_uri(self._root, name), "bench")
        writer.raise_epoch(1)
        return writer

    def write(self, minute: int) -> None:
        """A minute of usage, second by second, and of renewals, every 10 s."""
        for second in range(60):
            at_ms = _T0_MS + (minute * 60 + second) * 1_000
            self._write_usage(at_ms)
            if second % 10 == 0:
                self._write_renewals(at_ms)

    def _write_usage(self, at_ms: int) -> None:
        rows = pa.table({"user": self._users, "produced_bytes": np.full(len(self._users), 1_000)})
        same = {
            "batch_id": at_ms,
            "sample_start_ms": at_ms,
            "last_event_ms": at_ms + 900,
            "evaluated_at_ms": at_ms + 900,
        }
        self._append("usage", conform(rows, UsageRow, request_count=3, **same, **self._same()))

    def _write_renewals(self, at_ms: int) -> None:
        count = len(self._users)
        places = np.arange(self._seq, self._seq + count)
        self._seq += count
        until_ms = at_ms + np.arange(count) % 10_000 + 10_400
        rows = pa.table({"user": self._users, "publish_seq": places, "throttled_until_ms": until_ms})
        told = {"action": "throttle", "cause": "renewed", "quota_type": "producer_byte_rate", "decision_id": "d" * 32}
        numbers = {"throttle_time_ms": 10_400, "observed": 1.0, "window_ms": 1, "owed_ms": 1, "schema_version": 1}
        times = {"batch_id": at_ms, "evaluated_at_ms": at_ms}
        sensor = {"sensor_user": "", "sensor_client_id": ""}
        self._append(
            "throttle_events", conform(rows, ThrottleEventRow, **told, **numbers, **times, **sensor, **self._same())
        )

    def _same(self) -> dict[str, str | int]:
        return {"cluster": "c1", "query_id": "q", "broker_id": "", "client_id": "app", "quota_version": self._version}

    def _append(self, name: str, rows: pa.Table) -> None:
        write_deltalake(table_uri(self._root, name), rows, mode="append")


def cpu_ms(step: Callable[[], None]) -> float:
    """CPU time of a step."""
    began = time.process_time()
    step()
    return (time.process_time() - began) * 1000


def main() -> None:
    """Print the machine and a table."""
    parser = argparse.ArgumentParser(description="Roll-ups by minute.")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--minutes", type=int, default=5)
    asked = parser.parse_args()
    print(machine_line())
    spent: dict[str, list[float]] = {"usage_by_minute": [], "throttle_by_minute": []}
    with tempfile.TemporaryDirectory() as root:
        stored = Stored(root, asked.clients)
        usage = UsageByMinute(DeltaRsReader(table_uri(root, "usage")), stored.writer("usage_by_minute"), "bench")
        owners = StoredOwners(stored.quotas)
        events_uri = table_uri(root, "throttle_events")
        throttles = ThrottleByMinute(DeltaRsReader(events_uri), stored.writer("throttle_by_minute"), "bench", owners.at)
        for minute in range(asked.minutes + 1):
            stored.write(minute)
            spent["usage_by_minute"].append(cpu_ms(usage.step))
            spent["throttle_by_minute"].append(cpu_ms(throttles.step))
    print(f"{asked.clients} clients, all sending and all held; ms of CPU per minute rolled up")
    for name, found in spent.items():
        # Usage is rolled up a minute later, and the first step of throttles reads the owners.
        median, largest = statistics.median(found[1:]), max(found[1:])
        print(f"{name:<20} median {median:6.0f}  largest {largest:6.0f}  first {found[0]:6.0f}")


if __name__ == "__main__":
    main()
