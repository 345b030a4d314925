"""What is needed of a table: to read what is stored and, for the job that writes it, guarded appends."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from pipeline.errors import Conflict, PipelineError, Refused
from pipeline.tables.address import looking_at

if TYPE_CHECKING:  # some commands read by this port's conditions and load no pyarrow
    import pyarrow as pa

Condition: TypeAlias = tuple[str, str, Any]
"""(column, operator, value) with an operator of =, !=, <, <=, >, >=, in, not in. All of a list must hold.

None among the values of `in` stands for null.
"""


def of_epoch(time_epoch: int) -> Condition:
    """Of the rows of a time epoch. In rows of before there were epochs, epoch 0 is null."""
    return ("time_epoch", "=", time_epoch) if time_epoch else ("time_epoch", "in", (0, None))


def of_newest_epoch(time_epoch: int) -> list[Condition]:
    """Of the rows of the newest epoch of a table: all rows while that is the first one."""
    return [of_epoch(time_epoch)] if time_epoch else []


class TableUnreadable(PipelineError):
    """A table can not be read.

    Attributes:
        is_file_missing: a data file of the table is not there, for example because it was cleaned away.
    """

    def __init__(self, table: str, cause: str, *, is_file_missing: bool = False) -> None:
        self.is_file_missing = is_file_missing
        fix = f"see what is there and who may read it: {looking_at(table)}"
        super().__init__(f"{table} can not be read: {cause}", fix)


class TableUnwritable(PipelineError):
    """The store refused a write, for example because of permissions, a full disk or an unreachable service."""

    def __init__(self, table: str, cause: str) -> None:
        fix = f"nothing was written; see who may write there and what is free: {looking_at(table)}"
        super().__init__(f"{table} can not be written: {cause}", fix)


def rows_refused(table: str, cause: str) -> Refused:
    """The error of rows that do not fit a table's schema or break one of its CHECK constraints."""
    fix = "none of them was written: give each row the columns, types and limits of the table"
    return Refused(f"rows do not fit the schema and constraints of {table}: {cause}", fix)


def lost_race(table: str, attempts: int) -> Conflict:
    """The error of a commit that others came before at every attempt."""
    fix = "find what else writes to the table; only the job and its own maintenance may write to it"
    return Conflict(f"a commit to {table} failed {attempts} times because other commits came first", fix)


class Instant(NamedTuple):
    """An instant of event time; a later one is larger."""

    time_epoch: int
    evaluated_at_ms: int

    @property
    def conditions(self) -> list[Condition]:
        """Of the rows that were evaluated at it, if its epoch is the newest."""
        return [("evaluated_at_ms", "=", self.evaluated_at_ms), *of_newest_epoch(self.time_epoch)]

    def since(self, span_ms: int) -> list[Condition]:
        """Of the rows of its epoch, which is the newest, that were evaluated at it, or so long before it."""
        return [("evaluated_at_ms", ">=", self.evaluated_at_ms - span_ms), *of_newest_epoch(self.time_epoch)]


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
            keys: columns that distinguish the combinations.
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

    def slices(
        self,
        column: str,
        dictionaries: Sequence[str] = (),
        version: int | None = None,
        time_epoch: int | None = None,
    ) -> TableSlices:
        """One version, by ranges of a column.

        Args:
            column: The column; it has statistics.
            dictionaries: Columns of texts that may come as dictionaries.
            version: The version; None = the newest.
            time_epoch: Only the rows of this time epoch; None = all.
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
            Conflict: an equal or higher epoch is recorded.
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
            PipelineError: before the first `raise_epoch`.
            Conflict: another driver has raised the epoch.
            PipelineError: the guard has a lower version, but another app id has an equal or higher one.
            Refused: the rows break the schema.
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
