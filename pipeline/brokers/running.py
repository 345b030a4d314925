"""The life of a sync: lock, reach the cluster, take over, a period each second, upkeep, metrics, retries, stop.

And what a sync would do now, without writing anything: for dry runs and `kquota doctor`.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from deltalake.exceptions import DeltaError
from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.brokers.native import NativeQuotas, callbacks_text
from pipeline.brokers.sync import BrokerQuotaSync, Sources, UsageFollower, drift_line
from pipeline.clock import Clock, SystemClock, wall_ms
from pipeline.cluster.acls import PermissionMissing
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error
from pipeline.command_line import command_text
from pipeline.errors import ClusterUnreachable, PipelineError, first_line
from pipeline.process import Background, ProcessLock
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.broker_quotas import NAME, BrokerQuotasTable, running_sync, state_of, sync_lock_file, trim_changes
from pipeline.tables.port import table_uri
from pipeline.tables.queries import StoredTable
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.upkeep import UPKEEP_EVERY_SECONDS, clean, compact
from quota.broker_levels.sync import BrokerSync
from quota.broker_levels.writes import Change
from quota.units import age_text

# Makes the parts of a sync from the settings.

# The windows of a rate, and some seconds for usage that comes late.
_LATE_MS = 3_000


def open_sources(settings: Settings) -> Sources:
    """Open what the sync follows. In scope `broker` no usage is needed."""
    uri, first_ms = table_uri(settings.tables.root, "usage"), settings.engine.rate_span_ms + _LATE_MS
    quotas = QuotaSource(QuotaTable(settings.tables.root))
    scope, users, root = settings.scope, settings.sync.users, settings.tables.root
    sources = Sources(quotas, lambda: UsageFollower(uri, first_ms), scope, users, root)
    sources.usage()
    return sources


def new_control(settings: Settings, *, adopt: bool) -> BrokerSync:
    """What decides what to write."""
    return BrokerSync(
        adopt=adopt,
        num_samples=settings.engine.num_samples,
        sample_window_ms=settings.engine.sample_window_ms,
        own_entries_per_user=settings.sync.own_entries_per_user,
    )


def cluster_name(settings: Settings, access: ClusterAccess) -> str:
    """The name of the cluster in the tables: its id, if the settings name none."""
    with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
        return settings.cluster or str(admin.describe_cluster()["cluster_id"])


# Metrics of `kquota quotas sync`, of every period.


class SyncMetrics:
    """Fills a registry, a period at a time."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._periods = Counter("kquota_sync_periods", "Periods that went well.", registry=registry)
        self._failures = Counter("kquota_sync_failed_periods", "Periods that failed.", registry=registry)
        self._changes = Counter("kquota_sync_changes", "Values that the brokers took.", registry=registry)
        text = "When the last good period ended; before the first one, when this process began."
        self._last = Gauge("kquota_sync_last_period_timestamp_seconds", text, registry=registry)
        self._last.set(clock.now().wall_ms / 1000)
        self._owned = Gauge("kquota_sync_owned_values", "Values on the brokers that are kquota's.", registry=registry)
        self._drifts = Gauge("kquota_sync_drifts", "Values that others wrote and the sync leaves.", registry=registry)
        self._refused = Gauge("kquota_sync_refused_values", "Values that cannot be written.", registry=registry)
        text = "Clients of defaults that need an entry of their own and get none: there is no room for more."
        self._left_out = Gauge("kquota_sync_left_out_clients", text, registry=registry)
        text = "Usage so far that names no broker of the cluster."
        self._unplaced = Gauge("kquota_sync_unplaced_bytes", text, registry=registry)

    def period_done(self, control: BrokerSync, changes: int) -> None:
        """A period went well; `control` has what is known after it."""
        self._periods.inc()
        self._changes.inc(changes)
        self._last.set(self._clock.now().wall_ms / 1000)
        self._owned.set(len(control.owned))
        self._drifts.set(len(control.drifts))
        self._refused.set(len(control.refused))
        self._left_out.set(control.left_out.total())
        self._unplaced.set(control.unplaced_bytes)

    def period_failed(self) -> None:
        """A period failed; it is tried again."""
        self._failures.inc()


