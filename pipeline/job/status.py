"""The signs of life of a job: its locks, its heartbeat, and what `kquota status` makes of them. No JVM or Kafka client.

One driver runs per set of tables. While it lives it holds a lock file next to them, or in the job's run folder if they
are in a store. A driver that starts from elsewhere is not stopped by a lock but fenced: by the epoch in every table
commit and by the transactional id.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pipeline.command_line import command_text
from pipeline.process import ProcessLock, holder_of
from pipeline.settings.model import Settings
from pipeline.tables.port import full_address, is_local, local_file
from pipeline.tables.queries import newest_batch_under
from pipeline.tables.quotas.source import QuotaSource, newest_valid
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.rates import broker_hold_text, broker_holds, read_rates
from pipeline.tables.throttles import Held, running_throttles
from quota.resolution import held_one_by_one
from quota.units import age_text


def job_lock_file(run_dir: Path, job: str, tables_root: str) -> Path:
    """The lock file of a job: next to its tables where these are in a folder that exists, else in its run folder."""
    return local_file(tables_root, ".kquota-job.lock") or run_dir / f"{job}.lock"


def job_process(run_dir: Path, job: str, tables_root: str) -> str | None:
    """The process of this machine that is the job, as text; None if none is. Does not wait."""
    return holder_of(job_lock_file(run_dir, job, tables_root))


def job_lock(run_dir: Path, job: str, tables_root: str) -> ProcessLock:
    """The job's lock, to be held. The operating system lets go of it when the process dies, however it dies."""
    path = job_lock_file(run_dir, job, tables_root)
    path.parent.mkdir(parents=True, exist_ok=True)
    fix = "stop the other one, or start this one with another --job and --tables"
    return ProcessLock(path, f"another driver runs job {job!r} or writes its tables", fix)


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


@dataclass(frozen=True, slots=True)
class JobSigns:
    """What this machine knows of a job, looked up when it is called.

    Attributes:
        process: The process of this machine that holds the job's lock, as text; None if none does.
        last_wait_ms: When the job was last seen to wait for usage, by its wall clock; None if that is not known here.
    """

    process: Callable[[], str | None]
    last_wait_ms: Callable[[], int | None]


def signs_of(run_dir: Path, job: str, tables_root: str) -> JobSigns:
    """What this machine knows of the job that has this run folder, name and tables."""
    place = run_dir, job, tables_root
    return JobSigns(partial(job_process, *place), partial(last_beat_ms, *place))


def _heartbeat_file(run_dir: Path, job: str, tables_root: str) -> Path:
    return job_lock_file(run_dir, job, tables_root).with_suffix(".heartbeat")


# Whether the pipeline works. Pure. `kquota status` says it, and a banner of the page if data stops.

FRESH_MS: Final = 3_000
"""A job that was seen to wait so lately still waits, as far as can be known."""

LATE_AFTER_MS: Final = 15_000
"""A job that was not seen to wait for longer hangs: no batch takes so long that does not."""

AHEAD_AFTER_MS: Final = 5_000
"""Event time may be ahead of the wall clock for as long: events up to 2 s ahead are believed, and clocks differ."""


_LAPSE: Final = "Running throttles end by themselves; no new ones begin. The figures below are that old."

_AHEAD: Final = "The time of the rates is {} ahead of the wall clock: a clock was set back, and usage of now is late."

