"""Reads a table through delta-rs: the adapter of `TableReader`, for the command line and for checks."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.tables.opening import Options, open_table
from pipeline.tables.port import Condition, Instant
from pipeline.tables.reading.column_range import newest_in, newest_instant_in, oldest_in
from pipeline.tables.reading.table_query import largest, newest_of_each, select

if TYPE_CHECKING:
    from pipeline.tables.reading.time_slices import TimeSlices


class DeltaRsReader:
    """A `RolledTable`. Each call opens the table at its newest version.

    A call raises `TableMissing` if there is no table then, and `TableUnreadable` if it can not be read.

    Args:
        uri: Address of the table.
        storage_options: See `Options`.
    """

    def __init__(self, uri: str, storage_options: Options = None) -> None:
        self.uri = uri
        self._options = storage_options

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """See `TableReader`."""
        return select(self._opened(), columns, where)

    def newest_value(self, column: str) -> int | None:
        """See `TableReader`."""
        return newest_in(self._opened(), column)

    def oldest_value(self, column: str) -> int | None:
        """See `RolledTable`."""
        return oldest_in(self._opened(), column)

    def newest_instant(self) -> Instant | None:
        """See `TableReader`."""
        table = self._opened()
        return newest_instant_in(table, partial(largest, table, "evaluated_at_ms"))

    def slices(self, column: str, dictionaries: Sequence[str] = (), version: int | None = None) -> "TimeSlices":
        """See `RolledTable`."""
        # Not at the top: it loads pyarrow.compute and numpy, and most commands need neither.
        from pipeline.tables.reading.time_slices import TimeSlices  # noqa: PLC0415

        return TimeSlices(self.uri, column, self._options, dictionaries, version)

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> pa.Table:
        """See `TableReader`."""
        return newest_of_each(self._opened(), keys, order, columns, where)

    def _opened(self) -> DeltaTable:
        return open_table(self.uri, storage_options=self._options)


def read_table(uri: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The newest rows of a table, in no order.

    Args:
        uri: Address of the table.
        columns: Which ones, in which order; None = all.
        where: Conditions that must all hold. Conditions on `date` skip whole partitions.

    Raises:
        TableMissing: There is no table.
        TableUnreadable: The table can not be read.
    """
    return DeltaRsReader(uri).read(columns, where)