# Upkeep of `broker_quotas`, by its only writer: delete old rows, merge files, shorten the log.

log = logging.getLogger(__name__)


def _upkeep(tables: TablesSettings) -> float:
    """One round; what fails is logged, and the next round repeats it. Returns how many seconds to wait before that."""
    uri = table_uri(tables.root, NAME)
    try:
        trim_changes(uri, wall_ms() - tables.history_retention_ms)
        compact(uri)
        clean(uri)
    except (PipelineError, DeltaError, OSError, ValueError) as exc:
        log.warning("upkeep of %s failed and is tried again in the next round: %s", NAME, first_line(exc))
    return UPKEEP_EVERY_SECONDS


PAUSES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""How long to rest after the first failure in a row and each further one; then as after the last."""

_UPKEEP_PATIENCE_SECONDS: Final = 2.0

Wait = Callable[[float], bool]
"""Waits some seconds; True = stop."""


def run_sync(settings: Settings, wait: Wait, *, adopt: bool = False, metrics: SyncMetrics | None = None) -> None:
    """Keep the brokers' quotas until stopped. A cluster that is away is waited for.

    Raises:
        Conflict: Another process syncs from the same tables, on this machine or another one.
        Refused: A broker does not enforce what is written to it.
        PipelineError: The tables cannot be read at the start, or the brokers refuse the first look.
    """
    access = ClusterAccess.from_settings(settings.kafka)
    with sync_lock(settings.tables.root), NativeQuotas(access) as cluster:
        sources = open_sources(settings)
        failed = partial(log.error, "upkeep of broker_quotas has ended: %s")
        upkeep = Background("sync-upkeep", partial(_upkeep, settings.tables), failed)
        metrics = metrics or SyncMetrics(CollectorRegistry(), SystemClock())
        begun: list[tuple[BrokerQuotaSync, BrokerSync]] = []

        def step() -> None:
            if not begun:
                begun.append(_taken_over(settings, sources, cluster_name(settings, access), cluster, adopt=adopt))
                upkeep.start()
            sync, control = begun[0]
            metrics.period_done(control, sync.step())

        try:
            _run_periods(step, metrics, settings.sync.period_ms / 1000, wait)
        finally:
            upkeep.close(_UPKEEP_PATIENCE_SECONDS)


def _taken_over(
    settings: Settings, sources: Sources, name: str, cluster: NativeQuotas, *, adopt: bool
) -> tuple[BrokerQuotaSync, BrokerSync]:
    control, table = new_control(settings, adopt=adopt), BrokerQuotasTable(settings.tables.root, name)
    sync = BrokerQuotaSync(control, sources, table, cluster, SystemClock(), settings.sync.describe_every_ms)
    sync.take_over()
    return sync, control


def _run_periods(step: Callable[[], None], metrics: SyncMetrics, period_seconds: float, wait: Wait) -> None:
    failures, has_looked, logged = 0, False, ""
    while True:
        began = time.monotonic()
        try:
            step()
        except PipelineError as exc:
            metrics.period_failed()
            if _is_final(exc, has_looked):
                raise
            rest_seconds = PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)]
            failures += 1
            # A cluster that is away shows it in many ways, of which one line is enough.
            trouble = type(exc).__name__ if isinstance(exc, ClusterUnreachable) else str(exc)
            if trouble != logged:
                logged = trouble
                log.warning("%s; tried again with back-off until it works", exc)
        else:
            if failures:
                log.info("works again after %d failures", failures)
            failures, has_looked, logged = 0, True, ""
            rest_seconds = max(began + period_seconds - time.monotonic(), 0.0)
        if wait(rest_seconds):
            return


def _is_final(failure: PipelineError, has_looked: bool) -> bool:
    """Whether a retry is useless: another sync has taken over, a table is gone, or the start is refused."""
    return failure.exit_code in {2, 4, 5} or not (has_looked or isinstance(failure, ClusterUnreachable))


# What a sync would do now.


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What a sync would do. `control` has what it leaves, owns or cannot write."""

    cluster: str
    quota_version: int
    changes: tuple[Change, ...]
    control: BrokerSync


