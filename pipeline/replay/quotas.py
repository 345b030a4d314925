"""The quotas of a replay: those that were in force, by time, or those of a file."""

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.tables.errors import TableMissing
from pipeline.tables.quotas.file_reading import from_text
from pipeline.text_file import read_text_file
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot

if TYPE_CHECKING:  # delta-rs is loaded only by those who have tables: `kquota simulate` has none
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.quotas.table import QuotaTable


@dataclass(frozen=True, slots=True)
class Timeline:
    """Which quotas were in force when. Plain values, so that it can be sent to other processes.

    Attributes:
        from_ms: When each snapshot came into force, ascending. The first one also holds before its time.
        snapshots: The quotas, one for each entry of `from_ms`.
    """

    from_ms: tuple[int, ...]
    snapshots: tuple[QuotaSnapshot, ...]

    def at(self, instant_ms: int) -> QuotaSnapshot:
        """The quotas in force at an instant."""
        return self.snapshots[max(bisect_right(self.from_ms, instant_ms) - 1, 0)]

    def version(self, version: int) -> QuotaSnapshot:
        """The quotas of a version of the table, or of the newest earlier version if that one is not here."""
        versions = [snapshot.version for snapshot in self.snapshots]
        return self.snapshots[max(bisect_right(versions, version) - 1, 0)]


def live_timeline(table: "QuotaTable", source: "QuotaSource", since_ms: int) -> Timeline:
    """The quotas that were in force in a range, by the times of their commits. Invalid versions are left out.

    Args:
        table: The quota table.
        source: Reads its versions.
        since_ms: Begin of the range. Of the older versions only the one in force at that time is kept.
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


def read_snapshot(path: Path, version: int) -> QuotaSnapshot:
    """The quotas of a file; formats as those of `snapshot_of_text`.

    Raises:
        UnreadableFile: It cannot be read.
        QuotaFileRefused: It does not hold valid quotas.
    """
    return snapshot_of_text(path, read_text_file("--quotas", path), version)


def snapshot_of_text(path: Path, text: str, version: int) -> QuotaSnapshot:
    """The quotas of a text, in one of the forms that `pipeline.tables.quotas.file_reading` reads.

    Args:
        path: The file it comes from, for the error.
        text: JSON or YAML.
        version: The version the snapshot gets.

    Raises:
        QuotaFileRefused: It does not hold valid quotas.
    """
    declared = from_text(text, str(path))
    rows = ({"user": one.user, "client_id": one.client_id, **one.bounds, **one.labels} for one in declared)
    return QuotaSnapshot.from_rows(rows, version)
