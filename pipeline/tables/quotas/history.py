"""The history of the quotas: each version with who, when, why and what changed; versions, edits and owners in it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal

from pipeline.errors import NotFound, TableMissing
from pipeline.tables.quotas.edit import LABELS
from pipeline.tables.quotas.source import QuotaVersions
from pipeline.tables.quotas.table import QuotaCommit, QuotaTable, QuotaTableState
from quota.entity import QUOTA_TYPES, Owners, label
from quota.units import bound_text

# The differences between two versions of the quota table, computed from their rows.

Action = Literal["add", "alter", "remove"]

COLUMNS: Final = (*QUOTA_TYPES, *LABELS)


@dataclass(frozen=True, slots=True)
class QuotaDifference:
    """A difference in one column of one entity.

    Attributes:
        action: whether the entity's row was added, altered or removed.
        user: "" = not part of the entity, `<default>` = the default user.
        client_id: likewise, for the client-id.
        column: the column. Of an added or removed row there is one difference per column that is set.
        old: value before; None = not set.
        new: value after; None = not set.
    """

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
    """A value as people read it: a bound exactly and with its unit, other values as they are."""
    return bound_text(column, value) if isinstance(value, float | int) else value


def differences(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[QuotaDifference]:
    """Every difference, sorted by entity, then in the order of `COLUMNS`.

    If an entity has several rows (SQL can write them), only the last one counts.
    """
    old = {(row["user"], row["client_id"]): row for row in before}
    new = {(row["user"], row["client_id"]): row for row in after}
    found: list[QuotaDifference] = []
    for entity in sorted(old.keys() | new.keys()):
        was, now = old.get(entity), new.get(entity)
        if was != now:
            found += _row_differences(entity, was, now)
    return found


def _row_differences(
    entity: tuple[str, str], was: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> list[QuotaDifference]:
    action: Action = "add" if was is None else "remove" if now is None else "alter"
    pairs = {column: (_value(was, column), _value(now, column)) for column in COLUMNS}
    changed = {column: pair for column, pair in pairs.items() if pair[0] != pair[1]}
    # The default mode of a row is left out, unless it is the only column that is set.
    if action != "alter" and len(changed) > 1 and "enforce" in changed.get("mode", ()):
        del changed["mode"]
    return [QuotaDifference(action, *entity, column, *pair) for column, pair in changed.items()]


def _value(row: Mapping[str, Any] | None, column: str) -> float | str | None:
    return None if row is None else row.get(column)


def entity_texts(changes: Iterable[QuotaDifference]) -> list[str]:
    """One text per entity, with its values: `user-principal 'bob': producer_byte_rate none → 999 B/s, mode …`."""
    values: dict[str, list[str]] = {}
    for change in changes:
        values.setdefault(label(change.user, change.client_id), []).append(change.value_text())
    return [f"{entity}: {', '.join(texts)}" for entity, texts in values.items()]


@dataclass(frozen=True, slots=True)
class QuotaVersion:
    """One version of the quota table and what it changed.

    Attributes:
        commit: version, time and audit of the commit.
        changes: differences from the version before; empty if that version is no longer kept.
        mode: the table's mode before and after; equal if this version did not change it.
    """

    commit: QuotaCommit
    changes: Sequence[QuotaDifference]
    mode: tuple[str, str]


def versions(table: QuotaTable, limit: int) -> Iterator[QuotaVersion]:
    """The newest versions, newest first, as far back as both log and files are kept.

    Args:
        table: The quota table.
        limit: The largest number of versions.
    """
    after: QuotaTableState | None = None
    for commit in table.history(limit):
        after = after or table.read(commit.version)
        before = _kept(table, commit.version - 1)
        if before is None:
            yield QuotaVersion(commit, (), (after.mode, after.mode))
            return
        yield QuotaVersion(commit, differences(before.rows, after.rows), (before.mode, after.mode))
        after = before


def version_at(table: QuotaTable, instant: datetime) -> int:
    """The version that was the newest one at an instant.

    Raises:
        NotFound: The instant is before the oldest version that is kept.
    """
    commits = table.history()
    for commit in commits:
        if commit.committed_at <= instant:
            return commit.version
    oldest = commits[-1]
    message = (
        f"{instant.isoformat()} is before the oldest version of {table.uri}, v{oldest.version} of "
        f"{oldest.committed_at.isoformat()}"
    )
    raise NotFound(message, f"give {oldest.committed_at:%Y-%m-%dT%H:%M:%S} or later")


def _kept(table: QuotaTable, version: int) -> QuotaTableState | None:
    try:
        return table.read(version) if version >= 0 else None
    except TableMissing:
        return None


# Finds the edit that set a bound which a version of the quota table has.

_VERSIONS_LOOKED_AT: Final = 500


@dataclass(frozen=True, slots=True)
class QuotaOrigin:
    """The edit that set a bound.

    Attributes:
        version: The version that the edit made. If older versions can not be read, the bound may be older than this.
        before: The bound before the edit; None for no bound.
        after: The bound after the edit; None for no bound.
        commit: When, by whom and why; None if the log no longer has the commit.
        is_exact: True if the edit itself was found.
    """

    version: int
    before: float | None
    after: float | None
    commit: QuotaCommit | None
    is_exact: bool


def origin_of(table: QuotaTable, version: int, user: str, client_id: str, quota_type: str) -> QuotaOrigin:
    """The newest edit up to a version that changed one bound of one entity.

    Args:
        table: The quota table.
        version: The version whose bound is asked for; the search goes back from it.
        user: User of the entity; `<default>` and "" as in the table.
        client_id: Client-id of the entity, likewise.
        quota_type: Quota type of the bound.

    Raises:
        TableMissing: The version can no longer be read.
    """

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


# The owners that the versions of the quota table name.

_KEPT_VERSIONS: Final = 16


class StoredOwners:
    """Reads owners from the quota table, version by version. For one thread.

    Args:
        table: The quota table.
    """

    def __init__(self, table: QuotaVersions) -> None:
        self._table = table
        self._cached = lru_cache(_KEPT_VERSIONS)(self._read)

    def at(self, version: int) -> Owners:
        """The owners of a version; of a version that can no longer be read, none.

        Raises:
            TableUnreadable: The table can not be read.
        """
        return self._cached(version)

    def _read(self, version: int) -> Owners:
        try:
            return Owners(self._table.read(version).rows)
        except TableMissing:
            return Owners(())
