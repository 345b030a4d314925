"""The quota table: read at a version, watched for new versions, edited under a lock with who and why."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from filelock import FileLock, Timeout

from pipeline.tables.errors import LostRace, QuotaTableBusy, TableMissing, TableUnwritable
from pipeline.tables.layout import table_uri
from pipeline.tables.quota_edit import QuotaChange, QuotaValues, altered, validated
from schemas.arrow import arrow_schema, conform
from schemas.quota_row import QuotaRow

_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class QuotaTableState:
    """The quota table at one version.

    Attributes:
        version: the table version.
        rows: every row by column, sorted by entity; not checked, SQL may have written them.
        scope: `cluster` or `broker` (property `kquota.scope`).
        mode: `enforce`, or `shadow` for all rows (property `kquota.mode`).
    """

    version: int
    rows: tuple[dict[str, Any], ...]
    scope: str
    mode: str


@dataclass(frozen=True, slots=True)
class EditAudit:
    """Who edits, where, with what and why: kept in the commit."""

    actor: str
    host: str
    tool_version: str
    reason: str


@dataclass(frozen=True, slots=True)
class QuotaCommit:
    """One commit of the quota table's history; `audit` is None if another tool made it."""

    version: int
    committed_at: datetime
    operation: str
    audit: EditAudit | None


class QuotaTable:
    """The table `quotas` under a root.

    On a local disk an edit holds the lock file `quotas.lock` beside the table; on object stores the commit itself is
    conditional. Either way an edit that was overtaken reads the table again and is made anew.
    """

    def __init__(
        self, root: str, storage_options: Mapping[str, str] | None = None, lock_timeout_seconds: float = 10.0
    ) -> None:
        """Open the table.

        Raises:
            TableMissing: nothing there.
        """
        self.uri = table_uri(root, "quotas")
        self._options = dict(storage_options) if storage_options else None
        self._lock_timeout_seconds = lock_timeout_seconds
        self._watch_lock = threading.Lock()
        self._watched = self._opened()
        self._seen_version = -1

    def version_if_changed(self) -> int | None:
        """The newest version, if it is not the one this method returned last; about 1 ms when there is none."""
        with self._watch_lock:
            self._watched.update_incremental()
            version = self._watched.version()
            if version == self._seen_version:
                return None
            self._seen_version = version
            return version

    def read(self, version: int | None = None) -> QuotaTableState:
        """The table at a version; None = the newest.

        Raises:
            TableMissing: the version is not, or no longer, there.
        """
        return _state(self._opened(version))

    def alter(self, changes: Sequence[QuotaChange], audit: EditAudit) -> int:
        """Make changes in one commit; see `edit`."""
        return self.edit(lambda rows: altered(rows, changes), audit)

    def edit(self, change: Callable[[tuple[dict[str, Any], ...]], Sequence[QuotaValues]], audit: EditAudit) -> int:
        """Replace the rows by a function of them, in one commit.

        Args:
            change: takes the newest rows and returns all rows; may be called again if another edit came first.
            audit: kept in the commit.

        Returns:
            The version with the rows: the present one, without a commit, if nothing changes.

        Raises:
            QuotaEditRefused: the result holds invalid rows.
            QuotaTableBusy: the lock was not free in time.
            LostRace: overtaken at every attempt.
            TableUnwritable: the store refused.
        """

        def attempt(table: DeltaTable) -> None:
            before = _state(table).rows
            after = validated(change(before))
            if after != list(before):
                rows = conform(pa.Table.from_pylist(after, schema=arrow_schema(QuotaRow)), QuotaRow)
                write_deltalake(table, rows, mode="overwrite", commit_properties=_properties(audit))

        return self._committed(attempt)

    def set_mode(self, mode: str, audit: EditAudit) -> int:
        """Set the property `kquota.mode` (`enforce`, or `shadow` for all rows); returns the version.

        Raises:
            As `edit` does.
        """

        def attempt(table: DeltaTable) -> None:
            if table.metadata().configuration.get("kquota.mode") != mode:
                table.alter.set_table_properties(
                    {"kquota.mode": mode}, raise_if_not_exists=False, commit_properties=_properties(audit)
                )

        return self._committed(attempt)

    def history(self, limit: int) -> list[QuotaCommit]:
        """The newest commits, newest first."""
        return [_commit(entry) for entry in self._opened().history(limit)]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the edit lock; Spark SQL runs under it too. No lock on object stores.

        Raises:
            QuotaTableBusy: not free in time.
        """
        if "://" in self.uri:
            yield
            return
        path = Path(self.uri).with_name("quotas.lock")
        try:
            with FileLock(path, timeout=self._lock_timeout_seconds):
                yield
        except Timeout as exc:
            raise QuotaTableBusy(str(path), self._lock_timeout_seconds) from exc

    def _opened(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self.uri, version=version, storage_options=self._options)
        except (TableNotFoundError, DeltaError) as exc:
            raise TableMissing(self.uri if version is None else f"{self.uri}, version {version}") from exc

    def _committed(self, attempt: Callable[[DeltaTable], None]) -> int:
        with self.lock():
            for _ in range(_ATTEMPTS):
                table = self._opened()
                try:
                    attempt(table)
                except CommitFailedError:
                    continue
                except (DeltaError, OSError) as exc:
                    raise TableUnwritable(self.uri, str(exc).partition("\n")[0]) from exc
                return table.version()
        raise LostRace(self.uri, _ATTEMPTS)


def _state(table: DeltaTable) -> QuotaTableState:
    configuration = table.metadata().configuration
    # Names in the model's order, so that rows compare equal whatever the order in the table.
    rows = table.to_pyarrow_table(columns=arrow_schema(QuotaRow).names).to_pylist()
    return QuotaTableState(
        version=table.version(),
        rows=tuple(sorted(rows, key=lambda row: (row["user"], row["client_id"]))),
        scope=configuration.get("kquota.scope", "cluster"),
        mode=configuration.get("kquota.mode", "enforce"),
    )


def _properties(audit: EditAudit) -> CommitProperties:
    note = json.dumps(asdict(audit), ensure_ascii=False)
    return CommitProperties(custom_metadata={"userMetadata": note}, max_commit_retries=0)


def _commit(entry: Mapping[str, Any]) -> QuotaCommit:
    try:
        audit = EditAudit(**json.loads(entry["userMetadata"]))
    except (KeyError, TypeError, ValueError):
        audit = None
    committed_at = datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
    return QuotaCommit(entry["version"], committed_at, entry["operation"], audit)
