"""Addresses of tables: a folder on this machine, or a URI of an object store."""

from pathlib import Path


def is_local(address: str) -> bool:
    """Whether an address is a folder of this machine, not a URI such as `s3://…`."""
    return "://" not in address


def full_address(address: str) -> str:
    """The address as it is valid in every working folder: an absolute path, or the URI as it is."""
    return str(Path(address).absolute()) if is_local(address) else address
