"""Errors of the tables.

PipelineError
└── tables
    ├── Fenced             another driver writes these tables now
    ├── LostRace           other commits came first at every attempt
    ├── VersionWentBack    a commit would set a recorded version back
    ├── EpochNotRaised     an append before the driver has raised its epoch
    ├── TableMissing       no table at the address
    ├── TableUnreadable    the store or the table's log can not be read
    ├── TableUnwritable    the store refused the write
    ├── RowsRefused        rows do not fit the table's schema or CHECK constraints
    ├── QuotaEditRefused   an edit that would leave an invalid quota table
    ├── QuotaFileRefused   a file does not hold valid quotas
    ├── QuotasLeftInvalid  an SQL statement has written rows that are no valid quotas
    ├── VersionIsAnother   the quota table is not at the version an edit is meant for
    ├── VersionGone        no version is kept that was in force at an instant
    └── QuotaTableBusy     another edit holds the lock of the quota table
"""

from collections.abc import Sequence
from datetime import datetime
from shlex import quote
from typing import Final

from pipeline.command_line import command_text
from pipeline.errors import PipelineError
from pipeline.tables.address import creating, full_address, looking_at
from quota.units import Mistake

_A_VALID_EDIT: Final = "set values like producer_byte_rate=1MB/s, request_percentage=50% or mode=shadow"


class Fenced(PipelineError):
    """Another driver has written to the table, with a higher epoch than ours or with the same one.

    Attributes:
        table: address of the table.
        epoch: the epoch of this driver.
        recorded_epoch: the epoch in the table.
    """

    exit_code = 4

    def __init__(self, table: str, epoch: int, recorded_epoch: int) -> None:
        self.table = table
        self.epoch = epoch
        self.recorded_epoch = recorded_epoch
        super().__init__(
            f"'epoch' of {table} must be {epoch}, this driver's; got {recorded_epoch} of another driver",
            "stop one of the two drivers; the one that started last keeps running",
        )


class LostRace(PipelineError):
    """Other commits came first at every attempt.

    Attributes:
        table: address of the table.
        attempts: number of attempts.
    """

    exit_code = 4

    def __init__(self, table: str, attempts: int) -> None:
        self.table = table
        self.attempts = attempts
        super().__init__(
            f"a commit to {table} failed {attempts} times because other commits came first",
            "find what else writes to the table; only the job and its own maintenance may write to it",
        )


class VersionWentBack(PipelineError):
    """A commit would set the recorded version of an app id back, or record it twice.

    Attributes:
        table: address of the table.
        app_id: the app id.
        version: the version to be written.
        recorded: the version in the table.
    """

    def __init__(self, table: str, app_id: str, version: int, recorded: int) -> None:
        self.table = table
        self.app_id = app_id
        self.version = version
        self.recorded = recorded
        super().__init__(
            f"version of '{app_id}' in {table} must be above {recorded}; got {version}",
            "restart the job; it continues after the versions in the table",
        )


