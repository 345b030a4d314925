"""What is needed of a table: its address, to read what is stored and, for the job that writes it, guarded appends.

An address is a folder on this machine, or a URI of an object store.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from pipeline.command_line import command_text
from pipeline.errors import Conflict, PipelineError, Refused, TableMissing

if TYPE_CHECKING:
    import pyarrow as pa


QUOTAS: Final = "quotas"
"""The name of the quota table."""

EDITED: Final = (QUOTAS, "tenants")
"""The names of the tables that operators edit."""


def local_file(root: str, name: str) -> Path | None:
    """A file next to the tables in a folder of this machine; None if they lie elsewhere, or if there is none yet."""
    return Path(root) / name if is_local(root) and Path(root).is_dir() else None


def table_uri(root: str, name: str) -> str:
    """Address of a table under a root: a folder, `s3://…`, `abfss://…`."""
    return f"{root.rstrip('/')}/{name}"


def is_local(address: str) -> bool:
    """Whether an address is a folder of this machine, not a URI such as `s3://…`."""
    return "://" not in address


def full_address(address: str) -> str:
    """The address as it is valid in every working folder: an absolute path, or the URI as it is."""
    return str(Path(address).absolute()) if is_local(address) else address


def creating(table: str) -> str:
    """A command that creates a table."""
    return command_text("tables", "create", "--tables", full_address(table).rpartition("/")[0])


def creating_elsewhere(table: str) -> str:
    """A command that creates tables under another root, next to that of a table."""
    return command_text("tables", "create", "--tables", full_address(table).rpartition("/")[0] + "-new")


def looking_at(table: str) -> str:
    """How to see rights and free space of a local table; for others, what to look at there."""
    if not is_local(table):
        return command_text("doctor")
    path = quote(full_address(table))
    return f"ls -ld {path}; df -h {path}"


def table_missing(table: str, version: int | None = None, newest_version: int | None = None) -> TableMissing:
    """The error of an address without a table (no `version`), or of a table without this version."""
    if version is None:
        fix = f"correct --tables or --config, or create new tables: {creating(table)}"
        return TableMissing(f"no Delta table at {full_address(table)}", fix, exit_code=2)
    is_future = newest_version is not None and version > newest_version
    newest = "" if newest_version is None else f": the newest is {newest_version}"
    kept = "" if is_future or newest_version is None else f", and version {version} is no longer kept"
    name = table.rpartition("/")[2]
    listed = command_text(name if name in EDITED else QUOTAS, "history")
    return TableMissing(
        f"no version {version} of {full_address(table)}{newest}{kept}", f"name one of these: {listed}", 3
    )


Condition: TypeAlias = tuple[str, str, Any]
"""(column, operator, value) with an operator of =, !=, <, <=, >, >=, in, not in. All of a list must hold.

In questions of `StoredTable` a value may be None with the operators `is` and `is not`, and the condition
("client_id", "holds", name) finds the records of `throttle_events` that name a client-id, as
`schemas.throttle_record.holds` does.
"""


def of_newest_epoch(time_epoch: int) -> list[Condition]:
    """Choose the rows of the newest epoch of a table: all rows while that is the first one."""
    return [("time_epoch", "=", time_epoch)] if time_epoch else []


UNDO_OTHERS: Final = 'undo what others have changed: see "A table that others have changed" in docs/runbook.md'


class TableUnreadable(PipelineError):
    """A table cannot be read; `is_file_missing` if a data file is not there, perhaps because it was cleaned away."""

    def __init__(
        self, table: str, cause: str, fix: str | None = None, *, is_file_missing: bool = False, exit_code: int = 1
    ) -> None:
        self.is_file_missing = is_file_missing
        fix = fix or f"see what is there and who may read it: {looking_at(table)}"
        super().__init__(f"{table} cannot be read: {cause}", fix, exit_code)


class TableOfAnotherBuild(PipelineError):
    """A table lacks columns that kquota needs: an earlier build made it, or others have taken the columns away."""

    exit_code = 5

    def __init__(self, table: str, lacking: Sequence[str], fix: str | None = None) -> None:
        self.table, self.lacking = table, lacking
        fix = fix or f"start with new tables under another root: {creating_elsewhere(table)}"
        super().__init__(
            f"{table} lacks {', '.join(lacking)}: an earlier build has made it, or others have changed it", fix
        )


class TableUnwritable(PipelineError):
    """The store refused a write, for example because of permissions, a full disk or an unreachable service."""

    def __init__(self, table: str, cause: str) -> None:
        fix = f"see who may write there and what is free: {looking_at(table)}"
        if "Read-only file system" in cause:
            fix = f"see why its disk takes no writes: findmnt --target {quote(full_address(table))}"
        super().__init__(f"{table} cannot be written: {cause}", f"nothing was written; {fix}")


def rows_refused(table: str, cause: str) -> Refused:
    """The error of rows that do not fit a table's schema or break one of its CHECK constraints."""
    fix = f"none of them was written: give each row the columns and types of the table; if it has limits, {UNDO_OTHERS}"
    return Refused(f"rows do not fit the schema and constraints of {table}: {cause}", fix)


