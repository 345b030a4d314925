"""Tables in a Spark catalog: creation, ownership, location, the quota table and upkeep, all through Spark.

Tables that lie at the root's location already are registered, not created.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.errors import PipelineError, TableMissing, UsageError, first_line
from pipeline.settings.places import CatalogRoot, CatalogTable
from pipeline.tables.address import OWNER, OWNER_TABLE, full_address, table_missing, table_uri
from pipeline.tables.delta_spark import DeltaSparkReader, SparkTable, literal, reading_by_spark
from pipeline.tables.layout import STATISTICS, TABLES, TableDefinition
from pipeline.tables.object_store import S3_SCHEMES, scheme_of
from pipeline.tables.port import TableUnreadable, tables_of_another_job
from pipeline.tables.quotas.table import QuotaTableState
from pipeline.tables.upkeep import MANY_FILES, rows_before
from schemas.columns import columns, spark_ddl
from schemas.rows import QuotaRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SESSION_CATALOG = "spark_catalog"


def create_missing(
    spark: "SparkSession", root: CatalogRoot, definitions: Iterable[TableDefinition] = TABLES.values()
) -> list[str]:
    """Create the schema and the tables that are missing, with properties and constraints; see `layout`.

    A table that lies at the root's location already is registered, and its name is not returned. `UsageError` if the
    catalog is in memory and the root has no location, `PipelineError` if Spark or the catalog refuses.
    """
    refuse_forgetting(spark, root)
    with _refusals(root):
        if not spark.catalog.databaseExists(root.sql_schema):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {root.sql_schema}{_schema_location(root)}").collect()
    return [definition.name for definition in definitions if _create(spark, root, definition)]


def refuse_forgetting(spark: "SparkSession", root: CatalogRoot) -> None:
    """Refuse (`UsageError`) a catalog that ends with the session, where the next one would not find the tables."""
    in_memory = spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory"
    if root.catalog == _SESSION_CATALOG and in_memory and root.location is None:
        message = f"Spark keeps the catalog of {root} in memory and loses its tables when the session ends"
        raise UsageError(message, "set 'tables.location' to a folder; at each start the job registers the tables there")


def _schema_location(root: CatalogRoot) -> str:
    # Otherwise Spark makes a folder for it in the working folder. It is not the tables' own folder, because DROP SCHEMA
    # deletes it with all that is in it. Other catalogs take no location of a schema.
    if root.catalog != _SESSION_CATALOG or root.location is None:
        return ""
    return f" LOCATION {literal(full_address(table_uri(root, '_schema')))}"


def _create(spark: "SparkSession", root: CatalogRoot, definition: TableDefinition) -> bool:
    address = root.table(definition.name)
    location = None if root.location is None else full_address(table_uri(root, definition.name))
    created = False
    with _refusals(address):
        if not spark.catalog.tableExists(address.sql_name):
            created = location is None or not DeltaTable.isDeltaTable(spark, location)
            registered = f"CREATE TABLE IF NOT EXISTS {address.sql_name} USING DELTA LOCATION {literal(location or '')}"
            spark.sql(_created(address, location, definition) if created else registered).collect()
        _add_what_is_missing(SparkTable(spark, address), definition)
    return created


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


def _add_what_is_missing(table: SparkTable, definition: TableDefinition) -> None:
    present = set(table.rows().columns)
    missing = [one for one in columns(definition.model) if one.nullable and one.name not in present]
    if missing:
        added = ", ".join(f"`{one.name}` {one.type.spark}" for one in missing)
        table.run(f"ALTER TABLE {{table}} ADD COLUMNS ({added})")
        statistics = definition.configuration_by_spark.get(STATISTICS)
        if statistics is not None:
            table.run(f"ALTER TABLE {{table}} SET TBLPROPERTIES ({literal(STATISTICS)} = {literal(statistics)})")
    properties: dict[str, Any] = table.detail()["properties"] if definition.constraints else {}
    for name, rule in definition.constraints.items():
        if f"delta.constraints.{name}" not in properties:
            table.run(f"ALTER TABLE {{table}} ADD CONSTRAINT `{name}` CHECK ({rule})")


@contextmanager
def _refusals(subject: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        fix = "correct tables.root, or let somebody with the right create schema and tables (docs/catalog-tables.md)"
        message = f"{subject} cannot be created or changed: {first_line(exc)}"
        raise PipelineError(message, fix) from exc


# The name of the job that owns tables in a catalog: as `pipeline.tables.from_settings`, through Spark.


def claim(spark: "SparkSession", root: CatalogRoot, job: str) -> None:
    """As `from_settings.claim_tables`; `TableUnwritable` if Spark refuses to store the name."""
    table = SparkTable(spark, root.table(OWNER_TABLE))
    owner = table.detail()["properties"].get(OWNER)
    if owner is not None and owner != job:
        raise tables_of_another_job(root, job, owner)
    if owner is None:
        table.change(f"ALTER TABLE {{table}} SET TBLPROPERTIES ({literal(OWNER)} = {literal(job)})")


# Where the tables of a catalog lie, and who else can open them there.

# Delta's feature of tables whose commits the catalog keeps, and its name before it was released.
_MANAGED: Final = ("catalogManaged", "catalogOwned-preview")
_DATABRICKS: Final = "DATABRICKS_RUNTIME_VERSION"


@dataclass(frozen=True, slots=True)
class CatalogPlace:
    """Where the tables lie: the folder or place in a store that has all of them by their names; None without one.

    `is_managed`: the catalog keeps the commits, so that a reader without the catalog misses the newest.
    """

    folder: str | None
    is_managed: bool

    @classmethod
    def of(cls, spark: "SparkSession", root: CatalogRoot, environ: Mapping[str, str] = os.environ) -> Self:
        """Ask the catalog; `UsageError` if a table is in S3 or not where the settings put it, see `refuse_unfit`."""
        details = {name: SparkTable(spark, root.table(name)).detail() for name in TABLES}
        features = (feature for detail in details.values() for feature in detail.get("tableFeatures") or ())
        is_managed = any(feature in _MANAGED for feature in features)
        for name, detail in details.items():
            refuse_unfit(root, name, detail, is_ordered=is_managed or _DATABRICKS in environ)
        folders = {folder_of(str(detail["location"]), name) for name, detail in details.items()}
        return cls(folders.pop() if len(folders) == 1 else None, is_managed)

    def described(self, root: CatalogRoot) -> str:
        """One line about the place, for the log."""
        if self.is_managed:
            return f"tables are in {root}, which manages their commits: only Spark can open them"
        if self.folder is None:
            return f"tables are in {root}, each at a place of its own: only Spark can open them by their names"
        how = "finds them by tables.location" if root.location else f"opens them with --tables {self.folder}"
        return f"tables are in {root} and lie under {self.folder}: what works without Spark {how}"


def refuse_unfit(root: CatalogRoot, name: str, detail: Mapping[str, Any], *, is_ordered: bool) -> None:
    """Refuse a table by its row of `DESCRIBE DETAIL`; `is_ordered`: whether something orders commits in S3."""
    address, location = root.table(name), str(detail["location"])
    if root.location is not None:
        wanted = full_address(table_uri(root, name))
        if plain(location) != plain(wanted):
            message = f"{address} lies at {plain(location)}, not at {plain(wanted)}, where 'tables.location' puts it"
            raise UsageError(message, "correct tables.location, or take another schema")
    if scheme_of(location) in S3_SCHEMES and not is_ordered:
        why = "without a service that orders commits; Spark's writer could overwrite commits of others there"
        message = f"{address} is in S3 at {location}, {why}"
        fix = "use a catalog that manages commits, or delta-rs with the address as tables.root"
        raise UsageError(message, fix)


def folder_of(location: str, name: str) -> str | None:
    """The place above a table whose last part is its name; None for a table at a place of another name."""
    above, _, last = plain(location).rpartition("/")
    return above if last == name else None


def plain(location: str) -> str:
    """A location as Delta gives it, as an address: `file:/a%20b` is the folder `/a b`."""
    parts = urlsplit(location)
    address = unquote(parts.path) if parts.scheme == "file" else location
    return address.rstrip("/")


# The quota table in a catalog, read version by version through Spark. SQL writes it, not this class.

_DEFAULTS: Final = {"kquota.scope": "cluster", "kquota.mode": "enforce"}


class SparkQuotas:
    """`QuotaVersions` of a table in a catalog. It may be shared between threads."""

    def __init__(self, spark: "SparkSession", root: CatalogRoot) -> None:
        self.uri: str = root.table("quotas")
        self._table = SparkTable(spark, self.uri)

    def version(self) -> int:
        """The newest version. Takes about 0.1 s."""
        return self._table.newest_version()

    def read(self, version: int | None = None) -> QuotaTableState:
        """See `QuotaVersions`."""
        commits = self._table.history()
        newest = int(commits[0]["version"])
        at = newest if version is None else version
        properties = properties_at(commits, self._table.detail()["properties"], at)
        return QuotaTableState(at, self._rows(at, newest), properties["kquota.scope"], properties["kquota.mode"])

    def _rows(self, version: int, newest: int) -> tuple[dict[str, Any], ...]:
        columns = [f"`{name}`" for name in QuotaRow.model_fields]
        try:
            with reading_by_spark(self.uri):
                rows = [row.asDict() for row in self._table.rows_at(version).select(columns).collect()]
        except (TableMissing, TableUnreadable) as exc:
            if isinstance(exc, TableUnreadable) and not exc.is_file_missing:
                raise
            raise table_missing(self.uri, version, newest) from exc
        return tuple(sorted(rows, key=lambda row: (row["user"], row["client_id"])))


def properties_at(commits: Sequence[Any], newest: Mapping[str, str], version: int) -> dict[str, str]:
    """Scope and mode at a version. Spark gives the properties of the newest version only; the history has the changes.

    Where the log no longer has the commit that set one, and a later one has changed it, that is the default.

    * `commits`: Rows of `DESCRIBE HISTORY`, newest first.
    * `newest`: The properties at the newest version.
    """
    found = {}
    for name, default in _DEFAULTS.items():
        changes = [(commit["version"], value) for commit in commits if (value := _set_by(commit, name)) is not None]
        before = [value for at, value in changes if at <= version]
        found[name] = before[0] if before else default if changes else newest.get(name, default)
    return found


def _set_by(commit: Any, name: str) -> str | None:
    parameters = commit["operationParameters"] or {}
    try:
        properties = json.loads(parameters.get("properties") or "{}")
    except ValueError:
        return None
    if "UNSET" in commit["operation"]:
        return _DEFAULTS[name] if name in properties else None
    value = properties.get(name) if isinstance(properties, dict) else None
    return None if value is None else str(value)


# The upkeep of tables in a catalog, by Spark SQL.
#
# These commits do not carry the job's app id. An append of the job adds files and reads none, so it is in conflict with
# none of them; if one of them is, the step fails and is made again in the next round.

# Otherwise a cleaning lists some folders by ten thousand tasks, which takes 15 s on two cores.
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


class SparkUpkeep:
    """As `DeltaRsUpkeep`, on a Spark session. Days are merged and not sorted."""

    # A cleaning lists all files by Spark's tasks, so not at the start of a job; Delta's own commits clean the log.
    rounds_per_cleaning = 60
    cleaning_round = 5

    def __init__(self, spark: "SparkSession", root: CatalogRoot, many_files: int = MANY_FILES) -> None:
        self._spark = spark
        self._root = root
        self._many_files = many_files
        spark.conf.set(_LISTING, str(spark.sparkContext.defaultParallelism))

    def newest_value(self, name: str, column: str) -> int | None:
        return self._reader(name).newest_value(column)

    def newest_evaluation_ms(self, name: str) -> int | None:
        newest = self._reader(name).newest_instant()
        return None if newest is None else newest.evaluated_at_ms

    def trim(self, name: str, column: str, before_ms: int) -> int:
        reader = self._reader(name)
        old, predicate = rows_before(column, before_ms)
        rows = reader.count(old)
        if rows:
            reader.change(f"DELETE FROM {{table}} WHERE {predicate}")  # noqa: S608 - names and numbers of ours
        return rows

    def merge(self, name: str) -> bool:
        reader = self._reader(name)
        is_due = int(reader.detail()["numFiles"]) > self._many_files
        if is_due:
            reader.change("OPTIMIZE {table}")
        return is_due

    def clean(self, name: str, *, files: bool) -> int:
        if files:
            self._reader(name).change("VACUUM {table}")
        return 0

    def _reader(self, name: str) -> DeltaSparkReader:
        return DeltaSparkReader(self._spark, self._root.table(name))
