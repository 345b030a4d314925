"""The history of the quotas: each version with who, when, why and what changed; versions, edits and owners in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal

from pipeline.errors import NotFound, TableMissing
from pipeline.tables.quotas.edit import FORGIVEN, LABELS
from pipeline.tables.quotas.table import QuotaCommit, QuotaTable, QuotaTableState
from quota.entity import QUOTA_TYPES, Owners, label
from quota.units import bound_text

# The differences between two versions of the quota table, computed from their rows.

Action = Literal["add", "alter", "remove"]
COLUMNS: Final = (*QUOTA_TYPES, *LABELS, FORGIVEN)


@dataclass(frozen=True, slots=True)
class QuotaDifference:
    """A difference in one column of one entity; None = not set. An added or removed row has one per set column."""

    action: Action
    user: str
    client_id: str
    column: str
    old: float | str | None
    new: float | str | None

    def as_row(self) -> dict[str, Any]:
        """The fields by name, for programs."""
        return asdict(self)

    def value_text(self) -> str:
        """`producer_byte_rate 1024 (1.0 kB/s) → 2048 (2.0 kB/s)`."""
        old, new = (shown(self.column, value) or "none" for value in (self.old, self.new))
        return f"{self.column} {old} → {new}"


def shown(column: str, value: float | str | None) -> str | None:
    """A value as people read it: a bound exactly and with its unit, an instant in UTC, other values as they are."""
    if column == FORGIVEN and value is not None:
        return datetime.fromtimestamp(int(value) // 1000, UTC).isoformat()
    return bound_text(column, value) if isinstance(value, float | int) else value


def differences(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[QuotaDifference]:
    """Every difference, sorted by entity, then in the order of `COLUMNS`.

    If an entity has several rows (SQL can write them), only the last one counts.
    """
    old = {(row["user"], row["client_id"]): row for row in before}
    new = {(row["user"], row["client_id"]): row for row in after}
    found: list[QuotaDifference] = []
    for entity in sorted(old.keys() | new.keys()):
        was, now = old.get(entity, {}), new.get(entity, {})
        if was == now:
            continue
        action: Action = "add" if not was else "remove" if not now else "alter"
        pairs = {column: (was.get(column), now.get(column)) for column in COLUMNS}
        changed = {column: pair for column, pair in pairs.items() if pair[0] != pair[1]}
        # The default mode of a row is left out, unless it is the only column that is set.
        if action != "alter" and len(changed) > 1 and "enforce" in changed.get("mode", ()):
            del changed["mode"]
        found += [QuotaDifference(action, *entity, column, *pair) for column, pair in changed.items()]
    return found


def changes_between(before: QuotaTableState, after: QuotaTableState) -> list[QuotaDifference]:
    """List every difference between two versions, including debts that were forgiven; leave out what has expired."""
    known = {(row["user"], row["client_id"]) for row in after.rows} | before.forgiven.keys()
    forgiven = [
        QuotaDifference("alter" if entity in known else "add", *entity, FORGIVEN, before.forgiven.get(entity), until_ms)
        for entity, until_ms in after.forgiven.items()
        if until_ms != before.forgiven.get(entity)
    ]
    found = [*differences(before.rows, after.rows), *forgiven]
    return sorted(found, key=lambda one: (one.user, one.client_id))


def entity_texts(changes: Iterable[QuotaDifference]) -> list[str]:
    """One text per entity, with its values: `user-principal 'bob': producer_byte_rate none → 999 B/s, mode …`."""
    values: dict[str, list[str]] = {}
    for change in changes:
        values.setdefault(label(change.user, change.client_id), []).append(change.value_text())
    return [f"{entity}: {', '.join(texts)}" for entity, texts in values.items()]


@dataclass(frozen=True, slots=True)
class QuotaVersion:
    """One version of the quota table, what it changed, and the table's mode before and after.

    There are no changes if the version before is no longer kept.
    """

    commit: QuotaCommit
    changes: Sequence[QuotaDifference]
    mode: tuple[str, str]


def versions(table: QuotaTable, limit: int) -> Iterator[QuotaVersion]:
    """The newest `limit` versions, newest first, as far back as both log and files are kept."""
    after: QuotaTableState | None = None
    for commit in table.history(limit):
        after = after or table.read(commit.version)
        before = _kept(table, commit.version - 1)
        if before is None:
            yield QuotaVersion(commit, (), (after.mode, after.mode))
            return
        yield QuotaVersion(commit, changes_between(before, after), (before.mode, after.mode))
        after = before


def version_at(table: QuotaTable, instant: datetime) -> int:
    """The version that was the newest one at an instant; `NotFound` if that is before the oldest that is kept."""
    commits = table.history()
    for commit in commits:
        if commit.committed_at <= instant:
            return commit.version
    oldest = commits[-1]
    first = f"v{oldest.version} of {oldest.committed_at.isoformat()}"
    message = f"{instant.isoformat()} is before the oldest version of {table.uri}, {first}"
    raise NotFound(message, f"give {oldest.committed_at:%Y-%m-%dT%H:%M:%S} or later")


def _kept(table: QuotaTable, version: int) -> QuotaTableState | None:
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