def lost_race(table: str, attempts: int, newest: str = "") -> Conflict:
    """The error of a commit that others came before at every attempt; `newest` describes the newest of theirs."""
    fix = "nothing was written; repeat it when nothing else writes to the table"
    theirs = newest and f", the newest {newest}"
    often = "once" if attempts == 1 else f"{attempts} times"
    return Conflict(f"a commit to {table} failed {often} because other commits came first{theirs}", fix)


def tables_of_another_job(root: str, job: str, owner: str) -> Conflict:
    """The error of tables that a job of another name has written."""
    fix = f"start with --job {owner}, or with --tables and --checkpoint of its own"
    return Conflict(f"tables {root} belong to job {owner!r}, not to {job!r}", fix)


class Instant(NamedTuple):
    """An instant of event time; a later one is larger."""

    time_epoch: int
    evaluated_at_ms: int

    @property
    def conditions(self) -> list[Condition]:
        """Choose the rows that were evaluated at it, if its epoch is the newest."""
        return [("evaluated_at_ms", "=", self.evaluated_at_ms), *of_newest_epoch(self.time_epoch)]

    def since(self, span_ms: int) -> list[Condition]:
        """Choose the rows of its epoch, which is the newest, that were evaluated at it, or so long before it."""
        return [("evaluated_at_ms", ">=", self.evaluated_at_ms - span_ms), *of_newest_epoch(self.time_epoch)]


HELD_TYPE: Final = "held_type"
TARGET: Final = ("cluster", "broker_id", "user", "client_id", HELD_TYPE)
"""Keys of `throttle_events`: whom a record holds (`schemas.throttle_record.Target`).

`HELD_TYPE` is not a column of the table. It is computed: the quota type of a record that holds a user, and null for
the record of a client.
"""


class TableReader(Protocol):
    """One table that can be read at its newest version; an adapter may be shared between threads.

    Where columns are asked for they come in that order, and None means all; all conditions must hold, and those on
    `date` (a `datetime.date`) skip whole partitions. Rows come in no order.
    """

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> "pa.Table":
        """The newest rows."""

    def newest_value(self, column: str) -> int | None:
        """The largest value of an INT64 column that has statistics; None without rows. Reads no rows."""

    def newest_instant(self) -> Instant | None:
        """The newest `evaluated_at_ms` of a row, with its epoch; None without rows. Reads next to no rows."""

    def last_of_each(
        self, keys: Sequence[str], order: str, among: Sequence[Condition] = (), where: Sequence[Condition] = ()
    ) -> "pa.Table":
        """For each combination of keys the row with the largest `order`, with all columns.

        Args:
            keys: Columns, or those of `TARGET`; null is a value as any other.
            order: An INT64 column; no two rows have the same value.
            among: Conditions on the rows of which the last one counts.
            where: Conditions on the row that was found: it is left out if it does not meet them.
        """


