"""The signs of life of a job: its locks, its heartbeat, and what `kquota status` makes of them. No JVM or Kafka client.

One driver runs per set of tables. While it lives it holds a lock file next to them, or in the job's run folder if they
are in a store. A driver that starts from elsewhere is not stopped by a lock but fenced: by the epoch in every table
commit and by the transactional id.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pipeline.errors import Conflict
from pipeline.process import FRESH_MS, Activity, JobSigns, LockHeld, ProcessLock, activity_of, ahead_ms, holder_of
from pipeline.settings.model import Settings
from pipeline.tables.address import full_address, is_local, local_file
from pipeline.tables.queries import newest_batch_under
from pipeline.tables.quotas.source import newest_valid
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.rates import read_rates
from pipeline.tables.throttles import Held, running_throttles
from quota.resolution import held_one_by_one


def job_lock_file(run_dir: Path, job: str, tables_root: str) -> Path:
    """The lock file of a job: next to its tables where these are in a folder that exists, else in its run folder."""
    return local_file(tables_root, ".kquota-job.lock") or run_dir / f"{job}.lock"


def job_process(run_dir: Path, job: str, tables_root: str) -> str | None:
    """The process of this machine that is the job, as text; None if none is. Does not wait."""
    return holder_of(job_lock_file(run_dir, job, tables_root))


@contextmanager
def job_lock(run_dir: Path, job: str, tables_root: str) -> Iterator[None]:
    """Hold the job's lock; `Conflict` if another process holds it.

    The operating system lets go of it when the process dies, however it dies.
    """
    path = job_lock_file(run_dir, job, tables_root)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = ProcessLock(path).__enter__()
    except LockHeld as exc:
        message = f"another driver runs job {job!r} or writes its tables ({path} is held by process {exc.holder})"
        raise Conflict(message, "stop the other one, or start this one with another --job and --tables") from exc
    with lock:
        yield


log = logging.getLogger(__name__)

BEAT_EVERY_MS: Final = 1_000


class Heartbeat:
    """Notes instants at which the query waits: so a job that waits for usage differs from one that hangs.

    Both write no micro-batch. A query that waits between two triggers has asked the usage topic and found nothing new.
    One that hangs in a batch, or in a call to the brokers, is not seen to wait. The file lies next to the job's lock.
    For one thread.
    """

    def __init__(self, run_dir: Path, job: str, tables_root: str) -> None:
        self._place = partial(_heartbeat_file, run_dir, job, tables_root)
        self._last_ms = 0
        self._has_failed = False

    def forget(self) -> None:
        """Begin again: notes of an earlier query do not count for this one."""
        with suppress(OSError):
            self._place().unlink(missing_ok=True)

    def is_due(self, now_ms: int) -> bool:
        """Whether the last one was noted long enough ago, or the clock was set back."""
        return not 0 <= now_ms - self._last_ms < BEAT_EVERY_MS

    def beat(self, now_ms: int) -> None:
        """Note an instant of the wall clock. A disk that takes nothing is logged once, and ends nothing."""
        self._last_ms = now_ms
        path = self._place()
        try:
            new = path.with_name(f"{path.name}.new")
            new.write_text(f"{now_ms}\n", encoding="ascii")
            new.replace(path)
        except OSError as exc:
            if not self._has_failed:
                log.warning("%s cannot be written (%s): an idle job looks like one that hangs", path, exc.strerror)
            self._has_failed = True


def last_beat_ms(run_dir: Path, job: str, tables_root: str) -> int | None:
    """When the job was last seen to wait, by its wall clock; None if that is not known here."""
    try:
        return int(_heartbeat_file(run_dir, job, tables_root).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def signs_of(run_dir: Path, job: str, tables_root: str) -> JobSigns:
    """What this machine knows of the job that has this run folder, name and tables."""
    place = run_dir, job, tables_root
    return JobSigns(partial(job_process, *place), partial(last_beat_ms, *place))


def _heartbeat_file(run_dir: Path, job: str, tables_root: str) -> Path:
    return job_lock_file(run_dir, job, tables_root).with_suffix(".heartbeat")


_TRIGGERS: Final = 3


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job and its tables at an instant.

    Attributes:
        state: up: a process of this machine holds its lock; down: none does.
        process: That process's id as text; None if it is down.
        last_batch_id: The newest recorded micro-batch; None if there is none.
        last_batch_age_ms: How long ago it was read; 0 for one that was stored after the command began.
        lag_ms: How old its newest event was then; below 0 if its time was ahead of the driver's clock. None without a
            batch.
        time_epoch: How often event time had begun again by then. None without a batch.
        ahead_ms: How far its time is ahead of the wall clock now, see `pipeline.process.ahead_ms`; 0 without a batch.
        last_wait_age_ms: How long ago its query was last seen to wait for usage; None if that is not known here.
            Negative if its clock is ahead, or was set back since, by more than `pipeline.process.FRESH_MS`.
        last_batch_quotas: The quota version it was decided with; None without a batch.
        quotas: The quota version in force: the newest valid one.
        newest_quotas: The newest version; another one than `quotas` if it is not valid.
        one_by_one: The users whose clients are held one by one: see `quota.resolution.held_one_by_one`.
        nearest: Of `Rates.nearest` the first one that is enforced, else the first one; None without rates.
        rates_at_ms: The instant of these rates, in event time; 0 before the first.
        bootstrap_servers: Of the cluster; None if the settings do not name it.
    """

    job: str
    state: Literal["up", "down"]
    process: str | None
    last_batch_id: int | None
    last_batch_age_ms: int | None
    lag_ms: int | None
    time_epoch: int | None
    ahead_ms: int
    activity: Activity
    last_wait_age_ms: int | None
    last_batch_quotas: int | None
    quotas: int
    newest_quotas: int
    mode: str
    held_users: int
    held_clients: int
    one_by_one: Sequence[str]
    nearest: Mapping[str, Any] | None
    rates_at_ms: int
    bootstrap_servers: str | None
    tables: str


