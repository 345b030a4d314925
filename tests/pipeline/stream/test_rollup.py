"""The roll-up on the real session and real tables: `usage` is appended to by delta-rs, as the job does."""

import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.stream.rollup import KEPT_MS, LATENESS_MS, RollUpPlan, UsageBySecond, by_second
from pipeline.tables.layout import TABLES, create_missing, table_uri
from schemas.arrow import arrow_schema, conform
from schemas.usage_by_second_row import UsageBySecondRow
from schemas.usage_row import UsageRow
from tests.quota.factories import usage_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

T0_MS = 1_700_000_000_000
FAR_MS = T0_MS + 10 * LATENESS_MS


class Rolled:
    """A `usage` table, and the stream over it, one batch at a time."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._batch_id = 0
        self.root = str(folder / "tables")
        create_missing(self.root, [TABLES["usage"], TABLES["usage_by_second"]])
        self.restart()

    def restart(self) -> None:
        """A new process: only tables and checkpoint are left."""
        plan = RollUpPlan(self.root, "test", str(self._folder / "checkpoint"), 50)
        self.stream = UsageBySecond(self._spark, plan)

    def forget_checkpoint(self) -> None:
        """As an operator does who starts over."""
        shutil.rmtree(self._folder / "checkpoint-rollup-second")

    def use(self, *rows: dict[str, Any]) -> None:
        """One batch of the job's."""
        self._batch_id += 1
        table = pa.Table.from_pylist([{"request_count": 1, "exempt_time_ns": None, **row} for row in rows])
        stored = conform(
            table.cast(pa.schema([arrow_schema(UsageRow).field(name) for name in table.column_names])),
            UsageRow,
            cluster="c1",
            query_id="q1",
            batch_id=self._batch_id,
            evaluated_at_ms=max(row["last_event_ms"] for row in rows),
            quota_version=1,
        )
        write_deltalake(table_uri(self.root, "usage"), stored, mode="append")

    def read(self) -> list[dict[str, Any]]:
        """Let the stream read all that is there; the rows written by then, in order."""
        self.stream.step()
        query = self.stream._query
        assert query is not None
        query.processAllAvailable()
        self.stream.step()
        return self.rows()

    def rows(self) -> list[dict[str, Any]]:
        table = DeltaTable(table_uri(self.root, "usage_by_second")).to_pyarrow_table()
        assert table.schema.names == arrow_schema(UsageBySecondRow).names
        order = [(name, "ascending") for name in ("second_start_ms", "broker_id", "user", "client_id")]
        rows: list[dict[str, Any]] = table.sort_by(order).to_pylist()
        return rows


@pytest.fixture
def rolled(spark: "SparkSession", tmp_path: Path) -> Iterator[Rolled]:
    table = Rolled(spark, tmp_path)
    yield table
    table.stream.stop()


