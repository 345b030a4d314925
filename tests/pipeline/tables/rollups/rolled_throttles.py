"""A table `throttle_events` and its roll-up by minute, on real tables; and the same minutes, computed row by row."""

from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from pipeline.tables.address import table_uri
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.history import owners_in
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.tables.reading import DeltaRsReader
from pipeline.tables.throttle_by_minute import ThrottleByMinute
from schemas.arrow import arrow_schema
from schemas.throttle_record import ThrottleByMinuteRow
from tests.pipeline.tables.event_table import EventTable
from tests.pipeline.tables.rollups.rolled_usage import LostAnswers

MINUTE_MS = 60_000
T0_MS = 1_700_000_040_000

Minutes = dict[tuple[int, str, str | None], tuple[int, int, int]]
"""(minute, client-id, owner) -> time held in ms, throttles, renewals."""


class RolledThrottles:
    """Throttle records and their roll-up, which is run step by step."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "tables")
        self._epoch = 0
        create_missing(self.root, [TABLES["quotas"], TABLES["throttle_by_minute"]])
        self.quotas = QuotaTable(self.root)
        self.events = EventTable(Path(self.root))
        self._owners: dict[int, str | None] = {0: None}
        self.restart()

    def restart(self) -> None:
        """Start again as a new process, with nothing but the tables."""
        self.writer = LostAnswers(table_uri(self.root, "throttle_by_minute"), "test")
        self._epoch += 1
        self.writer.raise_epoch(self._epoch)
        events_uri = table_uri(self.root, "throttle_events")
        self.roll_up = ThrottleByMinute(DeltaRsReader(events_uri), self.writer, "test", owners_in(self.quotas))

    def owned_by(self, owner: str | None, user: str = "u") -> int:
        """Give a user an owner. Returns the version of the quota table."""
        change = QuotaChange(user, "", {"producer_byte_rate": 1.0, "owner": owner})
        version = self.quotas.alter([change], EditAudit("ops", "host", "0", "test"))
        self._owners[version] = owner
        return version

    def tell(self, client_id: str, action: str, at_ms: int, throttle_time_ms: int = 0, **columns: Any) -> None:
        """Store one record, `at_ms` counted from `T0_MS`; by default a violation, or an expiry, of decision d1."""
        told = {"cause": "violation" if action == "throttle" else "expired", "decision_id": "d1", **columns}
        record = client_id, action, T0_MS + at_ms, throttle_time_ms
        self.events.write(record, **({"quota_type": "producer_byte_rate"} | told))

    def step(self) -> Minutes:
        """Run one step. Returns the sums of all rows written so far, minutes counted from `T0_MS`."""
        self.roll_up.step()
        return self.written()

    def written(self) -> Minutes:
        """The sums of all rows written so far, minutes counted from `T0_MS`."""
        table = DeltaTable(table_uri(self.root, "throttle_by_minute")).to_pyarrow_table()
        assert table.schema.names == arrow_schema(ThrottleByMinuteRow).names
        return summed(table.to_pylist())

    def recomputed(self) -> Minutes:
        """The same from all records at once, one by one, without the code of the roll-up."""
        rows = DeltaTable(table_uri(self.root, "throttle_events")).to_pyarrow_table().to_pylist()
        added: list[dict[str, Any]] = []
        last: dict[str, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: row["publish_seq"]):
            before = last.get(row["client_id"])
            last[row["client_id"]] = row
            before = before if before and before["action"] == "throttle" else None
            if before:
                end_ms = min(before["throttled_until_ms"], stored_ms(row))
                added += [
                    self._added(before, at_ms, held_ms=1_000) for at_ms in range(stored_ms(before), end_ms, 1_000)
                ]
            if row["action"] == "throttle":
                is_new = before is None or before["decision_id"] != row["decision_id"]
                name = "throttle_count" if is_new and row["cause"] == "violation" else "renewal_count"
                added.append(self._added(row, stored_ms(row), **{name: 1}))
        return summed(added)

    def _added(self, row: dict[str, Any], at_ms: int, **figures: int) -> dict[str, Any]:
        empty = {"held_ms": 0, "throttle_count": 0, "renewal_count": 0, "owner": self._owners[row["quota_version"]]}
        return empty | {"client_id": row["client_id"], "minute_start_ms": at_ms // MINUTE_MS * MINUTE_MS} | figures


def stored_ms(row: dict[str, Any]) -> int:
    """When a record was stored, by wall clock."""
    return int(row["throttled_until_ms"] - row["throttle_time_ms"])


def summed(rows: list[dict[str, Any]]) -> Minutes:
    """The sums of rows of `throttle_by_minute`."""
    sums: dict[tuple[int, str, str | None], Counter[str]] = {}
    for row in rows:
        key = (row["minute_start_ms"] - T0_MS) // MINUTE_MS, row["client_id"], row["owner"]
        sums.setdefault(key, Counter()).update({name: row[name] for name in FIGURES})
    return {key: tuple(found[name] for name in FIGURES) for key, found in sorted(sums.items(), key=str)}  # type: ignore[misc]


FIGURES = ("held_ms", "throttle_count", "renewal_count")
