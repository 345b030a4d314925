"""Upkeep of a table beside the stream: few files, a recent log checkpoint, a short log.

None of it carries the job's app id. Compaction adds no rows and may run while the job appends: it re-tries by itself,
and an append that was overtaken is compared and made again (`delta_rs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable

_MANY_FILES: Final = 200


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What one round did: whether it compacted, and how many files it took away from disk."""

    version: int
    compacted: bool
    removed_file_count: int


def maintain(uri: str, storage_options: Mapping[str, str] | None = None, many_files: int = _MANY_FILES) -> Upkeep:
    """One round of upkeep.

    Compacts if the table has more than `many_files` files, writes a log checkpoint, then deletes log entries and
    replaced files that are older than the table's own retention properties allow.

    Args:
        uri: address of the table.
        storage_options: of delta-rs.
        many_files: how many files may stay as they are.
    """
    table = DeltaTable(uri, storage_options=dict(storage_options) if storage_options else None)
    compacted = len(table.file_uris()) > many_files
    if compacted:
        table.optimize.compact()
    table.create_checkpoint()
    table.cleanup_metadata()
    removed = table.vacuum(dry_run=False)
    return Upkeep(table.version(), compacted, len(removed))
