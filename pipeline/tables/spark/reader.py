"""Reads a table through Spark: an adapter of `RolledTable`, for tables that only Spark can open."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from pipeline.tables.port import Condition, Instant
from pipeline.tables.spark.table import SparkTable, reading_by_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class DeltaSparkReader:
    """A `RolledTable` on a Spark session. Each call reads the newest version.

    A call raises `TableUnreadable` if the table can not be read.

    Args:
        spark: A classic session with Delta.
        table: Address of the table, which must exist.

    Raises:
        TableMissing: There is no table.
    """

    def __init__(self, spark: "SparkSession", table: str) -> None:
        self.stored = SparkTable(spark, table)

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """See `TableReader`."""
        with self._reading():
            return _select(_where(self.stored.rows(), where), columns)

    def newest_value(self, column: str) -> int | None:
        """See `TableReader`."""
        newest: int | None = self._one(F.max(_column(column)))
        return newest

    def oldest_value(self, column: str) -> int | None:
        """See `RolledTable`."""
        oldest: int | None = self._one(F.min(_column(column)))
        return oldest

    def newest_instant(self) -> Instant | None:
        """See `TableReader`."""
        instant = F.struct(F.coalesce(_column("time_epoch"), F.lit(0)), _column("evaluated_at_ms"))
        newest = self._one(F.max(instant))
        return None if newest is None else Instant(*newest)

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> pa.Table:
        """See `TableReader`."""
        last = [F.max_by(_column(name), _column(order)).alias(name) for name in columns]
        with self._reading():
            # Under names of their own, because `columns` may have the keys as well.
            groups = _where(self.stored.rows(), where).groupBy([_column(name).alias(f"key {name}") for name in keys])
            return groups.agg(F.max(_column(order)).alias(order), *last).select(order, *columns).toArrow()

    def count(self, where: Sequence[Condition]) -> int:
        """Count the rows that meet all conditions."""
        with self._reading():
            return _where(self.stored.rows(), where).count()

    def slices(self, column: str, dictionaries: Sequence[str] = (), version: int | None = None) -> "SparkSlices":
        """See `RolledTable`. Texts are never read as dictionaries."""
        return SparkSlices(self.stored, column, self.stored.version() if version is None else version)

    def _one(self, value: "Column") -> Any:
        with self._reading():
            found = self.stored.rows().agg(value).first()
        return None if found is None else found[0]

    def _reading(self) -> AbstractContextManager[None]:
        return reading_by_spark(self.stored.address)


class SparkSlices:
    """A `TableSlices` on a Spark session.

    Args:
        stored: The table.
        time_column: The column whose ranges are read.
        version: Version of the table.
    """

    def __init__(self, stored: SparkTable, time_column: str, version: int) -> None:
        self.version = version
        self._stored = stored
        self._column = time_column
        self._rows = stored.rows_at(version)

    def read(self, columns: Sequence[str], start_ms: int, end_ms: int) -> pa.Table:
        """See `TableSlices`."""
        with reading_by_spark(self._stored.address):
            return _select(_where(self._rows, self._range(start_ms, end_ms)), columns)

    def first_time(self, start_ms: int, end_ms: int, where: Sequence[Condition] = ()) -> int | None:
        """See `TableSlices`."""
        with reading_by_spark(self._stored.address):
            found = _where(self._rows, [*self._range(start_ms, end_ms), *where]).agg(F.min(_column(self._column)))
            first = found.first()
        return None if first is None else first[0]

    def _range(self, start_ms: int, end_ms: int) -> list[Condition]:
        return [(self._column, ">=", start_ms), (self._column, "<", end_ms)]


def _select(frame: "DataFrame", columns: Sequence[str] | None) -> pa.Table:
    return (frame if columns is None else frame.select(*map(_column, columns))).toArrow()


def _where(frame: "DataFrame", conditions: Sequence[Condition]) -> "DataFrame":
    for condition in conditions:
        frame = frame.where(_predicate(condition))
    return frame


def _column(name: str) -> "Column":
    return F.col(f"`{name}`")


def _predicate(condition: Condition) -> "Column":
    name, operator, value = condition
    column = _column(name)
    if operator in {"in", "not in"}:
        return column.isin(list(value)) if operator == "in" else ~column.isin(list(value))
    predicates: dict[str, Column] = {
        "=": column == value,
        "!=": column != value,
        "<": column < value,
        "<=": column <= value,
        ">": column > value,
        ">=": column >= value,
    }
    return predicates[operator]
