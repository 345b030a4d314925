"""What a sync would do now, computed without writing anything: for dry runs, differences and diagnosis."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.settings.model import Settings
from pipeline.sync.assembly import cluster_name, new_control, open_sources
from pipeline.sync.cluster_quotas import KafkaQuotas
from pipeline.tables.address import table_uri
from pipeline.tables.brokers.quotas import state_of
from pipeline.tables.brokers.rows import NAME
from pipeline.tables.reading.table_rows import TableRows
from quota.broker_entries import EntryKey
from quota.broker_writes import Change, Drift, Owned, Refusal


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What a sync would find and do.

    Attributes:
        cluster: Name of the cluster in the tables.
        quota_version: The quotas in force.
        changes: What it would write, the most urgent first.
        drifts: What it would leave alone, because others wrote it.
        refused: What can not be written.
        owned: What is kquota's on the brokers.
    """

    cluster: str
    quota_version: int
    changes: tuple[Change, ...]
    drifts: tuple[Drift, ...]
    refused: tuple[Refusal, ...]
    owned: Mapping[EntryKey, Owned]


def inspect(settings: Settings, *, adopt: bool = False) -> SyncPlan:
    """Look at the tables and at the brokers. Takes no lock and changes nothing.

    Args:
        settings: The whole tree.
        adopt: Whether values of others would be taken over.

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
    control.set_brokers(found.broker_ids, now_ms)
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
