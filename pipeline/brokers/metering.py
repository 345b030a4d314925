"""Switches metering on and off: the quota that no client reaches, so that brokers have a sensor for every client.

Only the brokers are changed. A sync knows such a value by itself, and takes it over when it looks at them next.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.brokers.native import Look, NativeQuotas
from pipeline.brokers.running import Finding
from pipeline.brokers.sync import chosen_rows, key_text
from pipeline.cluster.connecting import ClusterAccess
from pipeline.command_line import command_text
from pipeline.errors import Refused, TableMissing
from pipeline.settings.model import Settings
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from quota.broker_levels.entries import (
    METERED,
    METERED_BY_USER,
    METERING_ENTITIES,
    EntryKey,
    as_brokers_take,
    broker_entries,
    is_metering,
)
from quota.broker_levels.metering import switched_off, switched_on, usual_choice
from quota.broker_levels.writes import Change
from quota.entity import QUOTA_TYPES, label
from quota.snapshot import Quota


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


_BY: Final = {"pair": METERED, "user": METERED_BY_USER}


def planned(settings: Settings, by: str | None) -> list[Change]:
    """What must be written so that the brokers measure every client.

    Args:
        by: `pair` or `user`; None for `usual_choice`.

    Raises:
        Refused: A broker does not use Kafka's own quotas.
        PipelineError: The cluster or the quota table cannot be read.
    """
    look = _look(settings)
    look.refuse_callbacks()
    wanted, named = wanted_keys(settings), {key.quota_type for key in _client_id_keys(settings)}
    chosen = usual_choice(look.held, named) if by is None else dict.fromkeys(QUOTA_TYPES, _BY[by])
    return switched_on(look.held, wanted, chosen)


def removal(settings: Settings) -> list[Change]:
    """What must be written so that nothing is measured that has no quota of others; `PipelineError` as `planned`."""
    return switched_off(_look(settings).held)


def status(settings: Settings) -> tuple[list[Metering], Mapping[str, str]]:
    """What the brokers measure now, and where a class of others decides: `Look.callbacks`."""
    look = _look(settings)
    return measured(look.held), look.callbacks


def _look(settings: Settings) -> Look:
    with NativeQuotas(ClusterAccess.from_settings(settings.kafka)) as cluster:
        return cluster.look()


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
        PipelineError: The cluster cannot be written.
    """
    with NativeQuotas(ClusterAccess.from_settings(settings.kafka)) as cluster:
        refused = cluster.make(changes)
    if refused:
        named = "; ".join(f"{key_text(key)}: {reason}" for key, reason in refused.items())
        message = f"the brokers refuse {named}"
        raise Refused(message, "correct this on the cluster; all other values are written")


def metering_findings(settings: Settings) -> Iterator[Finding]:
    """What `kquota doctor` says of metering by user: quotas of client-ids that no usage can meet."""
    held = _look(settings).held
    unseen = {key.quota_type for key in _client_id_keys(settings) - held.keys()}
    at_user = {name: EntryKey(*METERING_ENTITIES[1], name) for name in QUOTA_TYPES if name in unseen}
    names = [name for name, key in at_user.items() if held.get(key) == METERED_BY_USER]
    if names:
        cause = f"quotas of client-ids are in the table, and brokers measure {', '.join(names)} by user"
        address = "--bootstrap-server", str(settings.kafka.bootstrap_servers)
        fix = command_text("meter", "enable", *address, "--yes")
        yield "warning", f"{cause}: such usage has no client-id. Fix: {fix}"


def wanted_keys(settings: Settings) -> set[EntryKey]:
    """The keys that a sync with these settings would put on the brokers; none without a quota table."""
    source = _source(settings)
    if source is None:
        return set()
    mirror = (settings.scope or source.scope) == "broker"
    quotas = chosen_rows(source.pin(), settings.sync.users)
    return {entry.key for entry in broker_entries(as_brokers_take(quotas), mirror)}


def _client_id_keys(settings: Settings) -> set[EntryKey]:
    """What the quota table has for client-ids, also in shadow mode and for users that the sync leaves out."""
    source = _source(settings)
    quotas: Sequence[Quota] = () if source is None else source.pin().quotas
    return {
        EntryKey(quota.user, quota.client_id, name)
        for quota in quotas
        for name, bound in zip(QUOTA_TYPES, quota.bounds, strict=True)
        if quota.client_id and (bound is not None or quota.mode == "exempt")
    }


def _source(settings: Settings) -> QuotaSource | None:
    try:
        return QuotaSource(QuotaTable(settings.tables.root))
    except TableMissing:
        return None
