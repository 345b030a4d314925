"""Spark reads what delta-rs writes, and it refuses the same rows as delta-rs."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from pipeline.tables.address import table_uri
from pipeline.tables.delta_spark import DeltaSparkReader
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.tables.reading import DeltaRsReader
from pipeline.tables.usage_roll_ups import UsageByMinute
from schemas.columns import spark_ddl
from schemas.rows import QuotaRow
from tests.pipeline.tables.rollups.rolled_usage import T0_MS, RolledMinutes, full

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="#42")


def test_spark_reads_what_was_edited_and_why(spark: "SparkSession", tmp_path: Path) -> None:
    create_missing(str(tmp_path), [TABLES["quotas"]])
    table = QuotaTable(str(tmp_path))
    version = table.alter([QuotaChange("alice", "", {"producer_byte_rate": 5.0})], AUDIT)
    rows = spark.read.format("delta").load(table.uri).collect()
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table.uri}`").where(f"version = {version}").collect()
    assert [(row["user"], row["producer_byte_rate"]) for row in rows] == [("alice", 5.0)]
    assert '"actor": "carol"' in history[0]["userMetadata"]


@pytest.mark.parametrize("bound", ["0.0", "double('NaN')", "double('Infinity')"])
def test_spark_refuses_a_number_that_is_no_bound(spark: "SparkSession", tmp_path: Path, bound: str) -> None:
    create_missing(str(tmp_path), [TABLES["quotas"]])
    uri = table_uri(str(tmp_path), "quotas")
    with pytest.raises(Exception, match="producer_byte_rate_is_positive"):
        spark.sql(f"INSERT INTO delta.`{uri}` VALUES ('a', '', {bound}, null, null, 'enforce', null, null)")  # noqa: S608
    spark.sql(f"INSERT INTO delta.`{uri}` VALUES ('a', '', 1.0, null, null, 'enforce', null, null)")  # noqa: S608
    assert QuotaTable(str(tmp_path)).read().rows[0]["producer_byte_rate"] == 1.0


def test_the_ddl_is_the_schema_spark_sees_in_the_table(spark: "SparkSession", tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    for name, definition in TABLES.items():
        seen = spark.read.format("delta").load(table_uri(str(tmp_path), name)).schema
        declared = spark.createDataFrame([], spark_ddl(definition.model)).schema
        assert [(f.name, f.dataType) for f in seen] == [(f.name, f.dataType) for f in declared]
    assert "`user` STRING NOT NULL" in spark_ddl(QuotaRow)


def test_spark_and_delta_rs_read_the_same_rows_of_a_time_epoch(spark: "SparkSession", tmp_path: Path) -> None:
    rolled = RolledMinutes(tmp_path)
    for time_epoch, at_ms in ((None, 0), (0, 3_600_000), (0, 3_661_000), (1, 30_000), (1, 61_000), (2, 45_000)):
        rolled.time_epoch = time_epoch
        rolled.use(full(T0_MS + at_ms, produced_bytes=at_ms + 1))
    uri = table_uri(rolled.root, "usage")
    DeltaTable(uri).optimize.compact()
    by_spark, by_delta_rs = DeltaSparkReader(spark, uri), DeltaRsReader(uri)
    assert by_spark.newest_instant() == by_delta_rs.newest_instant() == (2, T0_MS + 45_000)
    for time_epoch, count in ((0, 3), (1, 2), (2, 1), (3, 0), (None, 6)):
        found = [one.slices("sample_start_ms", time_epoch=time_epoch) for one in (by_spark, by_delta_rs)]
        used = [sorted(one.read(["produced_bytes"], 0, 2**52)["produced_bytes"].to_pylist()) for one in found]
        assert used[0] == used[1]
        assert len(used[0]) == count
        assert found[0].first_time(0, 2**52) == found[1].first_time(0, 2**52)
    rolled.minutes = UsageByMinute(by_spark, rolled.writer, "test")
    assert sum(row["produced_bytes"] for row in rolled.step()) == 1 + 3_600_001 + 3_661_001 + 30_001 + 61_001
