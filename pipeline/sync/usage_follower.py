"""Follows the table `usage`: gives each row once, as the job's batches write it.

A batch is one commit, and within a time epoch batches are evaluated in order. So what is new are the batches that were
evaluated after the last one seen, or at the same instant and not seen. That does not ask which files a row is in:
compaction may merge them, and old ones may be deleted. When the newest instant goes back, or a new epoch begins, the
follower begins anew, with the newest rows of that epoch.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pipeline.tables.opening import Options, open_table, reading
from pipeline.tables.port import Condition, Instant
from pipeline.tables.reading.column_range import newest_instant_in
from pipeline.tables.reading.table_query import largest, select

COLUMNS: Final = (
    "sample_start_ms",
    "broker_id",
    "user",
    "client_id",
    "produced_bytes",
    "fetched_bytes",
    "io_time_ns",
    "network_time_ns",
    "exempt_time_ns",
    "last_event_ms",
)
"""What the sync needs of a row."""

_BATCH: Final = ("query_id", "batch_id")
_TIME: Final = "evaluated_at_ms"
# A handle gets slower with each version that it has followed; one that is opened from a checkpoint does not.
_VERSIONS_PER_HANDLE: Final = 50


class UsageFollower:
    """The new rows of the table, each time it is asked. One caller at a time.

    Args:
        uri: Address of the table.
        first_ms: How far before the newest evaluation the first rows begin.
        storage_options: See `Options`.

    Raises:
        TableMissing: There is no table.
        TableUnreadable: It can not be read.
    """

    def __init__(self, uri: str, first_ms: int, storage_options: Options = None) -> None:
        self._uri = uri
        self._options = storage_options
        self._first_ms = first_ms
        self._handle = open_table(uri, storage_options=storage_options)
        self._opened_version = self._handle.version()
        self._read_version: int | None = None
        self._newest: Instant | None = None
        self._has_begun = False
        self._seen_batches: set[tuple[str, int]] = set()

    @property
    def known_until_ms(self) -> int:
        """When the newest batch that was read was evaluated, in event time; 0 before the first. May go back."""
        return 0 if self._newest is None else self._newest.evaluated_at_ms

    @property
    def has_begun_anew(self) -> bool:
        """Whether the rows of the last call are the first ones, or the first ones since event time went back."""
        return self._has_begun

    def new_rows(self) -> pa.Table | None:
        """The rows since the last call, with `COLUMNS`, in no order; None if there are none. 1 ms without a commit.

        Raises:
            TableMissing, TableUnreadable: The table is not there any more, or can not be read. Nothing is lost by it.
        """
        table = self._refreshed()
        if table.version() == self._read_version:
            return None
        rows = self._rows_after(table)
        self._read_version = table.version()
        return rows

    def _refreshed(self) -> DeltaTable:
        try:
            self._handle.update_incremental()
        except (DeltaError, OSError):
            # The log entries after this version may be cleaned away: the newest version is opened without them.
            self._open()
        if self._handle.version() - self._opened_version > _VERSIONS_PER_HANDLE:
            self._open()
        return self._handle

    def _open(self) -> None:
        self._handle = open_table(self._uri, storage_options=self._options)
        self._opened_version = self._handle.version()

    def _rows_after(self, table: DeltaTable) -> pa.Table | None:
        with reading(self._uri):
            newest = newest_instant_in(table, partial(largest, table, _TIME))
        if newest is None:
            return None
        known = self._newest
        begins = known is None or newest.time_epoch != known.time_epoch or newest < known
        since_ms = newest.evaluated_at_ms - self._first_ms if begins or known is None else known.evaluated_at_ms
        day = datetime.fromtimestamp(since_ms / 1000, UTC).date()
        where: list[Condition] = [("date", ">=", day), (_TIME, ">=", since_ms)]
        if newest.time_epoch:  # before there were epochs it was null; if that is the newest one, there is no other
            where.append(("time_epoch", "=", newest.time_epoch))
        rows = select(table, (*COLUMNS, *_BATCH, _TIME), where)
        if begins:
            self._seen_batches = set()
        else:
            rows = rows.filter(pa.array([batch not in self._seen_batches for batch in _batches_of(rows)], pa.bool_()))
        self._has_begun, self._newest = begins, newest
        of_newest = _batches_of(rows.filter(pc.equal(rows[_TIME], newest.evaluated_at_ms)))
        self._seen_batches = {*of_newest, *(self._seen_batches if newest == known else ())}
        return rows.select(COLUMNS) if len(rows) else None


def _batches_of(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["query_id"].to_pylist(), rows["batch_id"].to_pylist(), strict=True))
