"""Tables that are kept open, and their new rows, so that a look reads files only for what is new."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from pipeline.errors import PipelineError
from pipeline.tables.address import table_missing, table_uri
from pipeline.tables.opening import FollowedTable, local_path, newest_in, oldest_in, reading
from pipeline.tables.port import Condition, Instant, of_newest_epoch, parse_commit_note
from pipeline.tables.queries import FILTER_FIRST, Row, answer, column_names, newest_instant_in, rows_of, rows_where
from pipeline.tables.reading import run

# A Delta table that is kept open at its newest version, so that a look costs nothing while nothing is new.

# A local table is asked at least so often whether the version after ours was cleaned away before we saw it.
_ASK_AGAIN_MS: Final = 5_000
_SLACK: Final = 8


class WatchedTable:
    """One table. `refresh` is for one thread; reading is for any.

    Reading raises `TableMissing` if there was no table at the last `refresh`, and `TableUnreadable` for a bad file.
    """

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        self.uri = table_uri(root, name)
        self.failure: PipelineError | None = None
        """Why the last `refresh` could not see the table; None if it could."""
        self._followed: FollowedTable | None = None
        self._table: DeltaTable | None = None
        self._asked_at_ms = 0
        self._commits: tuple[int, Mapping[tuple[str, int], int]] = (-1, {})

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
            self._followed = self._table = None
            self.failure = exc
        else:
            self.failure = None
        return self.version != before

    def committed_at_ms(self) -> int | None:
        """When the newest version was committed, by the writer's clock; None without a table."""
        table = self._table
        if table is None:
            return None
        with reading(self.uri):
            return next((int(commit["timestamp"]) for commit in table.history(1)), None)

    def commits(self, most: int) -> Mapping[tuple[str, int], int]:
        """(query id, batch id) -> when the commit was made that names it, in epoch ms, of the newest commits.

        The first call reads the `most` newest commits, a later one only those that are new. 240 take 25 ms.
        """
        table, (known_version, known) = self.opened(), self._commits
        version = table.version()
        new = version - known_version
        if new:
            with reading(self.uri):
                # Some more than are new, as another thread may move the handle on meanwhile.
                history = table.history(min(new + _SLACK, most) if new > 0 else most)
            found: dict[tuple[str, int], int] = {}
            for commit in history:
                note = parse_commit_note(commit.get("userMetadata"))
                for app_id, batch_id in ({} if note is None else json.loads(note["versions"])).items():
                    found.setdefault((app_id, int(batch_id)), int(commit["timestamp"]))
            known = dict([*(known if new > 0 else {}).items(), *found.items()][-4 * most :])
            self._commits = version, known
        return known

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """Rows of the version seen last, in no order."""
        return self.query(self._rows_where(columns, where))

    def rows(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> list[Row]:
        """The same rows by column, for few of them."""
        return rows_of(answer(self.opened(), self._rows_where(columns, where), engine=FILTER_FIRST))

    def query(self, sql: str) -> pa.Table:
        """The result of a query over `source`, the version seen last."""
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
        """The smallest value of such a column; otherwise as `newest_value`."""
        table = self._table
        return None if table is None else oldest_in(table, column)

    def opened(self) -> DeltaTable:
        """The handle."""
        table = self._table
        if table is None:
            raise table_missing(self.uri)
        return table

    def _rows_where(self, columns: Sequence[str] | None, where: Sequence[Condition]) -> str:
        return rows_where(column_names(self.opened()) if columns is None else columns, where)

    def _look(self, now_ms: int) -> None:
        table = self._table
        is_due = abs(now_ms - self._asked_at_ms) >= _ASK_AGAIN_MS  # also if the clock was set back
        if table is not None and not is_due and not self._may_have_more(table):
            return
        self._followed = self._followed or FollowedTable(self.uri)
        self._table = self._followed.look()
        self._asked_at_ms = now_ms

    def _may_have_more(self, table: DeltaTable) -> bool:
        """Looks for the next entry of a local log; any other store is always read."""
        path = local_path(table)
        return path is None or Path(path, "_delta_log", f"{table.version() + 1:020d}.json").exists()


TIME: Final = "evaluated_at_ms"
_BATCH: Final = ("query_id", "batch_id")


class NewRows:
    """The rows that a table gets from look to look. For one thread.

    Args:
        key: A column with statistics that has the order in which the job wrote: within a time epoch no commit has a
            smaller one than the commit before it, and rows of one batch with the same one are in one commit.
            `publish_seq` continues from epoch to epoch.
    """

    def __init__(self, table: WatchedTable, key: str) -> None:
        self._table = table
        self._key = key
        self._seen_batches: set[tuple[Any, ...]] = set()
        self._newest_key: int | None = None
        self.time_epoch = 0
        """That of the rows that `follow` takes; 0 for a key that continues from epoch to epoch."""

    def follow(self, columns: Sequence[str]) -> pa.Table | None:
        """Take the rows that came since the last call. If it raises, the next call goes on where this one began.

        Returns:
            Those rows; None at the first call, which may take many, at the first of a time epoch, and for a table
            without rows.
        """
        newest = self._newest()
        if newest is None:
            return None
        time_epoch, newest_key = newest
        since, is_new = self._newest_key, time_epoch != self.time_epoch
        columns = tuple(dict.fromkeys((*columns, *_BATCH, self._key)))
        if since is None or is_new or newest_key < since:
            self.time_epoch = time_epoch
            self._note(self._read(columns, newest_key))
            return None
        rows = self._unseen(self._read(columns, since), since)
        self._note(rows)
        return rows

    def _newest(self) -> tuple[int, int] | None:
        if self._key == TIME:
            return self._table.newest_instant()
        newest_key = self._table.newest_value(self._key)
        return None if newest_key is None else (0, newest_key)

    def _read(self, columns: Sequence[str], since: int) -> pa.Table:
        return self._table.read(columns, [(self._key, ">=", since), *of_newest_epoch(self.time_epoch)])

    def _unseen(self, rows: pa.Table, newest_key: int) -> pa.Table:
        """These rows without those that were seen: of the newest key so far, and of a batch that was seen."""
        edge = np.flatnonzero(rows[self._key].to_numpy() == newest_key)
        batches = zip(*(rows[name].take(edge).to_pylist() for name in _BATCH), strict=True)
        seen = [place for place, batch in zip(edge, batches, strict=True) if batch in self._seen_batches]
        return rows.take(np.delete(np.arange(rows.num_rows), seen)) if seen else rows

    def _note(self, rows: pa.Table) -> None:
        """Remember up to where rows were seen."""
        if not rows.num_rows:
            return
        keys = rows[self._key].to_numpy()
        newest_key = int(keys.max())
        if newest_key != self._newest_key:
            self._seen_batches = set()
        newest = rows.take(np.flatnonzero(keys == newest_key))
        self._seen_batches |= {*zip(*(newest[name].to_pylist() for name in _BATCH), strict=True)}
        self._newest_key = newest_key
