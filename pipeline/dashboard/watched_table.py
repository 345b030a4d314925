"""A Delta table that is kept open at its newest version, so that a look costs nothing while nothing is new."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.errors import PipelineError
from pipeline.tables.address import table_missing, table_uri
from pipeline.tables.opening import (
    file_statistics,
    local_path,
    newest_in,
    oldest_in,
    open_table,
    reading,
)
from pipeline.tables.port import Condition, Instant
from pipeline.tables.queries import FILTER_FIRST, Row, answer, column_names, newest_instant_in, rows_of, rows_where
from pipeline.tables.reading import run

# A handle that has followed many commits answers more slowly than one that was opened from a checkpoint.
_VERSIONS_PER_HANDLE: Final = 50
# A local table is asked at least so often whether the version after ours was cleaned away before we saw it.
_ASK_AGAIN_MS: Final = 5_000
_OLDEST_KEPT_MS: Final = 60_000


class WatchedTable:
    """One table. `refresh` is for one thread; reading is for any."""

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        self.uri = table_uri(root, name)
        self.failure: PipelineError | None = None
        """Why the last `refresh` could not see the table; None if it could."""
        self.seen_at_ms: int | None = None
        """When a new version was seen last, by wall clock; None before that."""
        self._table: DeltaTable | None = None
        self._opened_version = 0
        self._asked_at_ms = 0
        self._oldest: dict[str, tuple[int, int | None]] = {}

    @property
    def version(self) -> int | None:
        """The newest version seen; None without a table."""
        table = self._table
        return None if table is None else table.version()

    def refresh(self, now_ms: int) -> bool:
        """Whether there is a newer version than at the last call. A missing or damaged table is not an error."""
        before = self.version
        try:
            self._look(now_ms)
        except PipelineError as exc:
            self._table = None
            self.failure = exc
        else:
            self.failure = None
        is_new = self.version != before
        if is_new:
            self.seen_at_ms = now_ms
        return is_new

    def committed_at_ms(self) -> int | None:
        """When the newest version was committed, by the writer's clock; None without a table."""
        table = self._table
        if table is None:
            return None
        with reading(self.uri):
            return next((int(commit["timestamp"]) for commit in table.history(1)), None)

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """Rows of the version seen last, in no order; see `table_query.select`.

        Raises:
            TableMissing: There was no table at the last `refresh`.
            TableUnreadable: A file of it cannot be read.
        """
        table = self.opened()
        return run(table, rows_where(column_names(table) if columns is None else columns, where), engine=FILTER_FIRST)

    def rows(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> list[Row]:
        """The same rows by column, for few of them; otherwise as `read`."""
        table = self.opened()
        sql = rows_where(column_names(table) if columns is None else columns, where)
        return rows_of(answer(table, sql, engine=FILTER_FIRST))

    def query(self, sql: str) -> pa.Table:
        """The result of a query over `source`, the version seen last; otherwise as `read`."""
        return run(self.opened(), sql, engine=FILTER_FIRST)

    def newest_value(self, column: str) -> int | None:
        """The largest value of an INT64 column with statistics; None without rows or table."""
        table = self._table
        return None if table is None else newest_in(table, column)

    def newest_instant(self) -> Instant | None:
        """See `TableReader`; None without a table, too."""
        table = self._table
        return None if table is None else newest_instant_in(table)

    def oldest_value(self, column: str) -> int | None:
        """The smallest value of such a column; otherwise as `newest_value`. Looked up at most once a minute."""
        table = self._table
        if table is None:
            return None
        minute = (self.seen_at_ms or 0) // _OLDEST_KEPT_MS
        known = self._oldest.get(column)
        if known is None or known[0] != minute or known[1] is None:
            self._oldest[column] = known = (minute, oldest_in(table, column))
        return known[1]

    def rows_about(self, column: str, since: int, until: int) -> int:
        """About how many rows have a value in a range, from the statistics of the files; otherwise as `read`.

        Args:
            column: An INT64 column with statistics.
            since: Inclusive.
            until: Exclusive.
        """
        files = file_statistics(self.opened())
        rows = 0.0
        columns = (files.column(name).to_pylist() for name in ("num_records", f"min.{column}", f"max.{column}"))
        for count, least, most in zip(*columns, strict=True):
            if count and least is not None and most >= since and least < until:
                rows += count * (min(most + 1, until) - max(least, since)) / (most + 1 - least)
        return int(rows)

    def opened(self) -> DeltaTable:
        """The handle.

        Raises:
            TableMissing: There was no table at the last `refresh`.
        """
        table = self._table
        if table is None:
            raise table_missing(self.uri)
        return table

    def _look(self, now_ms: int) -> None:
        table = self._table
        if table is None:
            self._table = open_table(self.uri)
            self._opened_version = self._table.version()
            self._asked_at_ms = now_ms
            return
        is_due = abs(now_ms - self._asked_at_ms) >= _ASK_AGAIN_MS  # also if the clock was set back
        if not is_due and not self._may_have_more(table):
            return
        self._asked_at_ms = now_ms
        if table.version() - self._opened_version >= _VERSIONS_PER_HANDLE:
            self._table = open_table(self.uri)
            self._opened_version = self._table.version()
            return
        with reading(self.uri):
            table.update_incremental()

    def _may_have_more(self, table: DeltaTable) -> bool:
        """Looks for the next entry of a local log; any other store is always read."""
        path = local_path(table)
        return path is None or Path(path, "_delta_log", f"{table.version() + 1:020d}.json").exists()
