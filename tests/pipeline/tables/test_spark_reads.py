"""Spark reads what delta-rs writes, and it refuses the same rows as delta-rs."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.queries import StoredTable
from tests.pipeline.tables.factories import AUDIT, bound, quota_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_reads_edits_and_refuses_a_number_that_is_no_bound(spark: "SparkSession", tmp_path: Path) -> None:
    table = quota_table(tmp_path)
    version = table.alter([bound("alice", 5.0)], AUDIT)
    rows = spark.read.format("delta").load(table.uri).collect()
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table.uri}`").where(f"version = {version}").collect()
    assert [(row["user"], row["producer_byte_rate"]) for row in rows] == [("alice", 5.0)]
    assert '"actor": "carol"' in history[0]["userMetadata"]

    def insert(rate: str) -> None:
        spark.sql(f"INSERT INTO delta.`{table.uri}` VALUES ('a', '', {rate}, null, null, 'enforce', null, null, null)")  # noqa: S608

    for rate in ("0.0", "double('NaN')", "double('Infinity')"):
        with pytest.raises(Exception, match="producer_byte_rate_is_positive"):
            insert(rate)
    insert("1.0")
    assert {row["user"]: row["producer_byte_rate"] for row in table.read().rows} == {"a": 1.0, "alice": 5.0}


def test_rows_that_spark_deletes_by_vectors_stay_deleted(spark: "SparkSession", tmp_path: Path) -> None:
    uri = str(tmp_path / "numbers")
    write_deltalake(uri, pa.table({"n": pa.array(range(10), pa.int64())}))
    write_deltalake(uri, pa.table({"n": pa.array([10], pa.int64())}), mode="append")
    spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE n % 2 = 1")  # noqa: S608
    log = "".join(path.read_text() for path in Path(uri, "_delta_log").glob("*.json"))
    assert '"deletionVector":{' in log, "else the test shows nothing"
    assert sorted(StoredTable(uri).read()["n"].to_pylist()) == [0, 2, 4, 6, 8, 10]
    assert DeltaTable(uri).optimize.compact()["numFilesRemoved"] == 2
    assert sorted(StoredTable(uri).read()["n"].to_pylist()) == [0, 2, 4, 6, 8, 10]
    assert spark.read.format("delta").load(uri).count() == 6
