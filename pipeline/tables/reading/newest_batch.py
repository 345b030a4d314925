"""The newest rows of a table that the job writes, and the newest row of `batches`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from arro3.core import Table

from pipeline.tables.address import table_uri
from pipeline.tables.port import TableReader
from pipeline.tables.reading.table_rows import TableRows, rows_of

if TYPE_CHECKING:  # `kquota status` loads no pyarrow
    import pyarrow as pa

# Of several batches that were evaluated at the same instant, the one that was processed last.
_ORDER: Final = ("processed_at_ms", "batch_id")


def newest_rows(table: TableReader, columns: Sequence[str] | None = None) -> "pa.Table":
    """The rows of the newest instant, in no order; several batches may have been evaluated at it.

    Within a time epoch the job evaluates each batch at the instant of the batch before it or later, so these rows are
    the newest.

    Args:
        table: one with a column `evaluated_at_ms`.
        columns: which ones, in which order; None = all.

    Returns:
        No rows if the table has none.
    """
    newest = table.newest_instant()
    return table.read(columns, [] if newest is None else newest.conditions)


def newest_batch(batches: TableReader) -> dict[str, Any] | None:
    """The newest row of `batches` by column, for the job and its writer; None if the table has no rows."""
    return _last(rows_of(Table.from_arrow(newest_rows(batches))))


def newest_batch_under(root: str) -> dict[str, Any] | None:
    """The same, for a command that looks at the tables under a root.

    Raises:
        TableMissing, TableUnreadable: the table is not there, or can not be read.
    """
    batches = TableRows(table_uri(root, "batches"))
    newest = batches.newest_instant()
    return None if newest is None else _last(batches.read(None, newest.conditions))


def _last(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return max(rows, key=lambda row: tuple(row[name] for name in _ORDER), default=None)
