"""What a sync would do now, computed without writing anything: for dry runs, differences and `kquota doctor`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.brokers.changes import KafkaQuotas
from pipeline.brokers.running import cluster_name, new_control, open_sources, running_sync
from pipeline.brokers.sync import drift_line
from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.command_line import command_text
from pipeline.settings.model import Settings
from pipeline.tables.address import table_uri
from pipeline.tables.broker_quotas import state_of
from pipeline.tables.enforced import NAME
from pipeline.tables.queries import TableRows
from pipeline.tables.reading import DeltaRsReader
from quota.broker_levels.entries import EntryKey
from quota.broker_levels.writes import Change, Drift, Owned, Refusal
from quota.units import age_text


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What a sync would find and do.

    Attributes:
        changes: What it would write, the most urgent first.
        refused: What can not be written.
    """

    cluster: str
    quota_version: int
    changes: tuple[Change, ...]
    drifts: tuple[Drift, ...]
    refused: tuple[Refusal, ...]
    owned: Mapping[EntryKey, Owned]


def inspect(settings: Settings, *, adopt: bool = False) -> SyncPlan:
    """Look at the tables and at the brokers. Takes no lock and changes nothing.

    Raises:
        PipelineError: A table or the cluster can not be read.
    """
    access = ClusterAccess.from_settings(settings.kafka)
    sources = open_sources(settings)
    table = TableRows(table_uri(settings.tables.root, NAME))
    cluster = cluster_name(settings, access)
    stored = state_of(table, cluster)
    with KafkaQuotas(access) as brokers:
        found = brokers.look()
    now_ms, quotas = wall_ms(), sources.quotas.pin()
    control = new_control(settings, adopt=adopt, at_once=True)
    control.restore_owned(stored.owned, stored.undecided, now_ms)
    control.load_quotas(quotas, sources.mirror)
    control.set_brokers(found.broker_ids)
    control.observe(found.held, now_ms)
    known_until_ms = now_ms
    usage = sources.usage()
    if usage is not None:
        rows = usage.new_rows()
        if rows is not None:
            control.record(rows)
        known_until_ms = usage.known_until_ms
    changes = control.period(known_until_ms, now_ms)
    return SyncPlan(cluster, quotas.version, tuple(changes), control.drifts, control.refused, control.owned)


# What `kquota doctor` says about the brokers' quotas.

Finding = tuple[Literal["ok", "warning"], str]

_SHOWN = 5


def sync_findings(settings: Settings, now_ms: int) -> Iterator[Finding]:
    """Whether a sync runs, what it owns, and what others changed.

    Raises:
        PipelineError: A table or the cluster can not be read.
    """
    root = settings.tables.root
    newest_ms = DeltaRsReader(table_uri(root, NAME)).newest_value("at_ms")
    process = running_sync(root)
    if newest_ms is None and process is None:
        yield "ok", f"not used: the brokers enforce what others set ({command_text('quotas', 'sync', '--help')})"
        return
    plan = inspect(settings)
    last = "no change yet" if newest_ms is None else f"last change {age_text(max(now_ms - newest_ms, 0))} ago"
    runs = "does not run on this machine" if process is None else f"runs as process {process}"
    severity: Literal["ok", "warning"] = "warning" if plan.owned and process is None else "ok"
    yield severity, f"{runs}, {last}; values that are kquota's on the brokers of {plan.cluster}: {len(plan.owned)}"
    see = command_text("quotas", "diff", "--brokers")
    if plan.changes and process is None:
        yield "warning", f"values that the brokers must get: {len(plan.changes)}. Fix: start it again; see {see}"
    for drift in plan.drifts[:_SHOWN]:
        yield "warning", f"{drift_line(drift)}. Fix: remove it there, or start the sync with --adopt"
    if len(plan.drifts) > _SHOWN:
        yield "warning", f"and {len(plan.drifts) - _SHOWN} more such values: see {see}"
