"""The history of the quotas: every version with who, when, why and what it changed; the version at an instant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.tables.errors import TableMissing, VersionGone
from pipeline.tables.quotas.commits import QuotaCommit
from pipeline.tables.quotas.diff import QuotaDifference, differences
from pipeline.tables.quotas.table import QuotaTable, QuotaTableState


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
        VersionGone: The instant is before the oldest version that is kept.
    """
    commits = table.history()
    for commit in commits:
        if commit.committed_at <= instant:
            return commit.version
    raise VersionGone(table.uri, instant, commits[-1].version, commits[-1].committed_at)


def _kept(table: QuotaTable, version: int) -> QuotaTableState | None:
    try:
        return table.read(version) if version >= 0 else None
    except TableMissing:
        return None
