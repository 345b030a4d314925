"""Table features that others have given a table and that keep kquota from its work, with the way out.

kquota writes with delta-rs. A table with a feature that delta-rs does not write refuses each commit, with the class of
error that a commit gets which another one came before.
"""

from collections.abc import Iterable
from shlex import quote
from typing import Final

from deltalake import DeltaTable

from pipeline.command_line import command_text
from pipeline.errors import Conflict
from pipeline.tables.address import QUOTAS, creating, full_address, is_local
from pipeline.tables.log_files import LogFiles

FIT: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        *("timestampNtz", "variantType", "variantType-preview", "deletionVectors", "v2Checkpoint"),
    }
)
"""What keeps kquota from nothing."""
_WRITTEN: Final = FIT | {"columnMapping"}
# In the order in which Spark lets them go. Others it never drops, or only after a day.
_DROPPABLE: Final = ("rowTracking", "inCommitTimestamp", "domainMetadata")


def unfit_features_of(table: DeltaTable) -> set[str]:
    """The features of a table that keep kquota from a part of its work."""
    return set(table.protocol().writer_features or ()) - FIT


def unfit_features(uri: str) -> set[str]:
    """The same by the log of a table on a local disk, for a table that delta-rs does not open."""
    log, named = LogFiles.of(uri), set[str]()
    if log is not None:
        for version in log.commits:
            for protocol in log.protocols(version):
                named = {*(protocol.get("writerFeatures") or ())}
    return named - FIT


def unwritable(uri: str, table: DeltaTable) -> Conflict:
    """The error of a table to which delta-rs does not write, or that it cannot read in slices, or not merge."""
    unfit = unfit_features_of(table)
    unwritten = unfit - _WRITTEN
    fails = "cannot be written" if unwritten else "cannot be rolled up, replayed or merged"
    return Conflict(f"{uri} {fails}: {given(unwritten or unfit)}", without_features(uri, unwritten or unfit))


def given(features: Iterable[str]) -> str:
    """That a table has features; as the cause of an error."""
    return f"others have given it table features that kquota's library does not have ({', '.join(sorted(features))})"


def refuse_unwritable(uri: str, table: DeltaTable) -> None:
    """Raise (`Conflict`) if delta-rs does not write to a table."""
    if unfit_features_of(table) - _WRITTEN:
        raise unwritable(uri, table)


def without_features(uri: str, features: Iterable[str]) -> str:
    """How to free a table of features: as the text of a fix."""
    named = set(features)
    if named <= {*_DROPPABLE}:
        return altering(uri, [f"DROP FEATURE {one}" for one in _DROPPABLE if one in named])
    place = full_address(uri)
    aside = f"mv {quote(place)} {quote(place + '.altered')}" if is_local(uri) else f"move {place} to another place"
    export = "export the quotas, " if uri.endswith(f"/{QUOTAS}") else ""
    how = f"stop the job, {export}move the table away and create it anew: {aside} && {creating(uri)}"
    return f"Spark drops no such feature; {how}"


def altering(uri: str, changes: Iterable[str]) -> str:
    """How to make changes that `ALTER TABLE` makes, as the text of a fix."""
    root, _, name = full_address(uri).rpartition("/")
    if not is_local(uri):
        return "; ".join(f"ALTER TABLE delta.`{uri}` {change}" for change in changes) + ", in Spark SQL"
    table = QUOTAS if name == QUOTAS else f"delta.`{full_address(uri)}`"
    statements = [f"ALTER TABLE {table} {change}" for change in changes]
    commands = " && ".join(command_text("quotas", "sql", one, "--tables", root) for one in statements)
    # Spark and delta-rs may overwrite each other's commits on a local disk; the quotas have a lock.
    return commands if name == QUOTAS else f"while no job runs: {commands}"
