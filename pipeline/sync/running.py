"""The life of a sync: reach the cluster, take over, a period each second, try again after failures, stop."""

import logging
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import Final, TypeVar

from pipeline.background import Background
from pipeline.clock import SystemClock
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.errors import ClusterUnreachable
from pipeline.errors import PipelineError
from pipeline.settings.model import Settings
from pipeline.sync.assembly import cluster_name, new_control, open_sources
from pipeline.sync.broker_quota_sync import BrokerQuotaSync
from pipeline.sync.cluster_quotas import KafkaQuotas
from pipeline.sync.lock import sync_lock
from pipeline.sync.metrics import SyncMetrics
from pipeline.sync.upkeep import SyncUpkeep
from pipeline.tables.brokers.quotas import BrokerQuotasTable
from quota.broker_sync import BrokerSync

log = logging.getLogger(__name__)

PAUSES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""How long to rest after the first failure in a row and each further one; then as after the last."""

_UPKEEP_PATIENCE_SECONDS: Final = 2.0

Wait = Callable[[float], bool]
"""Waits some seconds; True = stop."""

Outcome = TypeVar("Outcome")


def run_sync(settings: Settings, wait: Wait, *, adopt: bool = False, metrics: SyncMetrics | None = None) -> None:
    """Keep the brokers' quotas until told to stop. A cluster that is away is waited for.

    Args:
        settings: The whole tree.
        wait: Rests between two periods.
        adopt: Whether values of others are taken over.
        metrics: Hears of every period.

    Raises:
        SyncIsRunning: Another process syncs from the same tables.
        Fenced: One on another machine does.
        PipelineError: The tables can not be read at the start, or the brokers refuse the first look.
    """
    clock, access = SystemClock(), ClusterAccess.from_settings(settings.kafka)
    with sync_lock(settings.tables.root), KafkaQuotas(access) as cluster:
        sources = open_sources(settings)
        name = _once_reached(lambda: cluster_name(settings, access), wait)
        if name is None:
            return
        table = BrokerQuotasTable(settings.tables.root, name)
        control = new_control(settings, adopt=adopt)
        sync = BrokerQuotaSync(control, sources, table, cluster, clock, settings.sync.describe_every_ms)
        sync.take_over()
        upkeep = Background("sync-upkeep", SyncUpkeep(settings.tables, clock).round, _upkeep_failed)
        upkeep.start()
        try:
            _run_periods(_told_to(metrics, sync, control), settings.sync.period_ms / 1000, wait)
            if settings.sync.restore_on_stop:
                log.info("every level is back at its bound: %d changes", sync.restore())
        finally:
            upkeep.close(_UPKEEP_PATIENCE_SECONDS)


def sync_once(settings: Settings, *, adopt: bool = False) -> BrokerSync:
    """Do one period, with all changes that it wants. Returns what is known after it.

    Args:
        settings: The whole tree.
        adopt: Whether values of others are taken over.

    Raises:
        SyncIsRunning, Fenced: Another sync is at work.
        PipelineError: A table or the cluster can not be read or written.
    """
    access = ClusterAccess.from_settings(settings.kafka)
    with sync_lock(settings.tables.root), KafkaQuotas(access) as cluster:
        sources = open_sources(settings)
        table = BrokerQuotasTable(settings.tables.root, cluster_name(settings, access))
        control = new_control(settings, adopt=adopt, at_once=True)
        sync = BrokerQuotaSync(control, sources, table, cluster, SystemClock(), settings.sync.describe_every_ms)
        sync.take_over()
        log.info("changes made: %d", sync.step())
        return control


def _told_to(metrics: SyncMetrics | None, sync: BrokerQuotaSync, control: BrokerSync) -> Callable[[], object]:
    """One period, of which metrics hear."""
    if metrics is None:
        return sync.step

    def step() -> None:
        try:
            changes = sync.step()
        except PipelineError:
            metrics.period_failed()
            raise
        metrics.period_done(control, changes)

    return step


def _run_periods(step: Callable[[], object], period_seconds: float, wait: Wait) -> None:
    failures, has_looked, told = 0, False, ""
    while True:
        began = time.monotonic()
        try:
            step()
        except PipelineError as exc:
            if _is_final(exc, has_looked):
                raise
            rest_seconds = PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)]
            failures += 1
            trouble = _kind_of(exc)
            if trouble != told:
                told = trouble
                log.warning("%s; tried again with back-off until it works", exc)
        else:
            if failures:
                log.info("works again after %d failures", failures)
            failures, has_looked, told = 0, True, ""
            rest_seconds = max(began + period_seconds - time.monotonic(), 0.0)
        if wait(rest_seconds):
            return


def _kind_of(failure: PipelineError) -> str:
    """Equal for failures of which one line is enough: a cluster that is away shows it in many ways."""
    return type(failure).__name__ if isinstance(failure, ClusterUnreachable) else str(failure)


def _is_final(failure: PipelineError, has_looked: bool) -> bool:
    """Whether it is no use to try again: another sync has taken over, a table is gone, or the start is refused."""
    return failure.exit_code in {2, 4, 5} or not (has_looked or isinstance(failure, ClusterUnreachable))


def _once_reached(call: Callable[[], Outcome], wait: Wait) -> Outcome | None:
    """What a call returns, as soon as the cluster answers; None if told to stop meanwhile."""
    for rest_seconds in chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1])):
        try:
            return call()
        except ClusterUnreachable as exc:
            log.warning("%s; next try in %g s", exc, rest_seconds)
        if wait(rest_seconds):
            break
    return None


def _upkeep_failed(failure: BaseException) -> None:
    log.error("upkeep of broker_quotas has ended: %s", failure)
