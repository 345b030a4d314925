"""The upkeep of tables in a catalog, by Spark SQL.

These commits do not carry the job's app id. An append of the job adds files and reads none, so it is in conflict with
none of them; if one of them is, the step fails and is made again in the next round.
"""

from typing import TYPE_CHECKING, Final

from pipeline.settings.catalog import CatalogRoot
from pipeline.tables.maintenance import rows_before
from pipeline.tables.spark.reader import DeltaSparkReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANY_FILES: Final = 200
# Otherwise a cleaning lists some folders by ten thousand tasks, which takes 15 s on two cores.
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


class SparkUpkeep:
    """A `TableUpkeep` on a Spark session. Days are merged and not sorted.

    Args:
        spark: A classic session with Delta.
        root: Root of the tables, which exist.
        many_files: A table with more files is merged.
    """

    # A cleaning lists all files by Spark's tasks, so not at the start of a job; Delta's own commits clean the log.
    rounds_per_cleaning = 60
    cleaning_round = 5

    def __init__(self, spark: "SparkSession", root: CatalogRoot, many_files: int = _MANY_FILES) -> None:
        self._spark = spark
        self._root = root
        self._many_files = many_files
        spark.conf.set(_LISTING, str(spark.sparkContext.defaultParallelism))

    def newest_value(self, name: str, column: str) -> int | None:
        """See `TableUpkeep`; so all others."""
        return self._reader(name).newest_value(column)

    def newest_evaluation_ms(self, name: str) -> int | None:  # noqa: D102
        newest = self._reader(name).newest_instant()
        return None if newest is None else newest.evaluated_at_ms

    def trim(self, name: str, column: str, before_ms: int) -> int:  # noqa: D102
        reader = self._reader(name)
        old, predicate = rows_before(column, before_ms)
        rows = reader.count(old)
        if rows:
            reader.stored.change(f"DELETE FROM {{table}} WHERE {predicate}")  # noqa: S608 - names and numbers of ours
        return rows

    def merge(self, name: str) -> bool:  # noqa: D102
        reader = self._reader(name)
        is_due = int(reader.stored.detail()["numFiles"]) > self._many_files
        if is_due:
            reader.stored.change("OPTIMIZE {table}")
        return is_due

    def clean(self, name: str) -> int:  # noqa: D102
        self._reader(name).stored.change("VACUUM {table}")
        return 0

    def _reader(self, name: str) -> DeltaSparkReader:
        return DeltaSparkReader(self._spark, self._root.table(name))
