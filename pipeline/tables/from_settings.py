"""Opens the tables that the settings name, with the adapter that the settings choose.

A root in a catalog is opened by name here, for the job, with the Spark session of this process. Commands that have no
session open such tables by their address: see `pipeline.tables.address`.
"""

import logging
from functools import partial
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from pipeline.errors import TableMissing
from pipeline.settings.model import TablesSettings
from pipeline.settings.places import CatalogRoot
from pipeline.tables.address import OWNER, OWNER_TABLE, is_local, place_of, table_uri
from pipeline.tables.committing import NO_CLEANING, committed
from pipeline.tables.opening import open_table
from pipeline.tables.port import RolledTable, TableWriter, tables_of_another_job
from pipeline.tables.quotas.source import QuotaVersions
from pipeline.tables.quotas.table import QuotaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.tables.catalog import SparkUpkeep
    from pipeline.tables.upkeep import DeltaRsUpkeep


log = logging.getLogger(__name__)

# Modules are imported in the functions, not at the top: most commands only open the quota table, and need neither
# writers nor pyarrow nor pyspark.


def create_tables(tables: TablesSettings) -> list[str]:
    """Create the tables that are missing, and return their names.

    Tables in a catalog are created as any tables at their location; the job registers them when it starts. Raises as
    `object_store.refuse_unfit` and `TablesInCatalog`; then nothing was created.
    """
    root = place_of(tables.root)
    if not is_local(root):
        from pipeline.tables.object_store import refuse_unfit  # noqa: PLC0415

        refuse_unfit(root)
    from pipeline.tables.layout import create_missing  # noqa: PLC0415

    return _logged(create_missing(root), root)


def claim_tables(tables: TablesSettings, job: str) -> None:
    """Store the job's name in its tables at its first start; `Conflict` if they store another name later."""
    if isinstance(tables.root, CatalogRoot):
        from pipeline.tables.catalog import claim as claim_by_spark  # noqa: PLC0415

        claim_by_spark(_session(), tables.root, job)
    elif tables.writer == "delta-rs":
        claim(tables.root, job)


def open_catalog(tables: TablesSettings) -> None:
    """Create or register the tables of a root in a catalog, and log where they lie. Nothing for other roots."""
    if not isinstance(tables.root, CatalogRoot):
        return
    from pipeline.tables.catalog import CatalogPlace, create_missing  # noqa: PLC0415

    spark = _session()
    _logged(create_missing(spark, tables.root), tables.root)
    log.info("%s", CatalogPlace.of(spark, tables.root).described(tables.root))


def open_writer(tables: TablesSettings, job: str, name: str) -> TableWriter:
    """Open the guarded writer of one of the job's tables. For delta-spark a Spark session must be running."""
    if tables.writer == "delta-spark":
        from pipeline.tables.delta_spark import DeltaSparkWriter  # noqa: PLC0415

        root = tables.root
        address = root.table(name) if isinstance(root, CatalogRoot) else table_uri(root, name)
        return DeltaSparkWriter(_session(), address, job)
    from pipeline.tables.delta_rs import DeltaRsWriter  # noqa: PLC0415

    return DeltaRsWriter(table_uri(tables.root, name), job)


def open_rolled(tables: TablesSettings, name: str) -> RolledTable:
    """Open a table that the job rolls up."""
    if isinstance(tables.root, CatalogRoot):
        from pipeline.tables.delta_spark import DeltaSparkReader  # noqa: PLC0415

        return DeltaSparkReader(_session(), tables.root.table(name))
    from pipeline.tables.reading import DeltaRsReader  # noqa: PLC0415

    return DeltaRsReader(table_uri(tables.root, name))


def open_upkeep(tables: TablesSettings) -> "DeltaRsUpkeep | SparkUpkeep":
    """Open the upkeep of the job's tables."""
    if isinstance(tables.root, CatalogRoot):
        from pipeline.tables.catalog import SparkUpkeep  # noqa: PLC0415

        return SparkUpkeep(_session(), tables.root)
    from pipeline.tables.upkeep import DeltaRsUpkeep  # noqa: PLC0415

    return DeltaRsUpkeep(tables.root)


def open_quota_table(tables: TablesSettings) -> QuotaTable:
    """Open the quota table by its address, to read and to edit it; `TableMissing` or `TablesInCatalog`."""
    return QuotaTable(tables.root)


def open_quota_versions(tables: TablesSettings) -> QuotaVersions:
    """Open the quota table as the job reads it."""
    if isinstance(tables.root, CatalogRoot):
        from pipeline.tables.catalog import SparkQuotas  # noqa: PLC0415

        return SparkQuotas(_session(), tables.root)
    return open_quota_table(tables)


def _logged(created: list[str], root: str) -> list[str]:
    if created:
        log.info("created tables %s under %s", ", ".join(created), root)
    return created


def _session() -> "SparkSession":
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.builder.getOrCreate()


# The name of the job that owns a set of tables.
#
# The epoch, the record numbers and the transactional id depend on the job's name. If a second job wrote the same tables
# under another name, neither would fence the other. So the tables store the name of the first job.


def claim(root: str, job: str) -> None:
    """See `claim_tables`."""
    owner = owner_of(root)
    if owner is None:
        committed(table_uri(root, OWNER_TABLE), partial(_name_owner, job))
    elif owner != job:
        raise tables_of_another_job(root, job, owner)


def _name_owner(job: str, table: DeltaTable) -> None:
    named = {OWNER: job}
    table.alter.set_table_properties(named, raise_if_not_exists=False, post_commithook_properties=NO_CLEANING)


def owner_of(root: str) -> str | None:
    """The job name stored in the tables; None if no job has started on them, or if there are no tables."""
    try:
        return open_table(table_uri(root, OWNER_TABLE)).metadata().configuration.get(OWNER)
    except TableMissing:
        return None
