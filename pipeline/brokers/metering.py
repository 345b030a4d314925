"""Switches metering on and off: the quota that no client reaches, so that brokers have a sensor for every client.

What is written is stored in `broker_quotas`, where there are tables. A sync that runs on this machine is not disturbed:
then only the brokers are changed, and the sync takes it over when it looks at them next.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.brokers.changes import ChangeWriter, KafkaQuotas
from pipeline.brokers.lock import running_sync, sync_lock
from pipeline.brokers.running import cluster_name
from pipeline.brokers.sync import ChosenQuotas
from pipeline.clock import SystemClock
from pipeline.cluster.access import ClusterAccess
from pipeline.errors import Refused, TableMissing
from pipeline.settings.model import Settings
from pipeline.tables.broker_quotas import BrokerQuotasTable
from pipeline.tables.from_settings import open_quota_table
from pipeline.tables.quotas.source import QuotaSource
from quota.broker_levels.entries import METERING_ENTITIES, EntryKey, as_brokers_take, broker_entries, is_metering
from quota.broker_levels.metering import switched_off, switched_on
from quota.broker_levels.writes import Change
from quota.entity import QUOTA_TYPES, label


@dataclass(frozen=True, slots=True)
class Metering:
    """What brokers measure, of one quota type.

    Attributes:
        entity: Where the huge quota stands, as text; "" if it does not.
        by: `user and client-id`, `user`, `client-id`; "" if only clients with a quota of their own are measured.
    """

    quota_type: str
    entity: str
    by: str


def plan(settings: Settings, *, enable: bool) -> tuple[list[Change], list[Metering]]:
    """What must be written to the brokers, and what they measure now; `PipelineError` if that cannot be read."""
    access = ClusterAccess.from_settings(settings.kafka)
    with KafkaQuotas(access) as cluster:
        held = cluster.look().held
    changes = switched_on(held, wanted_keys(settings)) if enable else switched_off(held)
    return changes, measured(held)


def measured(held: Mapping[EntryKey, float]) -> list[Metering]:
    """What brokers with these quotas measure of every client, by quota type."""
    found = []
    for quota_type in QUOTA_TYPES:
        standing = [one for one in METERING_ENTITIES if EntryKey(*one, quota_type) in held]
        huge = [one for one in standing if is_metering(EntryKey(*one, quota_type), held[EntryKey(*one, quota_type)])]
        words = {METERING_ENTITIES[0]: "user and client-id", METERING_ENTITIES[1]: "user"}
        by = words.get(standing[0], "client-id") if standing else ""
        found.append(Metering(quota_type, label(*huge[0]) if huge else "", by))
    return found


def write(settings: Settings, changes: list[Change]) -> None:
    """Write what was planned.

    Raises:
        Refused: The brokers refuse it.
        PipelineError: The cluster or the table cannot be written.
    """
    access = ClusterAccess.from_settings(settings.kafka)
    with KafkaQuotas(access) as cluster:
        table = None if running_sync(settings.tables.root) else _table(settings, access)
        if table is None:
            refused = list(cluster.alter(changes).items())
        else:
            with sync_lock(settings.tables.root):
                writer = ChangeWriter(table, cluster, SystemClock())
                writer.take_over()
                refused = [(change.key, reason) for change, reason in writer.write(changes).refused]
    if refused:
        key, reason = refused[0]
        message = f"the brokers refuse {label(key.user, key.client_id)} {key.quota_type}: {reason}"
        raise Refused(message, "correct this on the cluster; all other values are written")


def wanted_keys(settings: Settings) -> set[EntryKey]:
    """The keys that a sync with these settings would put on the brokers; none without a quota table."""
    try:
        table = QuotaSource(open_quota_table(settings.tables))
    except TableMissing:
        return set()
    source = ChosenQuotas(table, frozenset(settings.sync.users))
    mirror = (settings.scope or source.scope) == "broker"
    return {entry.key for entry in broker_entries(as_brokers_take(source.pin()), mirror)}


def _table(settings: Settings, access: ClusterAccess) -> BrokerQuotasTable | None:
    try:
        return BrokerQuotasTable(settings.tables.root, cluster_name(settings, access))
    except TableMissing:
        return None
