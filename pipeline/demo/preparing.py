"""What must be there before the demo's job can start: the cluster, settings, topics, tables, quotas."""

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.broker_config import BrokerOptions
from pipeline.demo.clients import create_demo_topics
from pipeline.demo.cluster import EmbeddedCluster
from pipeline.demo.folder import DemoFolder
from pipeline.demo.plan import DEMO_QUOTAS
from pipeline.demo.written_files import write_candidate, write_settings
from pipeline.settings.model import Settings
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import create_tables, open_quota_table


def new_cluster(folder: DemoFolder, brokers: int) -> EmbeddedCluster:
    """The cluster of a demo, which is not started yet. Its brokers write request logs, for the meters."""
    return EmbeddedCluster(folder.brokers(brokers), folder.passwords(), BrokerOptions(request_log=True))


def demo_settings(settings: Settings, folder: DemoFolder, cluster: EmbeddedCluster) -> Settings:
    """The settings with the addresses and folders of a demo whose cluster runs."""
    given = settings.model_dump()
    given["kafka"] |= {"bootstrap_servers": cluster.bootstrap_servers}
    given["tables"] |= {"root": str(folder.tables)}
    given["stream"] |= {"checkpoint": str(folder.checkpoint)}
    return Settings.model_validate({**given, "run_dir": folder.root})


def prepare(folder: DemoFolder, settings: Settings, brokers: int) -> None:
    """Write the files, create topics and tables that are missing, and fill a new quota table.

    Args:
        folder: The demo's.
        settings: As `demo_settings` makes them.
        brokers: How many the cluster has.
    """
    write_settings(folder, settings)
    write_candidate(folder)
    with ClusterAccess.from_settings(settings.kafka).admin() as admin:
        create_topics(admin, wanted_topics(settings))
        create_demo_topics(admin, brokers)
    if "quotas" in create_tables(settings.tables):
        audit = local_audit("the demo's quotas")
        open_quota_table(settings.tables).edit(lambda _: list(DEMO_QUOTAS), audit)
