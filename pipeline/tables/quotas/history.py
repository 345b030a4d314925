"""The history of an edited table: each version with who, when, why and what changed; edits and owners in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal

from pipeline.errors import NotFound, TableMissing
from pipeline.tables.quotas.edit import FORGIVEN, QUOTA_ROWS, Key, RowKind, shown
from pipeline.tables.quotas.table import EditedTable, QuotaCommit, QuotaTable, QuotaTableState, State, TableState
from quota.entity import Owners

# The differences between two versions of a table, computed from their rows.

Action = Literal["add", "alter", "remove"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference in one column of one row; None = not set. An added or removed row has one per set column."""

    action: Action
    kind: RowKind
    key: Key
    column: str
    old: Any
    new: Any

    @property
    def label(self) -> str:
        """The row in words."""
        return self.kind.label(*self.key)

    def as_row(self) -> dict[str, Any]:
        """The fields by name, for programs."""
        names = dict(zip(self.kind.keys, self.key, strict=True))
        return {"action": self.action, **names, "column": self.column, "old": self.old, "new": self.new}

    def value_text(self) -> str:
        """`producer_byte_rate 1024 (1.0 kB/s) → 2048 (2.0 kB/s)`."""
        old, new = (shown(self.column, value) or "none" for value in (self.old, self.new))
        return f"{self.column} {old} → {new}"


def differences(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]], kind: RowKind = QUOTA_ROWS
) -> list[Difference]:
    """Every difference, sorted by key, then in the order of `RowKind.settings`.

    If a key has several rows (SQL can write them), only the last one counts.
    """
    old, new = ({kind.key(row): row for row in rows} for rows in (before, after))
    found: list[Difference] = []
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key, {}), new.get(key, {})
        if was == now:
            continue
        action: Action = "add" if not was else "remove" if not now else "alter"
        pairs = {column: (was.get(column), now.get(column)) for column in kind.settings}
        changed = {column: pair for column, pair in pairs.items() if pair[0] != pair[1]}
        if action != "alter":
            _drop_unset(changed, kind)
        found += [Difference(action, kind, key, column, *pair) for column, pair in changed.items()]
    return found


def _drop_unset(changed: dict[str, tuple[Any, Any]], kind: RowKind) -> None:
    """Leave out what an added or removed row has not set, unless it has set nothing else."""
    unset = [column for column in changed if kind.unset.get(column, ()) in changed[column]]
    for column in unset:
        if len(changed) > 1:
            del changed[column]


def changes_between(before: TableState, after: TableState) -> list[Difference]:
    """List every difference between two versions, including debts that were forgiven; leave out what has expired."""
    found = differences(before.rows, after.rows, after.kind)
    if isinstance(before, QuotaTableState) and isinstance(after, QuotaTableState):
        found += _forgiven_between(before, after)
    return sorted(found, key=lambda one: one.key)


def _forgiven_between(before: QuotaTableState, after: QuotaTableState) -> Iterator[Difference]:
    known = {(row["user"], row["client_id"]) for row in after.rows} | before.forgiven.keys()
    for entity, until_ms in after.forgiven.items():
        was = before.forgiven.get(entity)
        if until_ms != was:
            yield Difference("alter" if entity in known else "add", after.kind, entity, FORGIVEN, was, until_ms)


def row_texts(changes: Iterable[Difference]) -> list[str]:
    """One text per row, with its values: `user-principal 'bob': producer_byte_rate none → 999 B/s, mode …`."""
    values: dict[str, list[str]] = {}
    for change in changes:
        values.setdefault(change.label, []).append(change.value_text())
    return [f"{row}: {', '.join(texts)}" for row, texts in values.items()]


@dataclass(frozen=True, slots=True)
class QuotaVersion:
    """One version of an edited table, what it changed, and the table's mode before and after; `tenants` has none.

    There are no changes if the version before is no longer kept.
    """

    commit: QuotaCommit
    changes: Sequence[Difference]
    mode: tuple[str, str] | None


def versions(table: EditedTable[State], limit: int) -> Iterator[QuotaVersion]:
    """The newest `limit` versions, newest first, as far back as both log and files are kept."""
    after: State | None = None
    for commit in table.history(limit):
        after = after or table.read(commit.version)
        before = _kept(table, commit.version - 1)
        if before is None:
            yield QuotaVersion(commit, (), modes(after, after))
            return
        yield QuotaVersion(commit, changes_between(before, after), modes(before, after))
        after = before


def modes(before: TableState, after: TableState) -> tuple[str, str] | None:
    """The mode of the table at two versions; None for `tenants`, which has none."""
    if isinstance(before, QuotaTableState) and isinstance(after, QuotaTableState):
        return before.mode, after.mode
    return None


def version_at(table: EditedTable[State], instant: datetime) -> int:
    """The version that was the newest one at an instant; `NotFound` if that is before the oldest that is kept."""
    commits = table.history()
    for commit in commits:
        if commit.committed_at <= instant:
            return commit.version
    oldest = commits[-1]
    first = f"v{oldest.version} of {oldest.committed_at.isoformat()}"
    message = f"{instant.isoformat()} is before the oldest version of {table.uri}, {first}"
    raise NotFound(message, f"give {oldest.committed_at:%Y-%m-%dT%H:%M:%S} or later")


def _kept(table: EditedTable[State], version: int) -> State | None:
    try:
        return table.read(version) if version >= 0 else None
    except TableMissing:
        return None


_VERSIONS_LOOKED_AT: Final = 500


@dataclass(frozen=True, slots=True)
class QuotaOrigin:
    """The edit that set a bound; None = no bound, and no commit if the log no longer has it.

    If older versions cannot be read, the bound may be older than `version`, and `is_exact` is False.
    """

    version: int
    before: float | None
    after: float | None
    commit: QuotaCommit | None
    is_exact: bool


def origin_of(table: QuotaTable, version: int, user: str, client_id: str, quota_type: str) -> QuotaOrigin:
    """The newest edit up to a version that changed one bound of one entity; `TableMissing` if that is not readable."""

    def bound_at(at: int) -> float | None:
        rows = table.read(at).rows
        found = (row[quota_type] for row in rows if (row["user"], row["client_id"]) == (user, client_id))
        return next(found, None)

    after = bound_at(version)
    for earlier in range(version - 1, max(version - 1 - _VERSIONS_LOOKED_AT, -1), -1):
        try:
            before = bound_at(earlier)
        except TableMissing:
            break
        if before != after:
            return QuotaOrigin(earlier + 1, before, after, _commit(table, earlier + 1), is_exact=True)
        version = earlier
    return QuotaOrigin(version, None, after, _commit(table, version), is_exact=version == 0)


def _commit(table: QuotaTable, version: int) -> QuotaCommit | None:
    return next((commit for commit in table.history(None) if commit.version == version), None)


_KEPT_VERSIONS: Final = 16


def owners_in(table: QuotaTable) -> Callable[[int], Owners]:
    """Finds the owners of a version; of one that can no longer be read, none. For one thread."""

    @lru_cache(_KEPT_VERSIONS)
    def owners_at(version: int) -> Owners:
        try:
            return Owners(table.read(version).rows)
        except TableMissing:
            return Owners(())

    return owners_at
