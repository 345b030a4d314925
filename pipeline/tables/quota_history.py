"""What happened to the quotas: every version with who, when, why and what it changed; the version of an instant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.tables.errors import TableMissing, VersionGone
from pipeline.tables.quota_diff import QuotaDifference, differences
from pipeline.tables.quota_table import QuotaCommit, QuotaTable, QuotaTableState


@dataclass(frozen=True, slots=True)
class QuotaVersion:
    """One version and what it changed.

    Attributes:
        commit: version, time and audit.
        changes: against the version before; empty if that one is gone.
        mode: the table's mode before and after; equal if the version did not change it.
    """

    commit: QuotaCommit
    changes: Sequence[QuotaDifference]
    mode: tuple[str, str]


def versions(table: QuotaTable, limit: int) -> Iterator[QuotaVersion]:
    """The newest versions, newest first, as far back as both log and files are kept.

    Args:
        table: The quota table.
        limit: How many.
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
    """The version that was the newest at an instant.

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
