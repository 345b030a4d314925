"""Follows the table `usage`: gives each row once, as the job's batches write it.

A batch is one commit, and batches are evaluated in order. So what is new are the batches that were evaluated after the
last one seen, or at the same instant and not seen. That does not ask which files a row is in: compaction may merge
them, and old ones may be deleted.
"""

from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pipeline.tables.opening import Options, open_table, reading
from pipeline.tables.reading.column_range import newest_in
from pipeline.tables.reading.table_query import select

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
        self._newest_ms: int | None = None
        self._seen_batches: set[tuple[str, int]] = set()

    @property
    def known_until_ms(self) -> int:
        """When the newest batch that was read was evaluated, in event time; 0 before the first."""
        return self._newest_ms or 0

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
            newest_ms = newest_in(table, _TIME)
        if newest_ms is None:
            return None
        since_ms = newest_ms - self._first_ms if self._newest_ms is None else self._newest_ms
        day = datetime.fromtimestamp(since_ms / 1000, UTC).date()
        rows = select(table, (*COLUMNS, *_BATCH, _TIME), [("date", ">=", day), (_TIME, ">=", since_ms)])
        rows = self._unseen(rows)
        return rows.select(COLUMNS) if len(rows) else None

    def _unseen(self, rows: pa.Table) -> pa.Table:
        if not len(rows):
            return rows
        at_ms = rows[_TIME].to_numpy()
        if self._newest_ms is not None and (at_ms == self._newest_ms).any():
            is_new = [
                at != self._newest_ms or batch not in self._seen_batches
                for at, batch in zip(at_ms.tolist(), _batches_of(rows), strict=True)
            ]
            rows = rows.filter(pa.array(is_new, pa.bool_()))
            at_ms = rows[_TIME].to_numpy()
        if len(rows):
            newest_ms = int(at_ms.max())
            newest = _batches_of(rows.filter(pc.equal(rows[_TIME], newest_ms)))
            self._seen_batches = set(newest) | (self._seen_batches if newest_ms == self._newest_ms else set())
            self._newest_ms = newest_ms
        return rows


def _batches_of(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["query_id"].to_pylist(), rows["batch_id"].to_pylist(), strict=True))
