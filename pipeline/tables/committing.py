"""Commits to tables by delta-rs: made again if another commit came first, else refused with the real reason."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError

from pipeline.errors import Conflict, PipelineError
from pipeline.tables.address import looking_at
from pipeline.tables.log_files import keep
from pipeline.tables.opening import OF_FEATURES, causes_of, open_table, unfit_features, unwritable
from pipeline.tables.port import UNDO_OTHERS, TableUnwritable, lost_race, rows_refused

log = logging.getLogger(__name__)

_ROWS_REFUSED: Final = ("Invalid data found", "Cannot cast schema", "non-nullable")

ATTEMPTS: Final = 5
"""Maintenance commits a few times a minute only. If more attempts than this fail in a row, there is another writer."""

NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""For a commit after which the caller writes the checkpoint: what fails by then must not look like a failed commit."""
NO_CLEANING: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""For all other commits: delta-rs would clean the log before the disk has the checkpoint that stands for it."""

_Result = TypeVar("_Result")


def committed(uri: str, commit: Callable[[DeltaTable], _Result]) -> _Result:
    """What a function returns that makes a commit on a new handle; called again if another commit came first.

    Raises:
        Conflict: others came first each time, or have given the table features that delta-rs does not write.
        Refused: rows do not fit the table.
        TableUnwritable: the store refused.
    """
    for _ in range(ATTEMPTS):
        table = open_table(uri)
        try:
            return commit(table)
        except (DeltaError, OSError) as exc:
            if not has_lost_race(table, exc):
                raise refusal_of(uri, table, exc) from exc
    raise lost_race(uri, ATTEMPTS, newest_commit(uri))


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """Turn what the store raises in this block into `TableUnwritable`."""
    try:
        yield
    except (DeltaError, OSError) as exc:
        raise TableUnwritable(uri, causes_of(exc)) from exc


def keep_on_disk(uri: str) -> None:
    """Wait until a power loss can no longer take the newest version of a table from a local disk."""
    try:
        keep(uri)
    except OSError as exc:
        message = f"what was written to {uri} may be lost with a power loss: the disk does not confirm it: {exc}"
        raise PipelineError(message, f"see the disk, and whether the table has it: {looking_at(uri)}") from exc


def checkpoint_if_due(table: DeltaTable) -> bool:
    """Write a checkpoint after a commit on a handle if one is due; True if it was written.

    If that fails, it is logged: the commit is stored all the same, and is read without a checkpoint.
    """
    interval = int(table.metadata().configuration.get("delta.checkpointInterval", "100"))
    if (table.version() + 1) % interval:
        return False
    try:
        table.create_checkpoint()
    except (DeltaError, OSError) as exc:
        log.warning("%s has no checkpoint of version %d: %s", table.table_uri, table.version(), causes_of(exc))
        return False
    return True


def has_lost_race(table: DeltaTable, failure: Exception) -> bool:
    """Whether a commit on a handle failed because another one came first. Refreshes the handle."""
    if not isinstance(failure, CommitFailedError):
        return False
    before = table.version()
    try:
        table.update_incremental()
    except (DeltaError, OSError):
        return True  # the entries after that version are cleaned away: it is an old one
    return table.version() > before


def refusal_of(uri: str, table: DeltaTable, failure: Exception) -> PipelineError:
    """Why a commit on a handle failed, if it has not lost a race."""
    cause = causes_of(failure)
    if OF_FEATURES.search(cause) and unfit_features(table):
        return unwritable(uri, table)
    if "append-only" in cause:
        return append_only(uri)
    if isinstance(failure, SchemaMismatchError) or any(text in cause for text in _ROWS_REFUSED):
        return rows_refused(uri, cause)
    return TableUnwritable(uri, cause)


def append_only(uri: str) -> Conflict:
    """The error of a table of which others want no row replaced or deleted."""
    return Conflict(f"{uri} cannot be written: others have set delta.appendOnly", UNDO_OTHERS)


def newest_commit(uri: str) -> str:
    """The newest commit of a table: its version, what it was and who made it."""
    commit = open_table(uri).history(1)[0]
    return f"version {commit['version']}, {commit['operation']} by {commit.get('engineInfo', 'an unknown program')}"
