"""What `kquota status` tells: whether the job runs, how far it is, and what is in force. No JVM and no Kafka client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from pipeline.activity import Activity, activity_of
from pipeline.job.heartbeat import last_beat_ms
from pipeline.job.lock import job_process
from pipeline.settings.model import Settings
from pipeline.tables.address import full_address
from pipeline.tables.from_settings import open_quota_table
from pipeline.tables.quotas.source import newest_valid
from pipeline.tables.quotas.table import QuotaTableState
from pipeline.tables.reading.newest_batch import newest_batch_under
from pipeline.tables.throttles.listed import running_throttles
from quota.snapshot import QuotaSnapshot

_TRIGGERS: Final = 3


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job and its tables at an instant.

    Attributes:
        job: Its name.
        state: up: a process of this machine holds its lock; down: none does.
        process: That process's id as text; None if it is down.
        last_batch_id: The newest recorded micro-batch; None if there is none.
        last_batch_age_ms: How long ago it was read; 0 for one that was stored after the command began.
        lag_ms: How old its newest event was then. None without a batch.
        activity: What it does; see `activity_of`.
        last_wait_age_ms: How long ago its query was last seen to wait for usage; None if that is not known here.
            Negative if its clock is ahead, or was set back since.
        last_batch_quotas: The quota version it was decided with; None without a batch.
        quotas: The quota version in force: the newest valid one.
        newest_quotas: The newest version; another one than `quotas` if it is not valid.
        mode: Of all quotas: enforce or shadow.
        held_clients: How many clients are throttled now.
        bootstrap_servers: Of the cluster; None if the settings do not name it.
        tables: The full address of the tables.
    """

    job: str
    state: Literal["up", "down"]
    process: str | None
    last_batch_id: int | None
    last_batch_age_ms: int | None
    lag_ms: int | None
    activity: Activity
    last_wait_age_ms: int | None
    last_batch_quotas: int | None
    quotas: int
    newest_quotas: int
    mode: str
    held_clients: int
    bootstrap_servers: str | None
    tables: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What the tables and the job's lock hold at an instant, each read once.

    Attributes:
        at_ms: The instant, by wall clock.
        process: The id of the process that holds the job's lock, as text; None if none of this machine does.
        waited_ms: When the job's query was last seen to wait for usage; None if that is not known here.
        quotas: The newest version of the quota table, valid or not.
        in_force: Its newest valid version.
        batch: The newest row of `batches`; None without a batch.
        throttles: The last record of each client that is throttled then.
    """

    at_ms: int
    process: str | None
    waited_ms: int | None
    quotas: QuotaTableState
    in_force: QuotaSnapshot
    batch: Mapping[str, Any] | None
    throttles: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, settings: Settings, now_ms: int) -> Self:
        """Read now.

        Raises:
            TableMissing, TableUnreadable: A table is not there, or can not be read.
            InvalidQuotas: No version of the quotas is valid.
        """
        root = settings.tables.root
        table = open_quota_table(settings.tables)
        newest = table.read()
        return cls(
            at_ms=now_ms,
            process=job_process(settings.run_dir, settings.job, root),
            waited_ms=last_beat_ms(settings.run_dir, settings.job, root),
            quotas=newest,
            in_force=newest_valid(table, newest.version, settings.share),
            batch=newest_batch_under(root),
            throttles=running_throttles(root, now_ms),
        )


def status_of(settings: Settings, now_ms: int) -> JobStatus:
    """The state at `now_ms`, by wall clock.

    A job that runs on another machine is down here; its last batch tells that it works.

    Raises:
        TableMissing, TableUnreadable: A table is not there, or can not be read.
        InvalidQuotas: No version of the quotas is valid.
    """
    return status_from(settings, Reading.of(settings, now_ms))


def stalled_after_ms(settings: Settings) -> int:
    """How old the newest batch may be before it is a sign of a job that hangs, or that gets no usage."""
    return max(settings.stream.max_decision_age_ms, _TRIGGERS * settings.stream.trigger_ms)


def status_from(settings: Settings, read: Reading) -> JobStatus:
    """The state that was read."""
    batch = read.batch
    batch_age_ms = None if batch is None else max(read.at_ms - batch["processed_at_ms"], 0)
    wait_age_ms = None if read.waited_ms is None else read.at_ms - read.waited_ms
    return JobStatus(
        job=settings.job,
        state="down" if read.process is None else "up",
        process=read.process,
        last_batch_id=None if batch is None else batch["batch_id"],
        last_batch_age_ms=batch_age_ms,
        lag_ms=None if batch is None else batch["processed_at_ms"] - batch["evaluated_at_ms"],
        activity=activity_of(read.process is not None, batch_age_ms, wait_age_ms, stalled_after_ms(settings)),
        last_wait_age_ms=wait_age_ms,
        last_batch_quotas=None if batch is None else batch["quota_version"],
        quotas=read.in_force.version,
        newest_quotas=read.quotas.version,
        mode=read.quotas.mode,
        held_clients=len(read.throttles),
        bootstrap_servers=settings.kafka.bootstrap_servers,
        tables=full_address(settings.tables.root),
    )
