"""A `usage` table and its roll-ups by second and by minute, on real tables."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import TableUnwritable
from pipeline.tables.roll_ups import BY_MINUTE, BY_SECOND, UsageRoller
from schemas.arrow import arrow_schema, conform
from schemas.usage import UsageByMinuteRow, UsageBySecondRow, UsageRow
from tests.quota.factories import usage_row

T0_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class LostAnswers(DeltaRsWriter):
    """A writer whose next append raises, either before or after the rows are stored."""

    fail_next: str | None = None

    def append(self, *arguments: Any) -> bool:
        failure, self.fail_next = self.fail_next, None
        if failure != "before":
            super().append(*arguments)
        if failure:
            raise TableUnwritable(self.uri, "no answer")
        return True


class Rolled:
    """A `usage` table and its roll-up, which is run step by step."""

    def __init__(self, folder: Path) -> None:
        self._batch_id = 0
        self.time_epoch = 0
        self._epoch = 0
        self.root = str(folder / "tables")
        create_missing(self.root, [TABLES["usage"], TABLES["usage_by_second"]])
        self.restart()

    def restart(self) -> None:
        """Start again as a new process, with nothing but the tables."""
        seconds_uri = table_uri(self.root, "usage_by_second")
        self.writer = LostAnswers(seconds_uri, "test")
        self._epoch += 1
        self.writer.raise_epoch(self._epoch)
        self.roll_up = UsageRoller(BY_SECOND, table_uri(self.root, "usage"), self.writer, "test")

    def use(self, *rows: dict[str, Any]) -> None:
        """Append the usage of one batch."""
        self._batch_id += 1
        table = pa.Table.from_pylist([{"request_count": 1, "exempt_time_ns": None, **row} for row in rows])
        stored = conform(
            table.cast(pa.schema([arrow_schema(UsageRow).field(name) for name in table.column_names])),
            UsageRow,
            cluster="c1",
            query_id="q1",
            batch_id=self._batch_id,
            time_epoch=self.time_epoch,
            evaluated_at_ms=max(row["last_event_ms"] for row in rows),
            quota_version=1,
        )
        write_deltalake(table_uri(self.root, "usage"), stored, mode="append")

    def step(self) -> list[dict[str, Any]]:
        """Run one step. Returns all rows written so far, in order."""
        self.roll_up.step()
        table = DeltaTable(table_uri(self.root, "usage_by_second")).to_pyarrow_table()
        assert table.schema.names == arrow_schema(UsageBySecondRow).names
        order = [(name, "ascending") for name in ("second_start_ms", "broker_id", "user", "client_id")]
        rows: list[dict[str, Any]] = table.sort_by(order).to_pylist()
        return rows


class RolledMinutes(Rolled):
    """The same with the roll-up by minute."""

    def restart(self) -> None:
        """Start again as a new process, with nothing but the tables."""
        create_missing(self.root, [TABLES["usage_by_minute"]])
        self.writer = LostAnswers(table_uri(self.root, "usage_by_minute"), "test")
        self._epoch += 1
        self.writer.raise_epoch(self._epoch)
        self.minutes = UsageRoller(BY_MINUTE, table_uri(self.root, "usage"), self.writer, "test")

    def step(self) -> list[dict[str, Any]]:
        """Run one step. Returns all rows written so far, in order."""
        self.minutes.step()
        table = DeltaTable(table_uri(self.root, "usage_by_minute")).to_pyarrow_table()
        assert table.schema.names == arrow_schema(UsageByMinuteRow).names
        order = [(name, "ascending") for name in ("minute_start_ms", "user", "last_event_ms", "produced_bytes")]
        rows: list[dict[str, Any]] = table.sort_by(order).to_pylist()
        return rows


def measures(row: dict[str, Any]) -> tuple[Any, ...]:
    """Second, user, bytes produced and last event of a row; times are in ms after `T0_MS`."""
    return row["second_start_ms"] - T0_MS, row["user"], row["produced_bytes"], row["last_event_ms"] - T0_MS


def sums(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Second, user and bytes produced of each row."""
    return [measures(row)[:3] for row in rows]


def full(at_ms: int, **columns: Any) -> dict[str, Any]:
    """A row of usage without measures, but for those given."""
    empty = {"produced_bytes": None, "fetched_bytes": None, "io_time_ns": None, "network_time_ns": None}
    return usage_row(at_ms, **{**empty, **columns})
