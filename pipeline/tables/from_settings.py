"""Opens the tables that the settings name, with the adapter that the settings choose."""

import logging

from pipeline.settings.model import TablesSettings
from pipeline.tables.address import is_local, table_uri
from pipeline.tables.port import TableWriter
from pipeline.tables.quotas.table import QuotaTable

log = logging.getLogger(__name__)


def create_tables(tables: TablesSettings) -> list[str]:
    """Create the tables that are missing, and return their names.

    Raises:
        StoreUnfit: The root is in an object store that does not do what tables need; nothing was created.
        StoreUnreachable: The store does not answer.
        StoreLibraryMissing: Nothing can look at the store.
    """
    if not is_local(tables.root):
        from pipeline.store.probe import refuse_unfit  # noqa: PLC0415 - as below

        refuse_unfit(tables.root)
    # Here and below, not at the top: most commands only open the quota table, and need neither writers nor pyarrow.
    from pipeline.tables.layout import create_missing  # noqa: PLC0415

    created = create_missing(tables.root)
    if created:
        log.info("created tables %s under %s", ", ".join(created), tables.root)
    return created


def open_writer(tables: TablesSettings, job: str, name: str) -> TableWriter:
    """Open the guarded writer of one of the job's tables. For delta-spark a Spark session must be running."""
    uri = table_uri(tables.root, name)
    if tables.writer == "delta-spark":
        # Only this writer needs pyspark; without it kquota runs without pyspark.
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from pipeline.tables.delta_spark import DeltaSparkWriter  # noqa: PLC0415

        return DeltaSparkWriter(SparkSession.builder.getOrCreate(), uri, job)
    from pipeline.tables.delta_rs import DeltaRsWriter  # noqa: PLC0415

    return DeltaRsWriter(uri, job)


def open_quota_table(tables: TablesSettings) -> QuotaTable:
    """Open the quota table.

    Raises:
        TableMissing: There is no quota table. Only `create_tables` creates it.
    """
    return QuotaTable(tables.root)
