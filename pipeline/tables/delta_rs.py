"""The table writer on delta-rs. It is the one of the decision path: a commit takes about 10 ms.

delta-rs does not look for duplicates by itself. An append is safe because of its order: compare epoch and versions on
a handle, append on the same handle with `max_commit_retries=0`. If anybody has committed since that handle was read,
delta-rs refuses our commit; the handle is refreshed and the comparison made again.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar, cast

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError

from pipeline.errors import Conflict, PipelineError
from pipeline.tables import port
from pipeline.tables.opening import OF_FEATURES, causes_of, open_table, reading, unfit_features, unwritable
from pipeline.tables.port import UNDO_OTHERS, TableUnwritable, lost_race, rows_refused
from pipeline.tables.queries import StoredTable

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


# An older driver that works off a backlog commits without a pause, until it is fenced.
_ATTEMPTS_TO_FENCE: Final = 50

# Each commit on a handle makes the next one 0.13 ms slower (measured: 8 ms at first, 236 ms after 2 500 commits).
# A handle that is opened from a checkpoint starts fast again. The number is the tables' checkpointInterval, so there
# is always a checkpoint to open from.
_COMMITS_PER_HANDLE: Final = 50

# How long a handle is used without a refresh after a commit of ours. To refresh it for each append takes a fifth of
# the append's time. Another commit is found out by its entry in the log, so this must be far below `layout`'s shortest
# log retention, 3 minutes, after which that entry may be gone.
_TRUSTED_SECONDS: Final = 30.0


def with_columns_of_others(table: DeltaTable, rows: pa.Table) -> pa.Table:
    """The rows with a null in each column that others have added to the table; delta-rs takes no row without them."""
    if len(table.schema().fields) == rows.num_columns:
        return rows
    schema = pa.schema(cast(Any, table.schema()))
    added = [field for field in schema if field.name not in rows.column_names]
    for field in added:
        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    # Columns that the table does not have stay: delta-rs refuses them.
    return rows.select(schema.names) if added and set(rows.column_names) == set(schema.names) else rows


class DeltaRsWriter:
    """A `TableWriter` that keeps a handle to the table. It holds its lock during a whole append.

    Reads use a handle of their own, so a long read does not delay an append.

    * `noted`: Called after each append with rows and each `replace`. It must be quick and must not raise.
    """

    def __init__(self, uri: str, job: str, noted: Callable[[], None] = lambda: None) -> None:
        self.uri = uri
        self._job = job
        self._noted = noted
        self._epoch: int | None = None
        self._lock = threading.Lock()
        self._handle = open_table(uri)
        self._commits_on_handle = 0
        self._trusted_until = 0.0
        self._recorded: dict[str, int | None] = {}

    def read(self, columns: Sequence[str] | None = None, where: Sequence[port.Condition] = ()) -> pa.Table:
        return StoredTable(self.uri).read(columns, where)

    def newest_value(self, column: str) -> int | None:
        return StoredTable(self.uri).newest_value(column)

    def newest_instant(self) -> port.Instant | None:
        return StoredTable(self.uri).newest_instant()

    def last_of_each(
        self,
        keys: Sequence[str],
        order: str,
        among: Sequence[port.Condition] = (),
        where: Sequence[port.Condition] = (),
    ) -> pa.Table:
        return StoredTable(self.uri).last_of_each(keys, order, among, where)

    @property
    def table_id(self) -> str:
        with self._lock, reading(self.uri):
            return str(self._handle.metadata().id)

    def raise_epoch(self, epoch: int) -> None:
        with self._lock:
            for _ in range(_ATTEMPTS_TO_FENCE):
                table = self._fresh()
                port.refuse_taken_epoch(self.uri, epoch, table.transaction_version(self._job))
                rows = pa.schema(cast(Any, table.schema())).empty_table()
                if self._committed(table, rows, {self._job: epoch}, {}):
                    self._epoch = epoch
                    return
        raise port.lost_race(self.uri, _ATTEMPTS_TO_FENCE, newest_commit(self.uri))

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        if not rows.num_rows:
            return True
        was_tried = False
        with self._lock:
            for _ in range(ATTEMPTS):
                is_trusted = self._is_trusted()
                try:
                    table = self._handle if is_trusted else self._fresh()
                    epoch = port.checked_epoch(self.uri, self._epoch, self._version_on_handle(self._job))
                    if port.is_written(self.uri, versions, self._version_on_handle):
                        return was_tried  # our own commit went in although it failed: no other driver has this epoch
                    was_tried = True
                    if self._committed(table, rows, {**versions, self._job: epoch}, metadata):
                        return True
                except (port.TableUnreadable, port.TableUnwritable):
                    # The entries of the log that the handle goes back to may have been cleaned since it was refreshed.
                    # If the commit was made all the same, the next attempt finds its version in the table.
                    if not is_trusted:
                        raise
                    self._trusted_until = 0.0
        raise port.lost_race(self.uri, ATTEMPTS, newest_commit(self.uri))

    def replace(self, rows: pa.Table, metadata: Mapping[str, str]) -> None:
        with self._lock:
            table = self._fresh()
            epoch = port.checked_epoch(self.uri, self._epoch, self._version_on_handle(self._job))
            if not self._committed(table, rows, {self._job: epoch}, metadata, "overwrite"):
                raise port.lost_race(self.uri, 1, newest_commit(self.uri))

    def is_fenced(self) -> bool:
        return port.is_fenced(self._epoch, self.recorded_version(self._job))

    def recorded_version(self, app_id: str) -> int | None:
        with self._lock:
            return self._fresh().transaction_version(app_id)

    def commit_metadata(self, limit: int) -> list[dict[str, str]]:
        with reading(self.uri):
            notes = [
                port.parse_commit_note(commit.get("userMetadata")) for commit in open_table(self.uri).history(limit)
            ]
        return [note for note in notes if note is not None]

    def _is_trusted(self) -> bool:
        """Whether the handle is as a commit of ours left it a moment ago."""
        return self._commits_on_handle < _COMMITS_PER_HANDLE and time.monotonic() < self._trusted_until

    def _version_on_handle(self, app_id: str) -> int | None:
        """The version of an app id as the handle has it. To ask delta-rs each time takes a third of an append."""
        if app_id not in self._recorded:
            with reading(self.uri):
                self._recorded[app_id] = self._handle.transaction_version(app_id)
        return self._recorded[app_id]

    def _fresh(self) -> DeltaTable:
        self._recorded = {}
        if self._commits_on_handle >= _COMMITS_PER_HANDLE:
            self._handle = open_table(self.uri)
            self._commits_on_handle = 0
        else:
            with reading(self.uri):
                self._handle.update_incremental()
        return self._handle

    def _committed(
        self,
        table: DeltaTable,
        rows: pa.Table,
        versions: Mapping[str, int],
        metadata: Mapping[str, str],
        mode: Literal["append", "overwrite"] = "append",
    ) -> bool:
        """Write on a handle; False if another commit came since it was read."""
        properties = CommitProperties(
            custom_metadata={"userMetadata": port.commit_note(metadata, versions)},
            max_commit_retries=0,
            app_transactions=[Transaction(app_id, version) for app_id, version in versions.items()],
        )
        self._commits_on_handle += 1
        self._trusted_until = 0.0
        try:
            write_deltalake(
                table,
                with_columns_of_others(table, rows),
                mode=mode,
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )
        except (DeltaError, OSError, ValueError) as exc:
            if has_lost_race(table, exc):
                return False
            raise refusal_of(self.uri, table, exc) from exc
        checkpoint_if_due(table)  # maintenance cleans the log, outside of the decision path
        self._trusted_until = time.monotonic() + _TRUSTED_SECONDS
        self._recorded |= versions
        if rows.num_rows or mode == "overwrite":
            self._noted()
        return True
