"""Addresses of tables: a folder on this machine, a URI of an object store, or a name in a Spark catalog."""

from pathlib import Path
from shlex import quote
from typing import Final

from pipeline.command_line import command_text
from pipeline.errors import PipelineError, TableMissing
from pipeline.settings.places import CatalogRoot, CatalogTable, StoreAddress, is_in_catalog

QUOTAS: Final = "quotas"
"""The name of the quota table."""
OWNER: Final = "kquota.job"
"""The property of `OWNER_TABLE` that has the name of the job that owns the tables."""
OWNER_TABLE: Final = "batches"


class TablesInCatalog(PipelineError):
    """The tables are in a catalog without a location: only Spark can open them by their names."""

    exit_code = 2

    def __init__(self, root: str) -> None:
        self.root = root
        super().__init__(
            f"only Spark can open {root}: its location is not set",
            "set tables.location, or give --tables the place that the job logs when it starts",
        )


def place_of(root: str) -> str:
    """Where the tables under a root lie, for who has no Spark: the root, or the location of one in a catalog."""
    place = known_place(root)
    if place is None:
        raise TablesInCatalog(root)
    return place


def known_place(root: str) -> str | None:
    """The same; None for a root in a catalog that has no location."""
    return root.location if isinstance(root, CatalogRoot) else root


def local_folder(root: str) -> Path | None:
    """The folder of this machine in which the tables lie; None if they lie elsewhere, or if there is none yet."""
    place = known_place(root)
    return Path(place) if place is not None and is_local(place) and Path(place).is_dir() else None


def table_uri(root: str, name: str) -> str:
    """Address of a table under a root (a folder, `s3://…`, `abfss://…`); for a root in a catalog, by its location."""
    place = place_of(root)
    return place.below(name) if isinstance(place, StoreAddress) else f"{place.rstrip('/')}/{name}"


def is_local(address: str) -> bool:
    """Whether an address is a folder of this machine, not a URI such as `s3://…` and not a name in a catalog."""
    return "://" not in address and not is_in_catalog(address)


def full_address(address: str) -> str:
    """The address as it is valid in every working folder: an absolute path, or the URI or name as it is."""
    return str(Path(address).absolute()) if is_local(address) else address


def creating(table: str) -> str:
    """A command that creates a table; one in a catalog is created by the job alone."""
    if isinstance(table, CatalogTable):
        return command_text("run")
    return command_text("tables", "create", "--tables", full_address(table).rpartition("/")[0])


def looking_at(table: str) -> str:
    """How to see rights and free space of a local table; for others, what to look at there."""
    if isinstance(table, CatalogTable):
        return f"DESCRIBE DETAIL {table.sql_name}, in Spark SQL"
    if not is_local(table):
        return command_text("doctor")
    path = quote(full_address(table))
    return f"ls -ld {path}; df -h {path}"


def table_missing(table: str, version: int | None = None, newest_version: int | None = None) -> TableMissing:
    """The error of an address without a table (no `version`), or of a table without this version."""
    if version is None:
        fix = f"correct --tables or --config, or create new tables: {creating(table)}"
        return TableMissing(f"no Delta table at {full_address(table)}", fix, exit_code=2)
    is_future = newest_version is not None and version > newest_version
    newest = "" if newest_version is None else f": the newest is {newest_version}"
    kept = "" if is_future or newest_version is None else f", and version {version} is no longer kept"
    listed = command_text("quotas", "history")
    return TableMissing(f"no version {version} of {full_address(table)}{newest}{kept}", f"name one of these: {listed}")