def measures(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["second_start_ms"] - T0_MS, row["user"], row["produced_bytes"], row["last_event_ms"] - T0_MS


def full(at_ms: int, **columns: Any) -> dict[str, Any]:
    empty = {"produced_bytes": None, "fetched_bytes": None, "io_time_ns": None, "network_time_ns": None}
    return usage_row(at_ms, **{**empty, **columns})


def test_a_second_is_written_once_summed_over_its_batches_and_only_when_it_is_over(rolled: Rolled) -> None:
    rolled.use(full(T0_MS + 10, produced_bytes=5), full(T0_MS + 20, user="v", produced_bytes=1))
    assert rolled.read() == []
    rolled.use(full(T0_MS + 900, produced_bytes=7), full(T0_MS + 1_100, produced_bytes=11))
    assert rolled.read() == []
    rolled.use(full(FAR_MS, produced_bytes=1))
    rolled.read()
    rolled.use(full(FAR_MS + 1, produced_bytes=1))
    found = [measures(row) for row in rolled.read()]
    assert found == [(0, "u", 12, 900), (0, "v", 1, 20), (1_000, "u", 11, 1_100)]


def test_late_usage_joins_its_second_until_the_watermark_has_passed_it(rolled: Rolled) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.read()
    rolled.use(full(T0_MS + LATENESS_MS - 1_000, produced_bytes=2))
    rolled.read()
    rolled.use(full(T0_MS, produced_bytes=4))
    rolled.read()
    rolled.use(full(FAR_MS, produced_bytes=8))
    rolled.read()
    rolled.use(full(FAR_MS + 1, produced_bytes=1))
    rolled.read()
    rolled.use(full(T0_MS, produced_bytes=16), full(FAR_MS + 2, produced_bytes=1))
    rolled.read()
    rolled.use(full(FAR_MS + 3, produced_bytes=1))
    assert [measures(row)[:3] for row in rolled.read()] == [(0, "u", 5), (LATENESS_MS - 1_000, "u", 2)]


def test_restarts_count_nothing_twice_and_lose_nothing(rolled: Rolled) -> None:
    for second in range(2):
        rolled.use(full(T0_MS + second * 1_000, produced_bytes=1))
        rolled.use(full(T0_MS + second * 1_000 + 500, produced_bytes=10))
        rolled.read()
        rolled.stream.stop()
        rolled.restart()
    for at_ms in (FAR_MS, FAR_MS + 1):
        rolled.use(full(at_ms, produced_bytes=1))
        rolled.read()
        rolled.stream.stop()
        rolled.restart()
    rolled.read()
    assert [measures(row)[:3] for row in rolled.rows()] == [(second * 1_000, "u", 11) for second in range(2)]


def test_a_new_checkpoint_goes_on_after_the_newest_second_that_is_written(rolled: Rolled) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.read()
    for at_ms in (FAR_MS, FAR_MS + 1):
        rolled.use(full(at_ms, produced_bytes=4))
        rolled.read()
    rolled.stream.stop()
    rolled.forget_checkpoint()
    rolled.restart()
    for at_ms in (FAR_MS + 10 * LATENESS_MS, FAR_MS + 10 * LATENESS_MS + 1):
        rolled.use(full(at_ms, produced_bytes=8))
        rolled.read()
    assert [measures(row)[:3] for row in rolled.rows()] == [(0, "u", 1), (FAR_MS - T0_MS, "u", 8)]


def test_trimmed_and_compacted_usage_is_not_read_again(rolled: Rolled) -> None:
    for number in range(4):
        rolled.use(full(T0_MS + number, produced_bytes=1), full(T0_MS + 5_000, user="v", produced_bytes=1))
    rolled.read()
    usage = DeltaTable(table_uri(rolled.root, "usage"))
    usage.optimize.compact()
    usage.delete("user = 'v'")
    for at_ms in (FAR_MS, FAR_MS + 1):
        rolled.use(full(at_ms, produced_bytes=1))
        rolled.read()
    assert [measures(row)[:3] for row in rolled.rows()] == [(0, "u", 4), (5_000, "v", 4)]


def test_it_tells_how_far_it_has_read_and_nothing_before_it_knows(rolled: Rolled) -> None:
    assert rolled.stream.usage_read_until_ms() == 0
    rolled.use(full(T0_MS + 70, produced_bytes=1))
    rolled.use(full(T0_MS + 90, produced_bytes=1))
    rolled.read()
    assert rolled.stream.usage_read_until_ms() == T0_MS + 90


def test_a_stream_that_fails_is_told_and_started_again(rolled: Rolled, caplog: pytest.LogCaptureFixture) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.read()
    query = rolled.stream._query
    assert query is not None
    query.stop()
    assert rolled.stream.step() == 0.05
    assert "is started again" in caplog.text
    rolled.use(full(FAR_MS, produced_bytes=1))
    rolled.read()
    rolled.use(full(FAR_MS + 1, produced_bytes=1))
    assert [measures(row)[:3] for row in rolled.read()] == [(0, "u", 1)]


def test_a_table_that_is_missing_is_no_exception(spark: "SparkSession", tmp_path: Path) -> None:
    plan = RollUpPlan(str(tmp_path / "nowhere"), "test", str(tmp_path / "checkpoint"), 20)
    assert UsageBySecond(spark, plan).step() == 0.02


def test_null_stays_null_where_all_are_and_zero_is_no_null(spark: "SparkSession", rolled: Rolled) -> None:
    rolled.use(
        full(T0_MS, produced_bytes=None, fetched_bytes=0, io_time_ns=3),
        full(T0_MS + 1, produced_bytes=None, fetched_bytes=None, io_time_ns=None),
    )
    usage = spark.read.format("delta").load(table_uri(rolled.root, "usage"))
    (row,) = by_second(usage).collect()
    names = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "exempt_time_ns", "request_count")
    assert tuple(row[name] for name in names) == (None, 0, 3, None, None, 2)
    assert row["date"] == date(2023, 11, 14)


def test_old_seconds_are_deleted_while_the_stream_stands_still_and_it_goes_on_after(rolled: Rolled) -> None:
    rolled.use(full(T0_MS, produced_bytes=1), full(T0_MS + 1_000, produced_bytes=2))
    rolled.read()
    for at_ms in (FAR_MS, FAR_MS + 1):
        rolled.use(full(at_ms, produced_bytes=4))
        rolled.read()
    rolled.stream.clean(T0_MS + KEPT_MS + 1)
    assert [measures(row)[:3] for row in rolled.rows()] == [(1_000, "u", 2)]
    for at_ms in (FAR_MS + 10 * LATENESS_MS, FAR_MS + 10 * LATENESS_MS + 1):
        rolled.use(full(at_ms, produced_bytes=8))
        rolled.read()
    assert [measures(row)[:3] for row in rolled.rows()] == [(1_000, "u", 2), (FAR_MS - T0_MS, "u", 8)]
