"""The name of the job that owns tables in a catalog: as `pipeline.tables.ownership`, through Spark."""

from typing import TYPE_CHECKING

from pipeline.settings.catalog import CatalogRoot
from pipeline.tables.ownership import KEPT_IN, PROPERTY, TablesOfAnotherJob
from pipeline.tables.spark.table import SparkTable, literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def claim(spark: "SparkSession", root: CatalogRoot, job: str) -> None:
    """Store the job's name in its tables at its first start, and check it at later starts.

    Raises:
        TablesOfAnotherJob: The tables store another name.
        TableUnwritable: Spark refuses to store it.
    """
    table = SparkTable(spark, root.table(KEPT_IN))
    owner = table.detail()["properties"].get(PROPERTY)
    if owner is not None and owner != job:
        raise TablesOfAnotherJob(root, job, owner)
    if owner is None:
        table.change(f"ALTER TABLE {{table}} SET TBLPROPERTIES ({literal(PROPERTY)} = {literal(job)})")
