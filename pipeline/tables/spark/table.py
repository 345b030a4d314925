"""One Delta table as Spark sees it, by its address or by its name in a catalog."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.errors import first_line
from pipeline.settings.catalog import CatalogTable
from pipeline.tables.errors import TableMissing, TableUnreadable, TableUnwritable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

# Of a version that was never there, of one whose log is no longer kept, and of a data file that was cleaned away.
_NO_SUCH_VERSION: Final = ("DELTA_VERSION_NOT_FOUND", "DELTA_NO_REPRODUCIBLE_HISTORY", "DELTA_LOG_FILE_NOT_FOUND")
_FILE_MISSING: Final = ("FILE_NOT_EXIST", "FileNotFoundException")


class SparkTable:
    """A table that exists. It may be shared between threads.

    Args:
        spark: A classic session with Delta.
        address: A folder, a URI, or a `CatalogTable`.

    Raises:
        TableMissing: There is no table.
    """

    def __init__(self, spark: "SparkSession", address: str) -> None:
        self.spark = spark
        self.address = address
        self._name = address.sql_name if isinstance(address, CatalogTable) else None
        with reading_by_spark(address):
            exists = spark.catalog.tableExists(self._name) if self._name else DeltaTable.isDeltaTable(spark, address)
        if not exists:
            raise TableMissing(address)

    @property
    def sql_name(self) -> str:
        """The table as SQL writes it."""
        return self._name or "delta.`" + self.address.replace("`", "``") + "`"

    def rows(self, version: int | None = None) -> "DataFrame":
        """The rows at a version; None = the newest when they are read."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self._name) if self._name else reader.load(self.address)

    def rows_at(self, version: int) -> "DataFrame":
        """The rows at a version, which is looked up now.

        Raises:
            TableMissing: The table does not have this version any more or not yet.
            TableUnreadable: It can not be read.
        """
        try:
            return self.rows(version)
        except PySparkException as exc:
            if any(text in str(exc) for text in _NO_SUCH_VERSION):
                raise TableMissing(self.address, version) from exc
            raise TableUnreadable(self.address, first_line(exc)) from exc

    def append(self, writer: "DataFrameWriter") -> None:
        """Append what a writer of format delta and mode append writes. Raises what Spark raises."""
        if self._name:
            writer.saveAsTable(self._name)
        else:
            writer.save(self.address)

    def history(self, limit: int | None = None) -> list[Any]:
        """The newest commits, newest first: rows of `DESCRIBE HISTORY`."""
        spark = self.spark
        with reading_by_spark(self.address):
            table = DeltaTable.forName(spark, self._name) if self._name else DeltaTable.forPath(spark, self.address)
            found = table.history(limit) if limit is not None else table.history()
            return found.select("version", "userMetadata", "operation", "operationParameters").collect()

    def version(self) -> int:
        """The newest version."""
        return int(self.history(1)[0]["version"])

    def detail(self) -> dict[str, Any]:
        """The row of `DESCRIBE DETAIL`."""
        with reading_by_spark(self.address):
            return dict(self.spark.sql(f"DESCRIBE DETAIL {self.sql_name}").collect()[0].asDict())

    def run(self, statement: str) -> list[Any]:
        """The rows of a statement, in which `{table}` stands for the table.

        Raises:
            PySparkException: Spark refuses it.
        """
        return self.spark.sql(statement.replace("{table}", self.sql_name)).collect()

    def change(self, statement: str) -> None:
        """Run a statement that changes the table; see `run`.

        Raises:
            TableUnwritable: Spark refuses it.
        """
        try:
            self.run(statement)
        except (PySparkException, Py4JError) as exc:
            raise TableUnwritable(self.address, first_line(exc)) from exc


@contextmanager
def reading_by_spark(table: str) -> Iterator[None]:
    """Turn what Spark raises in this block into `TableUnreadable`."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        is_gone = any(text in str(exc) for text in _FILE_MISSING)
        raise TableUnreadable(table, first_line(exc), is_file_missing=is_gone) from exc


def literal(text: str) -> str:
    """A text as Spark SQL writes it."""
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return f"'{escaped}'"
