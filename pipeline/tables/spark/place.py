"""Where the tables of a catalog lie, and who else can open them there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

from pipeline.settings.catalog import CatalogRoot
from pipeline.store.access import S3_SCHEMES, scheme_of
from pipeline.tables.address import full_address, table_uri
from pipeline.tables.layout import TABLES
from pipeline.tables.spark.errors import CommitsOverwritten, TableElsewhere
from pipeline.tables.spark.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Delta's feature of tables whose commits the catalog keeps, and its name before it was released.
_MANAGED: Final = ("catalogManaged", "catalogOwned-preview")
_DATABRICKS: Final = "DATABRICKS_RUNTIME_VERSION"


@dataclass(frozen=True, slots=True)
class CatalogPlace:
    """Where the tables lie.

    Attributes:
        folder: The folder or place in a store that has all tables by their names; None if there is none.
        is_managed: Whether the catalog keeps the commits, so that a reader without the catalog misses the newest.
    """

    folder: str | None
    is_managed: bool

    @classmethod
    def of(cls, spark: "SparkSession", root: CatalogRoot, environ: Mapping[str, str] = os.environ) -> Self:
        """Ask the catalog.

        Raises:
            TableElsewhere: A table is not at the location that the settings name.
            CommitsOverwritten: A table is in S3, where Spark's commits would overwrite each other.
        """
        details = {name: SparkTable(spark, root.table(name)).detail() for name in TABLES}
        is_managed = any(_is_managed(detail) for detail in details.values())
        for name, detail in details.items():
            refuse_unfit(root, name, detail, is_ordered=is_managed or _DATABRICKS in environ)
        folders = {folder_of(str(detail["location"]), name) for name, detail in details.items()}
        return cls(folders.pop() if len(folders) == 1 else None, is_managed)

    def told(self, root: CatalogRoot) -> str:
        """One line about the place, for the log."""
        if self.is_managed:
            return f"tables are in {root}, which manages their commits: only Spark can open them"
        if self.folder is None:
            return f"tables are in {root}, each at a place of its own: only Spark can open them by their names"
        how = "finds them by tables.location" if root.location else f"opens them with --tables {self.folder}"
        return f"tables are in {root} and lie under {self.folder}: what works without Spark {how}"


def refuse_unfit(root: CatalogRoot, name: str, detail: Mapping[str, Any], *, is_ordered: bool) -> None:
    """Refuse a table by its row of `DESCRIBE DETAIL`.

    Args:
        root: The root.
        name: Of the table.
        detail: The row.
        is_ordered: Whether something orders commits in S3.

    Raises:
        TableElsewhere, CommitsOverwritten: See `CatalogPlace.of`.
    """
    address, location = root.table(name), str(detail["location"])
    if root.location is not None:
        wanted = full_address(table_uri(root, name))
        if plain(location) != plain(wanted):
            raise TableElsewhere(address, plain(location), plain(wanted))
    if scheme_of(location) in S3_SCHEMES and not is_ordered:
        raise CommitsOverwritten(address, location)


def folder_of(location: str, name: str) -> str | None:
    """The place above a table whose last part is its name; None for a table at a place of another name."""
    above, _, last = plain(location).rpartition("/")
    return above if last == name else None


def plain(location: str) -> str:
    """A location as Delta tells it, as an address: `file:/a%20b` is the folder `/a b`."""
    parts = urlsplit(location)
    address = unquote(parts.path) if parts.scheme == "file" else location
    return address.rstrip("/")


def _is_managed(detail: Mapping[str, Any]) -> bool:
    return any(feature in _MANAGED for feature in detail.get("tableFeatures") or ())