def inspect(settings: Settings, *, adopt: bool = False) -> SyncPlan:
    """Look at the tables and at the brokers. Takes no lock and changes nothing. Raises as `run_sync`."""
    access = ClusterAccess.from_settings(settings.kafka)
    sources = open_sources(settings)
    uri, cluster = table_uri(settings.tables.root, NAME), cluster_name(settings, access)
    before, state = None, state_of(StoredTable(uri), cluster)
    with NativeQuotas(access) as brokers:
        while state != before:  # else what a running sync writes meanwhile looks like the work of others
            found, before = brokers.look(), state
            state = state_of(StoredTable(uri), cluster)
    found.refuse_callbacks()
    owned, undecided = state
    sources.poll()  # an edit that a running sync has followed meanwhile
    now_ms, quotas = wall_ms(), sources.pin()
    control = new_control(settings, adopt=adopt)
    control.restore_owned(owned, undecided, now_ms)
    control.load_quotas(quotas, sources.mirror)
    control.set_brokers(found.broker_ids)
    control.observe(found.held, now_ms)
    usage = sources.usage()
    rows = None if usage is None else usage.new_rows()
    if rows is not None:
        control.record(rows)
    control.follow_members(sources.members(now_ms), now_ms)
    changes = control.period(now_ms if usage is None else usage.known_until_ms, now_ms)
    return SyncPlan(cluster, quotas.version, tuple(changes), control)


# What `kquota doctor` finds about the brokers' quotas.

Finding = tuple[Literal["ok", "warning"], str]

_SHOWN = 5


def sync_findings(settings: Settings, now_ms: int) -> Iterator[Finding]:
    """Whether a sync runs, what it owns, and what others changed."""
    root = settings.tables.root
    newest_ms = StoredTable(table_uri(root, NAME)).newest_value("at_ms")
    process = running_sync(root)
    if newest_ms is None and process is None:
        yield "ok", f"not used: the brokers enforce what others set ({command_text('quotas', 'sync', '--help')})"
        with suppress(PermissionMissing), NativeQuotas(ClusterAccess.from_settings(settings.kafka)) as cluster:
            if callbacks := cluster.callbacks(cluster.broker_ids()):
                yield "warning", callbacks_text(callbacks)
        return
    plan = inspect(settings)
    last = "no change yet" if newest_ms is None else f"last change {age_text(max(now_ms - newest_ms, 0))} ago"
    runs = "does not run on this machine" if process is None else f"runs as process {process}"
    severity: Literal["ok", "warning"] = "warning" if plan.control.owned and process is None else "ok"
    yield (
        severity,
        f"{runs}, {last}; values that are kquota's on the brokers of {plan.cluster}: {len(plan.control.owned)}",
    )
    see = command_text("quotas", "sync", "--dry-run")
    if plan.changes and process is None:
        yield "warning", f"values that the brokers must get: {len(plan.changes)}. Fix: start it again; see {see}"
    for drift in plan.control.drifts[:_SHOWN]:
        yield "warning", f"{drift_line(drift)}. Fix: remove it there, or start the sync with --adopt"
    if len(plan.control.drifts) > _SHOWN:
        yield "warning", f"and {len(plan.control.drifts) - _SHOWN} more such values: see {see}"


# The lock of one sync for a set of tables. It lies next to the tables, where they are on a local disk. A sync that
# starts from elsewhere is not stopped by it but fences the first one: by the epoch in the table.


def sync_lock(tables_root: str) -> AbstractContextManager[object]:
    """To be held; `Conflict` if another process holds it."""
    path = sync_lock_file(tables_root)
    if path is None:
        return nullcontext()
    return ProcessLock(path, "another sync of these tables runs", "stop it, or start this one with another --tables")
