"""Opens the tables that the settings name, with the adapter that the settings choose.

A root in a catalog is opened by name here, for the job, with the Spark session of this process. Commands that have no
session open such tables by their address: see `pipeline.tables.address`.
"""

import logging
from typing import TYPE_CHECKING

from pipeline.settings.catalog import CatalogRoot
from pipeline.settings.model import TablesSettings
from pipeline.tables.address import is_local, place_of, table_uri
from pipeline.tables.port import RolledTable, TableWriter
from pipeline.tables.quotas.source import QuotaVersions
from pipeline.tables.quotas.table import QuotaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.tables.upkeep import TableUpkeep

log = logging.getLogger(__name__)

# Modules are imported in the functions, not at the top: most commands only open the quota table, and need neither
# writers nor pyarrow nor pyspark.


def create_tables(tables: TablesSettings) -> list[str]:
    """Create the tables that are missing, and return their names.

    Tables in a catalog are created as any tables at their location; the job registers them when it starts.

    Raises:
        StoreUnfit: The root is in an object store that does not do what tables need; nothing was created.
        StoreUnreachable: The store does not answer.
        StoreLibraryMissing: Nothing can look at the store.
        TablesInCatalog: The tables are in a catalog, without a location.
    """
    root = place_of(tables.root)
    if not is_local(root):
        from pipeline.store.probe import refuse_unfit  # noqa: PLC0415

        refuse_unfit(root)
    from pipeline.tables.layout import create_missing  # noqa: PLC0415

    return _told(create_missing(root), root)


def claim_tables(tables: TablesSettings, job: str) -> None:
    """Store the job's name in its tables at its first start, and check it at later starts.

    Raises:
        TablesOfAnotherJob: The tables store another name.
    """
    if isinstance(tables.root, CatalogRoot):
        from pipeline.tables.spark.owner import claim as claim_by_spark  # noqa: PLC0415

        claim_by_spark(_session(), tables.root, job)
    elif tables.writer == "delta-rs":
        from pipeline.tables.ownership import claim  # noqa: PLC0415

        claim(tables.root, job)


def open_catalog(tables: TablesSettings) -> None:
    """Create or register the tables of a root in a catalog, and tell where they lie. Nothing for other roots.

    Raises:
        CatalogForgets, CatalogRefuses, CommitsOverwritten, TableElsewhere: The catalog can not be used so.
    """
    if not isinstance(tables.root, CatalogRoot):
        return
    from pipeline.tables.spark.creation import create_missing  # noqa: PLC0415
    from pipeline.tables.spark.place import CatalogPlace  # noqa: PLC0415

    spark = _session()
    _told(create_missing(spark, tables.root), tables.root)
    log.info("%s", CatalogPlace.of(spark, tables.root).told(tables.root))


def open_writer(tables: TablesSettings, job: str, name: str) -> TableWriter:
    """Open the guarded writer of one of the job's tables. For delta-spark a Spark session must be running."""
    if tables.writer == "delta-spark":
        from pipeline.tables.delta_spark import DeltaSparkWriter  # noqa: PLC0415

        return DeltaSparkWriter(_session(), _address(tables.root, name), job)
    from pipeline.tables.delta_rs import DeltaRsWriter  # noqa: PLC0415

    return DeltaRsWriter(table_uri(tables.root, name), job)


def open_rolled(tables: TablesSettings, name: str) -> RolledTable:
    """Open a table that the job rolls up."""
    if isinstance(tables.root, CatalogRoot):
        from pipeline.tables.spark.reader import DeltaSparkReader  # noqa: PLC0415

        return DeltaSparkReader(_session(), tables.root.table(name))
    from pipeline.tables.reader import DeltaRsReader  # noqa: PLC0415

    return DeltaRsReader(table_uri(tables.root, name))


def open_upkeep(tables: TablesSettings) -> "TableUpkeep":
    """Open the upkeep of the job's tables."""
    if isinstance(tables.root, CatalogRoot):
        from pipeline.tables.spark.upkeep import SparkUpkeep  # noqa: PLC0415

        return SparkUpkeep(_session(), tables.root)
    from pipeline.tables.upkeep import DeltaRsUpkeep  # noqa: PLC0415

    return DeltaRsUpkeep(tables.root)


def open_quota_table(tables: TablesSettings) -> QuotaTable:
    """Open the quota table by its address, to read and to edit it.

    Raises:
        TableMissing: There is no quota table. Only `create_tables` creates it.
        TablesInCatalog: It is in a catalog, without a location.
    """
    return QuotaTable(tables.root)


def open_quota_versions(tables: TablesSettings) -> QuotaVersions:
    """Open the quota table as the job reads it.

    Raises:
        TableMissing: There is no quota table.
    """
    if isinstance(tables.root, CatalogRoot):
        from pipeline.tables.spark.quotas import SparkQuotas  # noqa: PLC0415

        return SparkQuotas(_session(), tables.root)
    return open_quota_table(tables)


def _told(created: list[str], root: str) -> list[str]:
    if created:
        log.info("created tables %s under %s", ", ".join(created), root)
    return created


def _address(root: str, name: str) -> str:
    return root.table(name) if isinstance(root, CatalogRoot) else table_uri(root, name)


def _session() -> "SparkSession":
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.builder.getOrCreate()
