"""Tables in memory, under the contract of `pipeline.tables.port.TableWriter`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.port import (
    HELD_TYPE,
    Condition,
    Instant,
    checked_epoch,
    commit_note,
    is_fenced,
    is_written,
    parse_commit_note,
    refuse_taken_epoch,
)

_COMPARED: Final[Mapping[str, Callable[[pa.ChunkedArray, Any], pa.ChunkedArray]]] = {
    **{"=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal},
    "in": pc.is_in,
}


@dataclass
class MemoryTable:
    """What several writers of one table share: its rows, the recorded versions, and a note for each commit.

    Attributes:
        name: Of the table.
        rows: All rows.
        versions: The newest version of each app id.
        notes: Of all commits, oldest first.
    """

    name: str
    rows: pa.Table
    versions: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: uuid4().hex)


class MemoryWriter:
    def __init__(self, table: MemoryTable, job: str) -> None:
        self._table = table
        self._job = job
        self._epoch: int | None = None

    @property
    def table_id(self) -> str:
        return self._table.id

    def raise_epoch(self, epoch: int) -> None:
        refuse_taken_epoch(self._table.name, epoch, self.recorded_version(self._job))
        self._commit({self._job: epoch}, {})
        self._epoch = epoch

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        if not rows.num_rows:
            return True
        epoch = checked_epoch(self._table.name, self._epoch, self.recorded_version(self._job))
        if is_written(self._table.name, versions, self.recorded_version):
            return False
        self._table.rows = pa.concat_tables([self._table.rows, rows.cast(self._table.rows.schema)])
        self._commit({**versions, self._job: epoch}, metadata)
        return True

    def replace(self, rows: pa.Table, metadata: Mapping[str, str]) -> None:
        epoch = checked_epoch(self._table.name, self._epoch, self.recorded_version(self._job))
        self._table.rows = rows.cast(self._table.rows.schema)
        self._commit({self._job: epoch}, metadata)

    def is_fenced(self) -> bool:
        return self._epoch is not None and is_fenced(self._epoch, self.recorded_version(self._job))

    def recorded_version(self, app_id: str) -> int | None:
        return self._table.versions.get(app_id)

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        rows = self._table.rows
        for column, operator, value in where:
            values = pa.array(value, rows[column].type) if operator == "in" else value
            rows = rows.filter(_COMPARED[operator](rows[column], values))
        return rows if columns is None else rows.select(list(columns))

    def last_of_each(
        self, keys: Sequence[str], order: str, among: Sequence[Condition] = (), where: Sequence[Condition] = ()
    ) -> pa.Table:
        last: dict[tuple[object, ...], int] = {}
        wanted = ({*keys, "quota_type", "client_id", order} - {HELD_TYPE}) & {*self._table.rows.column_names}
        for row in self.read(sorted(wanted), among).sort_by(order).to_pylist():
            values = row | {HELD_TYPE: row.get("quota_type") if row["client_id"] is None else None}
            last[tuple(values[key] for key in keys)] = row[order]
        return self.read(None, [*where, (order, "in", list(last.values()))])

    def newest_value(self, column: str) -> int | None:
        newest: int | None = pc.max(self._table.rows[column]).as_py()
        return newest

    def newest_instant(self) -> Instant | None:
        rows = self._table.rows
        instants = zip(rows["time_epoch"].to_pylist(), rows["evaluated_at_ms"].to_pylist(), strict=True)
        newest = max(instants, default=None)
        return None if newest is None else Instant(*newest)

    def commit_metadata(self, limit: int) -> list[dict[str, str]]:
        notes = (parse_commit_note(note) for note in self._table.notes[::-1][:limit])
        return [note for note in notes if note is not None]

    def _commit(self, versions: Mapping[str, int], metadata: Mapping[str, str]) -> None:
        self._table.versions.update(versions)
        self._table.notes.append(commit_note(metadata, versions))
