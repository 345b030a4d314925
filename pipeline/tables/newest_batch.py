"""The newest rows of a table that the job writes, and the newest row of `batches`."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pipeline.tables.arrow_values import python_rows
from pipeline.tables.port import TableReader


def newest_rows(table: TableReader, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows with the largest `evaluated_at_ms`, in no order; several batches may have been evaluated at it.

    The job evaluates each batch at the same instant as the batch before it or later, so these rows are the newest.

    Args:
        table: one with a column `evaluated_at_ms`.
        columns: which ones, in which order; None = all.

    Returns:
        No rows if the table has none.
    """
    newest_ms = table.newest_value("evaluated_at_ms")
    return table.read(columns, [] if newest_ms is None else [("evaluated_at_ms", "=", newest_ms)])


def newest_batch(batches: TableReader) -> dict[str, Any] | None:
    """The newest row of `batches` by column; None if the table has no rows.

    Of several batches that were evaluated at the same instant, the one that was processed last.
    """
    rows = python_rows(newest_rows(batches))
    return max(rows, key=lambda row: (row["processed_at_ms"], row["batch_id"]), default=None)
