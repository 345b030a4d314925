"""Errors of the tables.

PipelineError
└── tables
    ├── Fenced             another driver writes these tables now
    ├── LostRace           every attempt to commit was overtaken
    ├── VersionWentBack    a commit would set a recorded version back
    ├── EpochNotRaised     an append before the driver's epoch is in the table
    ├── TableMissing       no table at the address
    ├── TableUnwritable    the store refused the write
    ├── RowsRefused        rows that break the table's schema or CHECK constraints
    ├── QuotaEditRefused   an edit that would leave an invalid quota table
    ├── QuotasLeftInvalid  SQL has left rows that are no valid quotas
    ├── VersionIsAnother   the quotas were edited since the version an edit is meant for
    ├── VersionGone        an instant before the oldest version that is kept
    └── QuotaTableBusy     somebody else is editing the quotas
"""

from collections.abc import Sequence
from datetime import datetime

from pipeline.errors import PipelineError


class Fenced(PipelineError):
    """A driver with a higher epoch, or an equal one that is not ours, has written to the table.

    Attributes:
        table: address of the table.
        epoch: ours.
        recorded_epoch: the one in the table.
    """

    exit_code = 4

    def __init__(self, table: str, epoch: int, recorded_epoch: int) -> None:
        self.table = table
        self.epoch = epoch
        self.recorded_epoch = recorded_epoch
        super().__init__(
            f"'epoch' of {table} must be {epoch}, this driver's; got {recorded_epoch} of another driver",
            "stop one of the two drivers; the one that started last carries on",
        )


class LostRace(PipelineError):
    """Other commits came first at every attempt.

    Attributes:
        table: address of the table.
        attempts: how many were made.
    """

    exit_code = 4

    def __init__(self, table: str, attempts: int) -> None:
        self.table = table
        self.attempts = attempts
        super().__init__(
            f"a commit to {table} was overtaken {attempts} times",
            "find what else writes to it; besides maintenance the job is its only writer",
        )


class VersionWentBack(PipelineError):
    """An app id other than the guarding one already has this version or a higher one.

    Attributes:
        table: address of the table.
        app_id: whose version.
        version: the one to be written.
        recorded: the one in the table.
    """

    def __init__(self, table: str, app_id: str, version: int, recorded: int) -> None:
        self.table = table
        self.app_id = app_id
        self.version = version
        self.recorded = recorded
        super().__init__(
            f"version of '{app_id}' in {table} must be above {recorded}; got {version}",
            "restart the job; it continues after what is stored",
        )


class EpochNotRaised(PipelineError):
    """An append before `raise_epoch`.

    Attributes:
        table: address of the table.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"no epoch was raised in {table} before the first append", "raise the epoch at start")


class TableMissing(PipelineError):
    """There is no Delta table at an address.

    Attributes:
        table: the address.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"no Delta table at {table}", "check the tables' root, or start the job: it creates them")


class TableUnwritable(PipelineError):
    """The store refused a write: permissions, a full disk, an unreachable service.

    Attributes:
        table: address of the table.
        cause: what the store said, one line.
    """

    def __init__(self, table: str, cause: str) -> None:
        self.table = table
        self.cause = cause
        super().__init__(
            f"{table} can not be written: {cause}", "make it writable and start again; nothing was published"
        )


class RowsRefused(PipelineError):
    """Rows that do not fit the table's schema or break one of its CHECK constraints.

    Attributes:
        table: address of the table.
        cause: what the writer said, one line.
    """

    exit_code = 5

    def __init__(self, table: str, cause: str) -> None:
        self.table = table
        self.cause = cause
        super().__init__(f"rows for {table} must satisfy its schema and constraints; got {cause}", "mend the rows")


class QuotaEditRefused(PipelineError):
    """An edit would leave rows that are no valid quotas.

    Attributes:
        mistakes: one line each, all at once.
    """

    exit_code = 5

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(f"quotas were not changed: {'; '.join(mistakes)}", "mend the edit and repeat it")


class QuotasLeftInvalid(PipelineError):
    """A statement was carried out and left a table that is not valid; the job goes on with the version before.

    Attributes:
        version: the version that is not valid.
        problems: one line a mistake.
    """

    exit_code = 5

    def __init__(self, version: int, version_before: int, problems: Sequence[str]) -> None:
        self.version = version
        self.problems = tuple(problems)
        super().__init__(
            f"quotas v{version} was written and is invalid, so v{version_before} stays in force: {'; '.join(problems)}",
            f"kquota quotas rollback {version_before}",
        )


class VersionIsAnother(PipelineError):
    """The table is not at the version an edit was made for.

    Attributes:
        table: address of the table.
        wanted_version: the version the edit is for.
        version: the one the table is at.
    """

    exit_code = 4

    def __init__(self, table: str, wanted_version: int, version: int) -> None:
        self.table = table
        self.wanted_version = wanted_version
        self.version = version
        super().__init__(
            f"'--if-version' must be the newest version of {table}, {version}; got {wanted_version}",
            f"see what changed: kquota quotas diff {wanted_version} {version}",
        )


class VersionGone(PipelineError):
    """No version is kept that was in force at an instant.

    Attributes:
        table: address of the table.
        instant: the one asked for.
        oldest_version: the oldest that is kept.
    """

    exit_code = 3

    def __init__(self, table: str, instant: datetime, oldest_version: int, oldest_at: datetime) -> None:
        self.table = table
        self.instant = instant
        self.oldest_version = oldest_version
        super().__init__(
            f"'time' must not be before the oldest version of {table}, v{oldest_version} of {oldest_at.isoformat()}; "
            f"got {instant.isoformat()}",
            "ask for a later time",
        )


class QuotaTableBusy(PipelineError):
    """The lock of the quota table was not free in time.

    Attributes:
        lock: path of the lock file.
        waited_seconds: how long it was waited for.
    """

    exit_code = 4

    def __init__(self, lock: str, waited_seconds: float) -> None:
        self.lock = lock
        self.waited_seconds = waited_seconds
        super().__init__(
            f"{lock} is held by another edit, waited {waited_seconds:g} s", "repeat the edit when that one is done"
        )