class TableWriter(TableReader, Protocol):
    """One table, written by one job; an adapter may be shared between threads.

    Versions are Delta's transaction versions: each commit records a number for one or more app ids, and these numbers
    only grow. Under the job's own app id every commit records the driver's epoch. A driver raises the epoch when it
    starts. From then on the appends of an older driver are refused.
    """

    @property
    def table_id(self) -> str:
        """The table's id, which it has got when it was made: no other table has it, but for a copy of the files."""

    def raise_epoch(self, epoch: int) -> None:
        """Record a new driver epoch by a commit without rows; `Conflict` if an equal or higher one is recorded."""

    def append(self, rows: "pa.Table", versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Append rows, with the versions and the metadata, in one commit. False if they were in the table before.

        The first app id of `versions` guards the rows. If its recorded version is equal to the given one or higher, the
        rows were written before, and nothing happens. So an append can be repeated after a crash. Without rows there is
        no commit, and neither the guard nor the epoch, which the adapter adds to `versions`, is checked.

        Raises:
            PipelineError: before the first `raise_epoch`; or another app id has reached its version alone.
            Conflict: another driver has raised the epoch.
            Refused: the rows break the schema.
        """

    def replace(self, rows: "pa.Table", metadata: Mapping[str, str]) -> None:
        """Put these rows in place of all others, with the metadata, in one commit; also none, which makes a commit too.

        It is tried once. For a table that is a picture of now, a newer picture is better than a second try.

        Raises:
            PipelineError: before the first `raise_epoch`.
            Conflict: another driver has raised the epoch, or another commit came first. Nothing was replaced.
            Refused: the rows break the schema.
        """

    def is_fenced(self) -> bool:
        """Whether another driver has raised the epoch since this writer did; False before the first `raise_epoch`."""

    def recorded_version(self, app_id: str) -> int | None:
        """The newest version recorded for an app id; None if there is none."""

    def commit_metadata(self, limit: int) -> list[dict[str, str]]:
        """The metadata of the appends among the last `limit` commits, newest first.

        Each has the key `versions`, too: a JSON object of the versions that the commit recorded.
        """


# The rules of a guarded append, without any I/O, for all adapters of `TableWriter`.


def is_written(table: str, versions: Mapping[str, int], recorded: Callable[[str], int | None]) -> bool:
    """Whether the rows of an append are in the table already: the guard, the first app id, has reached its version.

    `recorded` gives the version of an app id, None without one. `PipelineError` if another app id has reached its own,
    and the guard has not.
    """
    if not versions:
        message = "an append names no app id to guard it"
        raise ValueError(message)
    guard, *others = versions
    if _has_reached(recorded(guard), versions[guard]):
        return True
    for app_id in others:
        found = recorded(app_id)
        if _has_reached(found, versions[app_id]):
            message = f"version {versions[app_id]} of '{app_id}' is not above {found}, which {table} has recorded"
            raise PipelineError(message, "restart the job; it continues after the versions in the table")
    return False


def checked_epoch(table: str, epoch: int | None, recorded_epoch: int | None) -> int:
    """The epoch of this driver; `Conflict` if a higher one is recorded, `PipelineError` if it has raised none yet."""
    if epoch is None:
        message = f"an append to {table} came before the driver had raised its epoch"
        raise PipelineError(message, "raise the epoch when the driver starts")
    if is_fenced(epoch, recorded_epoch):
        raise _fenced(table, epoch, recorded_epoch)
    return epoch


def is_fenced(epoch: int | None, recorded_epoch: int | None) -> bool:
    """Whether a higher epoch than this driver's is recorded; a driver without an epoch is not fenced."""
    return epoch is not None and _has_reached(recorded_epoch, epoch + 1)


def refuse_taken_epoch(table: str, epoch: int, recorded_epoch: int | None) -> None:
    """Refuse (`Conflict`) an epoch that is not above the recorded one. An equal one is another driver's choice."""
    if _has_reached(recorded_epoch, epoch):
        raise _fenced(table, epoch, recorded_epoch)


def commit_note(metadata: Mapping[str, str], versions: Mapping[str, int]) -> str:
    """The user metadata of a commit: one JSON object, readable in `DESCRIBE HISTORY`."""
    return json.dumps({**metadata, "versions": json.dumps(dict(versions))}, ensure_ascii=False)


def parse_commit_note(user_metadata: object) -> dict[str, str] | None:
    """Read what `commit_note` wrote; None if another program wrote the user metadata."""
    try:
        note = json.loads(user_metadata) if isinstance(user_metadata, str) else None
    except ValueError:
        return None
    return note if isinstance(note, dict) and "versions" in note else None


def _has_reached(recorded: int | None, version: int) -> bool:
    return recorded is not None and recorded >= version


def _fenced(table: str, epoch: int, recorded_epoch: int | None) -> Conflict:
    return Conflict(
        f"another driver writes {table}: epoch {recorded_epoch} is recorded, this driver has {epoch}",
        "stop one of the two drivers; the one that started last keeps running",
    )
