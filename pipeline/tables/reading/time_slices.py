"""Reads a table in slices of time, so that a long range never has to be in memory as a whole."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import filters_to_expression

from pipeline.tables.opening import Options, open_table
from pipeline.tables.port import Condition, of_epoch
from pipeline.tables.reading.column_range import file_statistics
from pipeline.tables.reading.scan import dataset_of
from pipeline.tables.reading.table_query import smallest


def split_range(start_ms: int, end_ms: int, slice_ms: int) -> Iterator[tuple[int, int]]:
    """Split a range into slices of `slice_ms`: pairs (start inclusive, end exclusive). The last one may be shorter."""
    for slice_start_ms in range(start_ms, end_ms, slice_ms):
        yield slice_start_ms, min(slice_start_ms + slice_ms, end_ms)


class TimeSlices:
    """One version of a table, read by ranges of one of its columns of epoch milliseconds.

    A file is not opened if its statistics say that it has no row of the slice.

    Args:
        uri: Address of the table.
        time_column: The column; it must have statistics.
        storage_options: See `Options`.
        dictionaries: String columns to be read as dictionaries. If values repeat, that takes a quarter of the time.
        version: Version of the table; None = the newest.
        time_epoch: Only the rows of this time epoch; None = all.

    Raises:
        TableMissing: There is no table, or it does not have this version.
        TableUnreadable: The table can not be read.
    """

    def __init__(
        self,
        uri: str,
        time_column: str,
        storage_options: Options = None,
        dictionaries: Sequence[str] = (),
        version: int | None = None,
        time_epoch: int | None = None,
    ) -> None:
        table = open_table(uri, version, storage_options)
        self.uri = uri
        self.version: int = table.version()
        self._table = table
        self._column = time_column
        self._dataset = dataset_of(table, dictionaries)
        self._of_epoch: list[Condition] = [] if time_epoch is None else [of_epoch(time_epoch)]

    def read(
        self,
        columns: Sequence[str],
        start_ms: int,
        end_ms: int,
        where: Sequence[tuple[str, str]] = (),
    ) -> pa.Table:
        """The rows of a slice, in no order.

        Args:
            columns: Which ones, in which order.
            start_ms: Inclusive.
            end_ms: Exclusive.
            where: Pairs (column, text that it must equal); all must hold.
        """
        time = pc.field(self._column)
        condition = (time >= start_ms) & (time < end_ms)
        for column, text in where:
            condition &= pc.field(column) == text
        if self._of_epoch:
            condition &= filters_to_expression(self._of_epoch)
        return self._dataset.to_table(columns=list(columns), filter=condition)

    def first_time(self, start_ms: int, end_ms: int, where: Sequence[Condition] = ()) -> int | None:
        """The earliest time of a row in a range; None if the range has no row.

        A file is not opened if its statistics say that it has no row of the range.

        Args:
            start_ms: Inclusive.
            end_ms: Exclusive.
            where: Further conditions; all must hold.
        """
        in_range: list[Condition] = [(self._column, ">=", start_ms), (self._column, "<", end_ms), *self._of_epoch]
        return smallest(self._table, self._column, [*in_range, *where])

    def estimated_rows(self, start_ms: int, end_ms: int) -> int:
        """About how many rows a range has, estimated from the statistics of the files. No file is opened."""
        files = pa.table(file_statistics(self._table))
        rows, first_ms, last_ms = (
            pc.fill_null(files[name], 0).to_numpy()
            for name in ("num_records", f"min.{self._column}", f"max.{self._column}")
        )
        overlap_ms = np.minimum(last_ms + 1, end_ms) - np.maximum(first_ms, start_ms)
        return int((rows * np.clip(overlap_ms / (last_ms + 1 - first_ms), 0, 1)).sum())

    def span(self) -> tuple[int, int] | None:
        """The first and the last instant in the table, both inclusive; None if it has no rows."""
        times = self._dataset.to_table(columns=[self._column])[self._column]
        if not len(times):
            return None
        ends = pc.min_max(times)
        return ends["min"].as_py(), ends["max"].as_py()
