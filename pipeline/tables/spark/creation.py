"""Creates the tables in a catalog, or registers those that lie at its location already."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.errors import first_line
from pipeline.settings.catalog import CatalogRoot, CatalogTable
from pipeline.tables.address import full_address, table_uri
from pipeline.tables.layout import STATISTICS, TABLES, TableDefinition
from pipeline.tables.spark.errors import CatalogForgets, CatalogRefuses
from pipeline.tables.spark.table import SparkTable, literal
from schemas.columns import columns, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONSTRAINT = "delta.constraints."
_SESSION_CATALOG = "spark_catalog"


def create_missing(
    spark: "SparkSession", root: CatalogRoot, definitions: Iterable[TableDefinition] = TABLES.values()
) -> list[str]:
    """Create the schema and the tables that are missing, with their properties and constraints.

    Can be repeated, also after a creation that was interrupted. A table that lies at the root's location already is
    registered. Tables of earlier releases get the columns that they lack; nothing else of an existing table changes.

    Returns:
        Names of the tables that were created, in the order of `definitions`; not of those that were registered.

    Raises:
        CatalogForgets: The catalog is in memory, and the root has no location.
        CatalogRefuses: Spark or the catalog refuses.
    """
    refuse_forgetting(spark, root)
    with _refusals(root):
        if not spark.catalog.databaseExists(root.sql_schema):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {root.sql_schema}{_schema_location(root)}").collect()
    return [definition.name for definition in definitions if _create(spark, root, definition)]


def refuse_forgetting(spark: "SparkSession", root: CatalogRoot) -> None:
    """Refuse a catalog that ends with the session, where the next session would not find the tables again.

    Raises:
        CatalogForgets: It is one, and the root has no location.
    """
    in_memory = spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory"
    if root.catalog == _SESSION_CATALOG and in_memory and root.location is None:
        raise CatalogForgets(root)


def _schema_location(root: CatalogRoot) -> str:
    # Otherwise Spark makes a folder for it in the working folder. It is not the tables' own folder, because DROP SCHEMA
    # deletes it with all that is in it. Other catalogs take no location of a schema.
    if root.catalog != _SESSION_CATALOG or root.location is None:
        return ""
    return f" LOCATION {literal(full_address(table_uri(root, '_schema')))}"


def _create(spark: "SparkSession", root: CatalogRoot, definition: TableDefinition) -> bool:
    """Create or register one table, with its constraints. True if it is new."""
    address = root.table(definition.name)
    location = None if root.location is None else full_address(table_uri(root, definition.name))
    created = False
    with _refusals(address):
        if not spark.catalog.tableExists(address.sql_name):
            is_there = location is not None and DeltaTable.isDeltaTable(spark, location)
            spark.sql(_registered(address, location) if is_there else _created(address, location, definition)).collect()
            created = not is_there
        _add_missing_columns(SparkTable(spark, address), definition)
        if definition.constraints:
            _add_constraints(SparkTable(spark, address), definition)
    return created


def _registered(address: CatalogTable, location: str | None) -> str:
    return f"CREATE TABLE IF NOT EXISTS {address.sql_name} USING DELTA LOCATION {literal(location or '')}"


def _created(address: CatalogTable, location: str | None, definition: TableDefinition) -> str:
    clauses = [f"CREATE TABLE IF NOT EXISTS {address.sql_name} ({spark_ddl(definition.model)}) USING DELTA"]
    if definition.partition_by:
        clauses.append(f"PARTITIONED BY ({', '.join(f'`{name}`' for name in definition.partition_by)})")
    if location is not None:
        clauses.append(f"LOCATION {literal(location)}")
    clauses.append(f"COMMENT {literal(definition.description)}")
    properties = definition.configuration_by_spark.items()
    clauses.append(f"TBLPROPERTIES ({', '.join(f'{literal(key)} = {literal(value)}' for key, value in properties)})")
    return " ".join(clauses)


def _add_missing_columns(table: SparkTable, definition: TableDefinition) -> None:
    present = set(table.rows().columns)
    missing = [one for one in columns(definition.model) if one.nullable and one.name not in present]
    if missing:
        added = ", ".join(f"`{one.name}` {one.type.spark}" for one in missing)
        table.run(f"ALTER TABLE {{table}} ADD COLUMNS ({added})")
        statistics = definition.configuration_by_spark.get(STATISTICS)
        if statistics is not None:
            table.run(f"ALTER TABLE {{table}} SET TBLPROPERTIES ({literal(STATISTICS)} = {literal(statistics)})")


def _add_constraints(table: SparkTable, definition: TableDefinition) -> None:
    properties: dict[str, Any] = table.detail()["properties"]
    present = {name.removeprefix(_CONSTRAINT) for name in properties if name.startswith(_CONSTRAINT)}
    for name, rule in definition.constraints.items():
        if name not in present:
            table.run(f"ALTER TABLE {{table}} ADD CONSTRAINT `{name}` CHECK ({rule})")


@contextmanager
def _refusals(subject: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        raise CatalogRefuses(subject, first_line(exc)) from exc
