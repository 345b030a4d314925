"""Which quotas were in force when."""

from bisect import bisect_right
from dataclasses import dataclass

from pipeline.tables.errors import TableMissing
from pipeline.tables.quota_source import QuotaSource
from pipeline.tables.quota_table import QuotaTable
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot


@dataclass(frozen=True, slots=True)
class Timeline:
    """Which quotas were in force when. Plain values: it goes to other processes.

    Attributes:
        from_ms: Begin of each, ascending; the first holds before it too.
        snapshots: The quotas of each.
    """

    from_ms: tuple[int, ...]
    snapshots: tuple[QuotaSnapshot, ...]

    def at(self, instant_ms: int) -> QuotaSnapshot:
        """The quotas in force at an instant."""
        return self.snapshots[max(bisect_right(self.from_ms, instant_ms) - 1, 0)]

    def version(self, version: int) -> QuotaSnapshot:
        """The quotas of a version of the table; the newest earlier one if that is not among them."""
        versions = [snapshot.version for snapshot in self.snapshots]
        return self.snapshots[max(bisect_right(versions, version) - 1, 0)]


def live_timeline(table: QuotaTable, source: QuotaSource, since_ms: int) -> Timeline:
    """The quotas that were in force in a range, by the times of their commits; invalid versions never were.

    Args:
        table: The quota table.
        source: Reads its versions.
        since_ms: Begin of the range: older versions are left out, but the one in force then.
    """
    in_force: list[tuple[int, QuotaSnapshot]] = []
    for commit in table.history(None):
        try:
            snapshot = source.at(commit.version)
        except (InvalidQuotas, TableMissing):
            continue
        committed_at_ms = round(commit.committed_at.timestamp() * 1000)
        in_force.append((committed_at_ms, snapshot))
        if committed_at_ms <= since_ms:
            break
    in_force.reverse()
    return Timeline(tuple(at_ms for at_ms, _ in in_force), tuple(snapshot for _, snapshot in in_force))
