"""One version of a table as rows: mappings of Python's own values, for commands that print few of them.

It loads neither pyarrow nor numpy, which take longer than the queries of such a command. What computes with columns, or
looks at a table again and again, takes `pipeline.tables.reader`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from arro3.core import ChunkedArray, DataType, Table

from pipeline.tables.opening import Options, open_table
from pipeline.tables.port import Condition, Instant
from pipeline.tables.reading.column_range import newest_in, newest_instant_in
from pipeline.tables.reading.query import (
    FILTER_FIRST,
    answer,
    column_names,
    largest_where,
    last_row,
    last_rows_of_each,
    last_values_of_each,
    rows_where,
    smallest_where,
)

Row = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The job writes a file or two per second: to read those of a minute takes 70 ms, those of the newest instant 3 ms.
_SPANS_MS: Final = (0, 2_000, 16_000, 128_000, 3_600_000)


class TableRows:
    """The version of a table that was the newest when this object was made. All that is read fits together.

    Every method raises `TableUnreadable` if a file can not be read.

    Args:
        uri: Address of the table.
        storage_options: See `Options`.

    Raises:
        TableMissing: There is no table.
        TableUnreadable: It can not be read.
    """

    def __init__(self, uri: str, storage_options: Options = None) -> None:
        self.uri = uri
        self._table = open_table(uri, storage_options=storage_options)
        self._columns = column_names(self._table)

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> list[Row]:
        """The rows that meet all conditions, in no order; `columns` None = all, in the order of the table."""
        return self._rows(rows_where(self._columns if columns is None else columns, where))

    def newest_value(self, column: str) -> int | None:
        """See `TableReader`."""
        return newest_in(self._table, column)

    def newest_instant(self) -> Instant | None:
        """See `TableReader`."""
        return newest_instant_in(self._table, partial(self._largest, "evaluated_at_ms"))

    def smallest(self, column: str, where: Sequence[Condition] = ()) -> int | None:
        """The smallest value of an INT64 column in rows that meet all conditions; None without such rows."""
        (found,) = self._rows(smallest_where(column, where))
        least: int | None = found["least"]
        return least

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> list[Row]:
        """See `TableReader`."""
        return self._rows(last_values_of_each(keys, order, columns, where))

    def last_of_each(
        self, keys: Sequence[str], order: str, among: Sequence[Condition], where: Sequence[Condition]
    ) -> list[Row]:
        """Of each combination of keys the row with the largest `order`, if it meets further conditions; in no order.

        Args:
            keys: Columns that tell the combinations apart.
            order: An INT64 column; no two rows have the same value.
            among: Of rows that meet all of these conditions.
            where: Conditions on the row that was found; at least one.

        Returns:
            The rows with all columns.
        """
        return self._rows(last_rows_of_each(keys, order, self._columns, among, where))

    def newest(self, order: Sequence[str], where: Sequence[Condition] = ()) -> Row | None:
        """The row that is last in the order of these INT64 columns, with all columns; None if no row fits.

        Args:
            order: `evaluated_at_ms` is among them, at most `time_epoch` before it. It is looked for at the newest
                instant, then in spans before it that become longer, and at last in all rows.
            where: Conditions that must all hold.
        """
        newest = self.newest_instant()
        spans = () if newest is None else [newest.since(span_ms) for span_ms in _SPANS_MS]
        for recent in (*spans, []):
            found = self._rows(last_row(self._columns, order, [*where, *recent]))
            if found:
                return found[0]
        return None

    def _largest(self, column: str, where: Sequence[Condition]) -> int | None:
        (found,) = self._rows(largest_where(column, where))
        most: int | None = found["most"]
        return most

    def _rows(self, sql: str) -> list[Row]:
        return rows_of(answer(self._table, sql, engine=FILTER_FIRST))


def rows_of(found: Table) -> list[Row]:
    """The rows of an answer by column. Instants (TIMESTAMP columns in microseconds) are in UTC."""
    names = found.column_names
    columns = [_values(found.column(name)) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: ChunkedArray) -> list[Any]:
    plain: Any = column  # the stubs of arro3 take its lists for arrays of numpy
    values: list[Any]
    if not DataType.is_timestamp(column.type):
        values = plain.to_pylist()
        return values
    # By arro3 an instant would need the machine's time zone database, to tell UTC.
    values = plain.cast(DataType.int64()).to_pylist()
    return [None if instant is None else _EPOCH + timedelta(microseconds=instant) for instant in values]
