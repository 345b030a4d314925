"""Deletes old rows of `broker_quotas`, but never those that say what kquota owns on the brokers."""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.brokers.rows import APPLIED, KEY, PENDING
from pipeline.tables.maintenance import committed, rows_before
from pipeline.tables.opening import Options
from pipeline.tables.reading.table_query import count, newest_of_each, select


def trim_changes(uri: str, before_ms: int, storage_options: Options = None) -> int:
    """Delete the rows of before an instant, but not those that a start of the sync needs.

    Args:
        uri: Address of the table.
        before_ms: Rows at exactly this instant stay.
        storage_options: See `Options`.

    Returns:
        Number of rows that were deleted.

    Raises:
        LostRace: Other commits came first at every attempt.
    """
    old, predicate = rows_before("at_ms", before_ms)

    def delete(table: DeltaTable) -> int:
        if not count(table, old):
            return 0
        rows = select(table, None, old)
        kept = rows.filter(pc.is_in(rows["seq"], pa.array(_needed(table), pa.int64())))
        if len(kept) < len(rows):
            # One commit that puts the rows that stay in place of all the old ones. A delete whose condition named them
            # one by one has crashed delta-rs 1.6.6 (30 000 of them).
            write_deltalake(table, kept, mode="overwrite", predicate=predicate)
        return len(rows) - len(kept)

    return committed(uri, delete, storage_options)


def _needed(table: DeltaTable) -> list[int]:
    """`seq` of each key's newest applied row, if it is owned, and of its newest row of all, if that is pending."""
    keys = ["cluster", *KEY]
    applied = newest_of_each(table, keys, "seq", ["kind"], [("result", "=", APPLIED)]).to_pylist()
    newest = newest_of_each(table, keys, "seq", ["result"]).to_pylist()
    return [row["seq"] for row in applied if row["kind"] is not None] + [
        row["seq"] for row in newest if row["result"] == PENDING
    ]