def status_of(settings: Settings, now_ms: int) -> JobStatus:
    """The state at `now_ms`, by wall clock; `InvalidQuotas` if no version of the quotas is valid.

    A job that runs on another machine is down here; its last batch shows that it works.
    """
    root, table = settings.tables.root, QuotaTable(settings.tables.root)
    place = settings.run_dir, settings.job, root
    process, waited_ms = job_process(*place), last_beat_ms(*place)
    newest, batch = table.read(), newest_batch_under(root)
    batch_age_ms = None if batch is None else max(now_ms - batch["processed_at_ms"], 0)
    wait_age_ms = None if waited_ms is None else now_ms - waited_ms
    if wait_age_ms is not None and -FRESH_MS <= wait_age_ms < 0:
        wait_age_ms = 0  # the query waited again while the tables were read; more is a clock that was set back
    in_force = newest_valid(table, newest.version)
    held = Held(running_throttles(root, now_ms, min_hold_ms=settings.purgatory.min_hold_ms))
    nearest, rates_at_ms = read_rates(root, lambda rates: (rates.nearest(1), rates.as_of_ms))
    return JobStatus(
        job=settings.job,
        state="down" if process is None else "up",
        process=process,
        last_batch_id=None if batch is None else batch["batch_id"],
        last_batch_age_ms=batch_age_ms,
        lag_ms=None if batch is None else batch["processed_at_ms"] - batch["evaluated_at_ms"],
        time_epoch=None if batch is None else batch["time_epoch"],
        ahead_ms=0 if batch is None else ahead_ms(batch["evaluated_at_ms"], now_ms),
        activity=activity_of(process is not None, batch_age_ms, wait_age_ms, stalled_after_ms(settings)),
        last_wait_age_ms=wait_age_ms,
        last_batch_quotas=None if batch is None else batch["quota_version"],
        quotas=in_force.version,
        newest_quotas=newest.version,
        mode=newest.mode,
        held_users=held.counts[0],
        held_clients=held.counts[1],
        one_by_one=held_one_by_one(in_force),
        nearest=next((row for row in nearest if row["mode"] == "enforce"), next(iter(nearest), None)),
        rates_at_ms=rates_at_ms,
        bootstrap_servers=settings.kafka.bootstrap_servers,
        tables=full_address(root),
    )


def is_down(settings: Settings, process: str | None, batch_age_ms: int | None) -> bool:
    """Whether the job is down, by the process that holds its lock here and the age of its newest batch.

    A lock next to the tables knows every job on a local disk. Tables in a store may have a job on another machine: that
    is down if it wrote no batch lately.
    """
    if process is not None:
        return False
    is_elsewhere = not is_local(settings.tables.root)
    return not (is_elsewhere and batch_age_ms is not None and batch_age_ms <= stalled_after_ms(settings))


def stalled_after_ms(settings: Settings) -> int:
    """How old the newest batch may be before it is a sign of a job that hangs, or that gets no usage."""
    return max(settings.stream.max_decision_age_ms, _TRIGGERS * settings.stream.trigger_ms)
