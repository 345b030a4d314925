"""What is needed of a table: to read what is stored and, for the job that writes it, guarded appends."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:  # some commands read by this port's conditions and load no pyarrow
    import pyarrow as pa

Condition: TypeAlias = tuple[str, str, Any]
"""(column, operator, value) with an operator of =, !=, <, <=, >, >=, in, not in. All of a list must hold."""


class Instant(NamedTuple):
    """An instant of event time; a later one is larger."""

    time_epoch: int
    evaluated_at_ms: int

    @property
    def conditions(self) -> list[Condition]:
        """Of the rows that were evaluated at it."""
        return [("evaluated_at_ms", "=", self.evaluated_at_ms), *self._of_epoch]

    def since(self, span_ms: int) -> list[Condition]:
        """Of the rows of its epoch that were evaluated at it, or so long before it."""
        return [("evaluated_at_ms", ">=", self.evaluated_at_ms - span_ms), *self._of_epoch]

    @property
    def _of_epoch(self) -> list[Condition]:
        # In rows of before there were epochs, epoch 0 is null. If it is the newest one, there is no other.
        return [("time_epoch", "=", self.time_epoch)] if self.time_epoch else []


class TableReader(Protocol):
    """One table that can be read at its newest version; an adapter may be shared between threads."""

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> "pa.Table":
        """The newest rows, in no order.

        Args:
            columns: which ones, in which order; None = all.
            where: conditions that must all hold. Conditions on `date` (a `datetime.date`) skip whole partitions.
        """
        ...

    def newest_value(self, column: str) -> int | None:
        """The largest value of an INT64 column that has statistics; None for a table without rows.

        Reads no rows, so it costs the same for a table of any size.
        """
        ...

    def newest_instant(self) -> Instant | None:
        """The newest instant that a row was evaluated at, in a table with `evaluated_at_ms`; None without rows.

        Reads next to no rows, so it costs the same for a table of any size.
        """
        ...

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> "pa.Table":
        """For each combination of keys the row with the largest `order`, in no order.

        Holds in memory only what it returns, so it may go over a large table.

        Args:
            keys: columns that tell the combinations apart.
            order: an INT64 column; of each combination no two rows have the same value.
            columns: columns of the result besides `order`.
            where: conditions that must all hold.

        Returns:
            `order`, then `columns`.
        """
        ...


class TableSlices(Protocol):
    """One version of a table, read by ranges of one of its INT64 columns of milliseconds or sequence numbers."""

    @property
    def version(self) -> int:
        """The version."""
        ...

    def read(self, columns: Sequence[str], start_ms: int, end_ms: int) -> "pa.Table":
        """The rows of a range, in no order: `start_ms` is inclusive, `end_ms` exclusive."""
        ...

    def first_time(self, start_ms: int, end_ms: int, where: Sequence[Condition] = ()) -> int | None:
        """The smallest value of a row in a range that meets all conditions; None if no row does."""
        ...


class RolledTable(TableReader, Protocol):
    """A table that is rolled up."""

    def oldest_value(self, column: str) -> int | None:
        """The smallest value of an INT64 column that has statistics; None for a table without rows."""
        ...

    def slices(self, column: str, dictionaries: Sequence[str] = (), version: int | None = None) -> TableSlices:
        """One version, by ranges of a column.

        Args:
            column: The column; it has statistics.
            dictionaries: Columns of texts that may come as dictionaries.
            version: The version; None = the newest.
        """
        ...


class TableWriter(TableReader, Protocol):
    """One table, written by one job; an adapter may be shared between threads.

    Versions are Delta's transaction versions: each commit records a number for one or more app ids, and these numbers
    only grow. Under the job's own app id every commit records the driver's epoch. A driver raises the epoch when it
    starts. From then on the appends of an older driver are refused.
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

    def append(self, rows: "pa.Table", versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Append rows, with the versions and the metadata, in one commit.

        The first app id of `versions` guards the rows. If its recorded version is equal to the given one or higher,
        the rows were written before, and nothing happens. So an append can be repeated after a crash.

        Args:
            rows: columns of the table. Without rows there is no commit, and neither the guard nor the epoch is
                checked.
            versions: app id to version, at least one; the adapter adds the epoch.
            metadata: facts about the rows, stored in the commit; `commit_metadata` reads them.

        Returns:
            True if this call has written the rows, or if there were no rows. False if they were in the table already.

        Raises:
            EpochNotRaised: before the first `raise_epoch`.
            Fenced: another driver has raised the epoch.
            VersionWentBack: the guard has a lower version, but another app id has an equal or higher one.
            LostRace: other commits came first at every attempt.
            RowsRefused: the rows break the schema.
            TableUnwritable: the store refused.
        """
        ...

    def is_fenced(self) -> bool:
        """Whether another driver has raised the epoch since this writer did; False before the first `raise_epoch`."""
        ...

    def recorded_version(self, app_id: str) -> int | None:
        """The newest version recorded for an app id; None if there is none."""
        ...

    def commit_metadata(self, limit: int) -> list[dict[str, str]]:
        """The metadata of the appends among the last `limit` commits, newest first.

        Each element has the metadata given to `append` and the key `versions`: a JSON object of the versions that the
        commit recorded.
        """
        ...
