"""Addresses of tables: a folder on this machine, or a URI of an object store."""

from pathlib import Path
from shlex import quote
from typing import Final

from pipeline.command_line import command_text
from pipeline.settings.shard import above_shard
from pipeline.settings.store import StoreAddress

QUOTAS: Final = "quotas"
"""The name of the quota table."""


def table_uri(root: str, name: str) -> str:
    """Address of a table under a root (a folder, `s3://…`, `abfss://…`).

    All shards of a job have one quota table, above their own roots.
    """
    if name == QUOTAS:
        root = shared_root(root)
    return root.below(name) if isinstance(root, StoreAddress) else f"{root.rstrip('/')}/{name}"


def shared_root(root: str) -> str:
    """The root that all shards of a job have in common; without shards the root itself."""
    above = above_shard(root)
    return StoreAddress(above, root.store) if isinstance(root, StoreAddress) else above


def is_local(address: str) -> bool:
    """Whether an address is a folder of this machine, not a URI such as `s3://…`."""
    return "://" not in address


def full_address(address: str) -> str:
    """The address as it is valid in every working folder: an absolute path, or the URI as it is."""
    return str(Path(address).absolute()) if is_local(address) else address


def looking_at(table: str) -> str:
    """A command that shows rights and free space of a local table; for a store, what to look at there."""
    if not is_local(table):
        return command_text("doctor")
    path = quote(full_address(table))
    return f"ls -ld {path}; df -h {path}"
