"""Addresses of tables: a folder on this machine, or a URI of an object store."""

from pathlib import Path
from shlex import quote
from typing import Final

from pipeline.command_line import command_text
from pipeline.errors import TableMissing

QUOTAS: Final = "quotas"
"""The name of the quota table."""


def local_file(root: str, name: str) -> Path | None:
    """A file next to the tables in a folder of this machine; None if they lie elsewhere, or if there is none yet."""
    return Path(root) / name if is_local(root) and Path(root).is_dir() else None


def table_uri(root: str, name: str) -> str:
    """Address of a table under a root: a folder, `s3://…`, `abfss://…`."""
    return f"{root.rstrip('/')}/{name}"


def is_local(address: str) -> bool:
    """Whether an address is a folder of this machine, not a URI such as `s3://…`."""
    return "://" not in address


def full_address(address: str) -> str:
    """The address as it is valid in every working folder: an absolute path, or the URI as it is."""
    return str(Path(address).absolute()) if is_local(address) else address


def creating(table: str) -> str:
    """A command that creates a table."""
    return command_text("tables", "create", "--tables", full_address(table).rpartition("/")[0])


def creating_elsewhere(table: str) -> str:
    """A command that creates tables under another root, next to that of a table."""
    return command_text("tables", "create", "--tables", full_address(table).rpartition("/")[0] + "-new")


def looking_at(table: str) -> str:
    """How to see rights and free space of a local table; for others, what to look at there."""
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
