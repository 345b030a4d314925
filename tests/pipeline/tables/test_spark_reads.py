"""Spark reads what delta-rs writes, and it refuses the same rows as delta-rs."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import StoredTable
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable

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
        spark.sql(f"INSERT INTO delta.`{uri}` VALUES ('a', '', {bound}, null, null, 'enforce', null, null, null)")  # noqa: S608
    spark.sql(f"INSERT INTO delta.`{uri}` VALUES ('a', '', 1.0, null, null, 'enforce', null, null, null)")  # noqa: S608
    assert QuotaTable(str(tmp_path)).read().rows[0]["producer_byte_rate"] == 1.0


def test_rows_that_spark_deletes_by_vectors_stay_deleted_for_readers_and_after_a_merge(
    spark: "SparkSession", tmp_path: Path
) -> None:
    uri = table_uri(str(tmp_path), "numbers")
    rows = pa.table({"n": pa.array(range(10), pa.int64())})
    write_deltalake(uri, rows)
    write_deltalake(uri, pa.table({"n": pa.array([10], pa.int64())}), mode="append")
    spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE n % 2 = 1")  # noqa: S608
    log = "".join(path.read_text() for path in Path(uri, "_delta_log").glob("*.json"))
    assert '"deletionVector":{' in log, "else the test shows nothing"
    assert sorted(StoredTable(uri).read()["n"].to_pylist()) == [0, 2, 4, 6, 8, 10]
    assert DeltaTable(uri).optimize.compact()["numFilesRemoved"] == 2
    assert sorted(StoredTable(uri).read()["n"].to_pylist()) == [0, 2, 4, 6, 8, 10]
    assert spark.read.format("delta").load(uri).count() == 6