class EpochNotRaised(PipelineError):
    """An append came before `raise_epoch`.

    Attributes:
        table: address of the table.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"no epoch was raised in {table} before the first append", "raise the epoch when the driver starts"
        )


class TableMissing(PipelineError):
    """There is no Delta table at an address, or the table does not have the version.

    Attributes:
        table: the full address of the table.
        version: the version that is missing; None if there is no table, which is wrong usage (exit code 2).
        newest_version: the newest version; None if there is no table, or if nobody has looked.
    """

    def __init__(self, table: str, version: int | None = None, newest_version: int | None = None) -> None:
        self.table = full_address(table)
        self.version = version
        self.newest_version = newest_version
        if version is None:
            fix = f"correct --tables or --config, or create new tables: {creating(table)}"
            super().__init__(f"no Delta table at {self.table}", fix, exit_code=2)
            return
        is_future = newest_version is not None and version > newest_version
        newest = "" if newest_version is None else f": the newest is {newest_version}"
        kept = "" if is_future or newest_version is None else f", and version {version} is no longer kept"
        listed = command_text("quotas", "history")
        super().__init__(f"no version {version} of {self.table}{newest}{kept}", f"name one of these: {listed}")


class TableUnreadable(PipelineError):
    """There is a table at an address, or there may be one, but it can not be read.

    Attributes:
        table: address of the table.
        cause: what the store said, in one line.
        is_file_missing: a data file of the table is not there, for example because it was cleaned away.
    """

    def __init__(self, table: str, cause: str, *, is_file_missing: bool = False) -> None:
        self.table = table
        self.cause = cause
        self.is_file_missing = is_file_missing
        super().__init__(
            f"{table} can not be read: {cause}",
            f"see what is there and who may read it: {looking_at(table)}",
        )


class TableUnwritable(PipelineError):
    """The store refused a write, for example because of permissions, a full disk or an unreachable service.

    Attributes:
        table: address of the table.
        cause: what the store said, in one line.
    """

    def __init__(self, table: str, cause: str) -> None:
        self.table = table
        self.cause = cause
        super().__init__(
            f"{table} can not be written: {cause}",
            f"nothing was written; see who may write there and what is free: {looking_at(table)}",
        )


class RowsRefused(PipelineError):
    """Rows do not fit the table's schema or break one of its CHECK constraints.

    Attributes:
        table: address of the table.
        cause: what the writer said, in one line.
    """

    exit_code = 5

    def __init__(self, table: str, cause: str) -> None:
        self.table = table
        self.cause = cause
        super().__init__(
            f"rows for {table} must satisfy its schema and constraints; got {cause}",
            "none of them was written: give each row the columns, types and limits of the table",
        )


class QuotaEditRefused(PipelineError):
    """An edit would leave rows that are no valid quotas.

    Attributes:
        mistakes: all mistakes, each with its place if it has one.
    """

    exit_code = 5

    def __init__(self, mistakes: Sequence[Mistake], fix: str = _A_VALID_EDIT) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(f"quotas were not changed: {'; '.join(map(str, mistakes))}", fix)


class QuotaFileRefused(PipelineError):
    """A file does not hold valid quotas.

    Attributes:
        file: how the file is called.
        mistakes: all mistakes, each with its place and line in the file, as far as they are known.
    """

    exit_code = 5

    def __init__(self, file: str, mistakes: Sequence[Mistake]) -> None:
        self.file = file
        self.mistakes = tuple(mistakes)
        super().__init__(
            f"quotas of {file} are not valid, nothing was changed: {'; '.join(map(str, mistakes))}",
            "correct these places; a quota is written like {user: alice, client_id: etl, producer_byte_rate: 1MB/s}",
        )


class QuotasLeftInvalid(PipelineError):
    """An SQL statement has left the quota table invalid. The job keeps the version before it.

    Attributes:
        version: the version that is not valid.
        problems: all mistakes, one line per mistake.
    """

    exit_code = 5

    def __init__(self, version: int, version_before: int, problems: Sequence[str]) -> None:
        self.version = version
        self.problems = tuple(problems)
        super().__init__(
            f"quotas v{version} was written and is invalid, so v{version_before} stays in force: {'; '.join(problems)}",
            command_text("quotas", "rollback", str(version_before)),
        )


class VersionIsAnother(PipelineError):
    """The quota table is not at the version an edit is meant for.

    Attributes:
        table: address of the table.
        wanted_version: the version the edit is for.
        version: the version the table is at.
    """

    exit_code = 4

    def __init__(self, table: str, wanted_version: int, version: int) -> None:
        self.table = table
        self.wanted_version = wanted_version
        self.version = version
        super().__init__(
            f"'--if-version' must be the newest version of {table}, {version}; got {wanted_version}",
            f"see what changed: {command_text('quotas', 'diff', str(wanted_version), str(version))}",
        )


class VersionGone(PipelineError):
    """No version is kept that was in force at an instant.

    Attributes:
        table: address of the table.
        instant: the instant asked for.
        oldest_version: the oldest version that is kept.
    """

    exit_code = 3

    def __init__(self, table: str, instant: datetime, oldest_version: int, oldest_at: datetime) -> None:
        self.table = table
        self.instant = instant
        self.oldest_version = oldest_version
        super().__init__(
            f"'time' must not be before the oldest version of {table}, v{oldest_version} of {oldest_at.isoformat()}; "
            f"got {instant.isoformat()}",
            f"ask for {oldest_at:%Y-%m-%dT%H:%M:%S} or later",
        )


class QuotaTableBusy(PipelineError):
    """The lock of the quota table did not become free in time.

    Attributes:
        lock: path of the lock file.
        waited_seconds: how long the edit waited.
    """

    exit_code = 4

    def __init__(self, lock: str, waited_seconds: float) -> None:
        self.lock = lock
        self.waited_seconds = waited_seconds
        super().__init__(
            f"{lock} is held by another edit, waited {waited_seconds:g} s",
            f"nothing was changed; see who holds it: fuser -v {quote(lock)}",
        )


# Errors of tables in a Spark catalog.
#
# PipelineError
# ├── CatalogForgets      a catalog in memory, and no location to find the tables again
# ├── CommitsOverwritten  Spark's commits there would overwrite each other
# ├── CatalogRefuses      Spark or the catalog refuses a statement
# └── TableElsewhere      a table is not under the location that the settings name


class CatalogForgets(PipelineError):
    """The session keeps its catalog in memory: the next one would find no table.

    Attributes:
        root: The root of the tables.
    """

    exit_code = 2

    def __init__(self, root: str) -> None:
        self.root = root
        super().__init__(
            f"'tables.location' must be set for {root}: Spark keeps this catalog in memory and forgets its tables "
            "when the session ends; got null",
            "name a folder; at each start the job registers the tables that are there",
        )


class CommitsOverwritten(PipelineError):
    """Spark's writer would overwrite commits of others in this store.

    Attributes:
        table: The name of the table.
        location: Where it is.
    """

    exit_code = 2

    def __init__(self, table: str, location: str) -> None:
        self.table = table
        self.location = location
        super().__init__(
            f"{table} must not be in S3 without a service that orders commits, because Spark's writer looks whether "
            f"a commit is there and then writes it; got {location}",
            "use a catalog that manages commits, or delta-rs with the address as tables.root",
        )


class CatalogRefuses(PipelineError):
    """Spark or the catalog refuses to create, register or alter.

    Attributes:
        subject: The schema or table.
        cause: What Spark said, in one line.
    """

    def __init__(self, subject: str, cause: str) -> None:
        self.subject = subject
        self.cause = cause
        super().__init__(
            f"{subject} can not be created or changed: {cause}",
            "correct tables.root, or let somebody with the right create schema and tables (docs/catalog-tables.md)",
        )


class TableElsewhere(PipelineError):
    """The catalog has a table of this name at another place than the settings say.

    Attributes:
        table: The name of the table.
        location: Where it is.
        wanted: Where it must be.
    """

    exit_code = 2

    def __init__(self, table: str, location: str, wanted: str) -> None:
        self.table = table
        self.location = location
        self.wanted = wanted
        super().__init__(
            f"{table} must lie at {wanted}, by 'tables.location'; got {location}",
            "correct tables.location, or take another schema",
        )


# What can be wrong with an object store. See `pipeline.errors`.


class StoreLibraryMissing(PipelineError):
    """The library that looks at stores is not installed.

    Attributes:
        address: What was to be looked at.
    """

    exit_code = 2

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(
            f"{address} can not be checked: the package obstore is not installed",
            "pip install 'kafka-quota-pipeline[object-store]'",
        )


class StoreUnfit(PipelineError):
    """A store does not let us do what tables need, or does not do it as they need it.

    Attributes:
        address: What was looked at.
        step: What was tried, as "write".
        cause: What is wrong, in one clause.
    """

    exit_code = 5

    def __init__(self, address: str, step: str, cause: str, fix: str) -> None:
        self.address = address
        self.step = step
        self.cause = cause
        super().__init__(f"can not {step} {address}: {cause}", fix)


class StoreUnreachable(StoreUnfit):
    """Nothing answers at the endpoint of a store."""

    exit_code = 6