HealthState = Literal["live", "starting", "quiet", "hung", "stalled", "down", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the pipeline at an instant.

    Attributes:
        state: live: micro-batches come. starting: none is stored yet. quiet: no batch comes, as the job waits for usage
            and finds none. hung: no batch comes, and the job does not even look for usage. stalled: no batch comes, and
            which of the two it is, or whether the job lives, is not known here. down: the job's process is gone.
            unreadable: the tables cannot be read.
        text: What it means and what to do; "" if all is well.
        last_batch_age_ms: How long ago the newest batch was collected, by wall clock; None without one.
        lag_ms: How old the newest event of that batch was then.
        process: The job's process on this machine; None if it is not known to run.
        ahead_ms: How far the time of that batch is ahead of the wall clock now.
    """

    state: HealthState
    title: str
    text: str
    last_batch_age_ms: int | None
    lag_ms: int | None
    process: str | None
    ahead_ms: int = 0


def health(
    now_ms: int,
    batch: Mapping[str, Any] | None,
    process: str | None,
    *,
    was_seen: bool,
    waited_ms: int | None = None,
    collected_ms: int | None = None,
    failure: str | None = None,
    stalled_after_ms: int,
) -> Health:
    """Judge the pipeline.

    Args:
        batch: The newest row of `batches`.
        process: The job's process on this machine; None if its lock is free.
        was_seen: The job is one of this machine: its lock lies next to the tables, which are a folder, or the page has
            seen a process hold it. Without that, a missing process proves nothing: the job may run on another machine.
        waited_ms: When the job was last seen to wait for usage, by wall clock.
        collected_ms: When that batch was collected, by the clock of `now_ms`; None = by the batch. A batch whose
            clock was ahead is as old as it has been known for, and not new for as long as the clock was ahead.
        failure: Why the tables cannot be read; None if they can.
        stalled_after_ms: How old the newest batch may be before it is a sign of trouble, or of no usage.
    """
    at_ms = batch["processed_at_ms"] if collected_ms is None and batch is not None else collected_ms
    age_ms = None if batch is None or at_ms is None else max(now_ms - at_ms, 0)
    lag_ms = None if batch is None else max(batch["processed_at_ms"] - batch["evaluated_at_ms"], 0)
    ahead = 0 if batch is None else ahead_ms(batch["evaluated_at_ms"], now_ms)
    wait_age_ms = None if waited_ms is None else now_ms - waited_ms
    if failure is not None:
        found: tuple[HealthState, str, str] = ("unreadable", "The tables cannot be read", failure)
    elif age_ms is None:
        found = _without_batch(process, wait_age_ms)
    elif age_ms <= stalled_after_ms and (process is not None or not was_seen):
        found = ("live", "Live", _AHEAD.format(age_text(ahead)) if ahead else "")
    elif process is None:
        found = _gone(age_ms, was_seen)
    else:
        found = _without_news(age_ms, process, wait_age_ms)
    return Health(*found, age_ms, lag_ms, process, ahead)


def ahead_ms(evaluated_at_ms: int, now_ms: int) -> int:
    """How far the time of a batch is ahead of the wall clock; 0 up to `AHEAD_AFTER_MS`, which means nothing.

    A clock that was ahead has dated the batch, and was set back since; or the machines' clocks differ.
    """
    found_ms = evaluated_at_ms - now_ms
    return found_ms if found_ms > AHEAD_AFTER_MS else 0


def _waits(wait_age_ms: int | None) -> bool:
    """Whether the query was seen to wait just now. The age is negative if its clock is ahead, or was set back since."""
    return wait_age_ms is not None and abs(wait_age_ms) <= FRESH_MS


def _hangs(wait_age_ms: int | None) -> bool:
    """Whether it was last seen to wait long ago. In between nothing is known: it starts, has a long batch, or hangs."""
    return wait_age_ms is not None and wait_age_ms > LATE_AFTER_MS


def _without_batch(process: str | None, wait_age_ms: int | None) -> tuple[HealthState, str, str]:
    title = "The job has written no micro-batch yet"
    if process is None:
        command = command_text("run")
        return "starting", "No micro-batch is stored yet", f"Start the job: {command}."
    if _hangs(wait_age_ms):
        return "hung", title, f"It hangs: {_last_look(process, wait_age_ms)}"
    return "starting", title, f"Its process {process} {'waits for usage' if _waits(wait_age_ms) else 'runs'}."


def _without_news(age_ms: int, process: str, wait_age_ms: int | None) -> tuple[HealthState, str, str]:
    """The state, title and text of a job that lives and has stored nothing for a while."""
    since = f"for {age_text(age_ms)}"
    if _waits(wait_age_ms):
        text = f"The job's process {process} works: it looks for usage, and no client has used anything."
        return "quiet", f"Quiet: no usage {since}", text
    if _hangs(wait_age_ms):
        return "hung", f"The job hangs: no micro-batch {since}", f"{_last_look(process, wait_age_ms)} {_LAPSE}"
    if wait_age_ms is None or wait_age_ms < 0:
        seen = "runs, and was not yet seen to wait for usage: it starts, or hangs"
    else:
        seen = f"last looked for usage {age_text(wait_age_ms)} ago: a batch takes long, or it hangs"
    return "stalled", f"No micro-batch {since}", f"The job's process {process} {seen}. {_LAPSE}"


def _gone(age_ms: int, was_seen: bool) -> tuple[HealthState, str, str]:
    age = age_text(age_ms)
    if was_seen:
        return "down", "The job has ended", f"Its last micro-batch was {age} ago. {_LAPSE}"
    return "stalled", f"No micro-batch for {age}", f"No job runs on these tables on this machine. {_LAPSE}"


def _last_look(process: str, wait_age_ms: int | None) -> str:
    return f"Its process {process} last looked for usage {age_text(wait_age_ms or 0)} ago; its log may have the reason."


_TRIGGERS: Final = 3


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job and its tables at an instant.

    Attributes:
        last_batch_id: The newest recorded micro-batch; None if there is none.
        time_epoch: How often event time had begun again by then. None without a batch.
        last_batch_quotas: The quota version it was decided with; None without a batch.
        quotas: The quota version in force: the newest valid one.
        newest_quotas: The newest version; another one than `quotas` if it is not valid.
        held_users: How many users kquota holds, with all their client-ids; and `held_clients`, each on its own.
        broker_held_clients: How many clients their brokers held for a second or more of the last minute.
        longest_broker_hold: user, client_id and `held_by_brokers`, in words, of the one held longest; None without one.
        one_by_one: The users whose clients are held one by one: see `quota.resolution.held_one_by_one`.
        nearest: Of `Rates.nearest` the first one that is enforced, else the first one; None without rates.
        rates_at_ms: The instant of these rates, in event time; 0 before the first.
        tenants: How many tenants there are; `full_tenants` are the names of those at their bound.
        tenants_version: The version of the tenants in force; -1 without their table.
        bootstrap_servers: Of the cluster; None if the settings do not name it.
    """

    job: str
    health: Health
    last_batch_id: int | None
    time_epoch: int | None
    last_batch_quotas: int | None
    quotas: int
    newest_quotas: int
    mode: str
    held_users: int
    held_clients: int
    broker_held_clients: int
    longest_broker_hold: Mapping[str, str | None] | None
    one_by_one: Sequence[str]
    nearest: Mapping[str, Any] | None
    rates_at_ms: int
    tenants: int
    full_tenants: Sequence[str]
    tenants_version: int
    bootstrap_servers: str | None
    tables: str


def status_of(settings: Settings, now_ms: int) -> JobStatus:
    """The state at `now_ms`, by wall clock; `InvalidQuotas` if no version of the quotas is valid."""
    root, table = settings.tables.root, QuotaTable(settings.tables.root)
    place = settings.run_dir, settings.job, root
    process, waited_ms = job_process(*place), last_beat_ms(*place)
    newest, batch = table.read(), newest_batch_under(root)
    found = health(
        now_ms,
        batch,
        process,
        was_seen=is_local(root),
        waited_ms=waited_ms,
        stalled_after_ms=stalled_after_ms(settings),
    )
    in_force = newest_valid(table, newest.version)
    held = Held(running_throttles(root, now_ms, min_hold_ms=settings.purgatory.min_hold_ms))
    by_brokers = broker_holds(root, now_ms)
    longest = [
        {"user": user, "client_id": client_id, "held_by_brokers": broker_hold_text(held_seconds)}
        for (user, client_id), held_seconds in by_brokers.items()
    ]
    pinned = QuotaSource(table).pin()
    tenants = pinned.tenants
    nearest, rates_at_ms, full = read_rates(
        root, lambda rates: (rates.nearest(1), rates.as_of_ms, rates.tenants(tenants) if tenants else [])
    )
    return JobStatus(
        job=settings.job,
        health=found,
        last_batch_id=None if batch is None else batch["batch_id"],
        time_epoch=None if batch is None else batch["time_epoch"],
        last_batch_quotas=None if batch is None else batch["quota_version"],
        quotas=in_force.version,
        newest_quotas=newest.version,
        mode=newest.mode,
        held_users=held.counts[0],
        held_clients=held.counts[1],
        broker_held_clients=len(by_brokers),
        longest_broker_hold=next(iter(longest), None),
        one_by_one=held_one_by_one(in_force),
        nearest=next((row for row in nearest if row["mode"] == "enforce"), next(iter(nearest), None)),
        rates_at_ms=rates_at_ms,
        tenants=len(tenants),
        full_tenants=sorted({row["tenant"] for row in full if row["is_at_bound"] and row["mode"] == "enforce"}),
        tenants_version=pinned.tenants_version,
        bootstrap_servers=settings.kafka.bootstrap_servers,
        tables=full_address(root),
    )


def stalled_after_ms(settings: Settings) -> int:
    """How old the newest batch may be before it is a sign of a job that hangs, or that gets no usage."""
    return max(settings.stream.max_decision_age_ms, _TRIGGERS * settings.stream.trigger_ms)
