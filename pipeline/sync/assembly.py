"""Makes the parts of a sync from the settings."""

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.connecting import as_cluster_error
from pipeline.settings.model import Settings
from pipeline.sync.chosen_quotas import ChosenQuotas
from pipeline.sync.sources import Sources
from pipeline.sync.usage_follower import UsageFollower
from pipeline.tables.address import table_uri
from pipeline.tables.from_settings import open_quota_table
from pipeline.tables.quotas.source import QuotaSource
from quota.alter_budget import AlterBudget
from quota.broker_sync import BrokerSync

# The windows of a rate, and some seconds for usage that comes late.
_LATE_MS = 3_000


def open_sources(settings: Settings) -> Sources:
    """Open what the sync follows. In scope `broker` no usage is needed.

    Raises:
        TableMissing, TableUnreadable: A table is not there, or can not be read.
        InvalidQuotas: No version of the quotas is valid.
    """
    uri, first_ms = table_uri(settings.tables.root, "usage"), settings.engine.rate_span_ms + _LATE_MS
    source = QuotaSource(open_quota_table(settings.tables), settings.share)
    quotas = ChosenQuotas(source, frozenset(settings.sync.users))
    sources = Sources(quotas, lambda: UsageFollower(uri, first_ms), settings.scope)
    sources.usage()
    return sources


def new_control(settings: Settings, *, adopt: bool, at_once: bool = False) -> BrokerSync:
    """What says what to write.

    Args:
        settings: The whole tree; `engine` has the sample windows, as the brokers are set.
        adopt: Whether values of others are taken over.
        at_once: No bound on the changes per second: all of them in one period.
    """
    return BrokerSync(
        budget=AlterBudget(1 << 30 if at_once else settings.sync.alters_per_second),
        adopt=adopt,
        num_samples=settings.engine.num_samples,
        sample_window_ms=settings.engine.sample_window_ms,
    )


def cluster_name(settings: Settings, access: ClusterAccess) -> str:
    """The name of the cluster in the tables: its id, if the settings name none.

    Raises:
        ClusterUnreachable: No broker answers.
        SignInRefused: The credentials are refused.
    """
    with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
        return settings.cluster or str(admin.describe_cluster()["cluster_id"])
