"""Finds the edit that set a bound which a version of the quota table has."""

from dataclasses import dataclass
from typing import Final

from pipeline.tables.errors import TableMissing
from pipeline.tables.quotas.commits import QuotaCommit
from pipeline.tables.quotas.table import QuotaTable

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
