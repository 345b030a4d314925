"""What the job asks of a table it writes: guarded appends, and reading back what is stored."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

Condition: TypeAlias = tuple[str, str, Any]
"""(column, operator, value) with an operator of =, !=, <, <=, >, >=, in, not in; conditions of a list all hold."""


class TableWriter(Protocol):
    """One table, written by one job; an adapter may be shared between threads.

    Versions are Delta's transaction versions: numbers that a commit records for an app id, which only grow.
    The job's own app id records the driver's epoch with every commit. A driver raises the epoch at its start;
    from then on an older driver's appends are refused.
    """

    @property
    def version(self) -> int:
        """The newest version of the table."""
        ...

    def raise_epoch(self, epoch: int) -> None:
        """Record a new driver epoch by a commit without rows.

        Args:
            epoch: above every epoch recorded so far.

        Raises:
            Fenced: an equal or higher epoch is recorded.
            LostRace: other commits came first at every attempt.
            TableUnwritable: the store refused.
        """
        ...

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Append rows, with the versions and the metadata, in one commit.

        The first app id of `versions` guards the rows: if its recorded version is not below the one given,
        the rows were written before and nothing happens. So doing it again after a crash does no harm.

        Args:
            rows: columns of the table. Without rows there is no commit, and neither the guard nor the epoch is
                looked at.
            versions: app id to version, at least one; the epoch is added.
            metadata: facts about the rows, kept with the commit (`commit_metadata` reads them).

        Returns:
            True if the rows are in the table now through this call, or there were none; False if they were
            skipped.

        Raises:
            EpochNotRaised: before the first `raise_epoch`.
            Fenced: another driver has raised the epoch.
            VersionWentBack: an app id after the first has an equal or higher version, though the first has
            not.
            LostRace: other commits came first at every attempt.
            RowsRefused: the rows break the schema.
            TableUnwritable: the store refused.
        """
        ...

    def recorded_version(self, app_id: str) -> int | None:
        """The newest version recorded for an app id; None if there is none."""
        ...

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """The newest rows, in no order.

        Args:
            columns: which, in which order; None = all.
            where: conditions that all hold; conditions on `date` (a `datetime.date`) skip whole partitions.
        """
        ...

    def commit_metadata(self, limit: int) -> list[dict[str, str]]:
        """The metadata of the newest appends, newest first: those among the last `limit` commits of any kind.

        Besides the metadata given to `append` each holds `versions`, a JSON object of the versions of its
        commit.
        """
        ...
