"""Reads a table through delta-rs: the adapter of `TableReader`, for the command line and for checks."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.tables.column_range import newest_in
from pipeline.tables.opening import Options, open_table
from pipeline.tables.port import Condition
from pipeline.tables.table_query import newest, newest_of_each, select

_SPANS_MS: Final = (60_000, 3_600_000)


class DeltaRsReader:
    """A `TableReader`. Each call opens the table at its newest version.

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

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> pa.Table:
        """See `TableReader`."""
        return newest_of_each(self._opened(), keys, order, columns, where)

    def newest(self, order: Sequence[str], where: Sequence[Condition] = ()) -> pa.Table:
        """The row that is last in the order of these INT64 columns, with all columns; no row if none fits.

        Args:
            order: The first one has milliseconds. Rows of its last minute and hour are looked at before all others.
            where: Conditions that must all hold.
        """
        table = self._opened()
        last_ms = newest_in(table, order[0])
        for since_ms in () if last_ms is None else [last_ms - span_ms for span_ms in _SPANS_MS]:
            found = newest(table, order, [*where, (order[0], ">=", since_ms)])
            if found.num_rows:
                return found
        return newest(table, order, where)

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
