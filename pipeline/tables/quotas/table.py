"""A table that operators edit: read at a version, watched for new versions, and edited under a lock, with who and why.

`EditedTable` is the mechanism, `QuotaTable` the table `quotas` and `TenantTable` the table `tenants`.
"""

import getpass
import json
import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from filelock import FileLock, Timeout

from pipeline.clock import wall_ms
from pipeline.command_line import DISTRIBUTION, command_text
from pipeline.errors import Conflict, PipelineError, TableMissing, first_line
from pipeline.tables.delta_rs import NO_HOOKS, checkpoint_if_due, committed
from pipeline.tables.opening import columns_of_others, keep_on_disk, open_table, reading
from pipeline.tables.port import TableUnreadable, TableUnwritable, table_missing, table_uri
from pipeline.tables.queries import StoredTable
from pipeline.tables.quotas.edit import (
    FORGIVEN,
    QUOTA_COLUMNS,
    QUOTA_ROWS,
    Forgiven,
    QuotaChange,
    QuotaValues,
    RowKind,
    altered,
    still_forgiven,
    validated,
)
from pipeline.tables.quotas.tenants import TENANT_COLUMNS, TENANT_ROWS, TenantChange, altered_tenants
from quota.tenants import Tenant, read_tenants
from schemas.arrow import arrow_schema

log = logging.getLogger(__name__)

# The commits of a table, and who made them and why.


@dataclass(frozen=True, slots=True)
class EditAudit:
    """Who edits, on which host, with which version of the tool, and why. It is stored in the commit."""

    actor: str
    host: str
    tool_version: str
    reason: str


@dataclass(frozen=True, slots=True)
class QuotaCommit:
    """One commit in the history of an edited table. `audit` is None if another tool made it."""

    version: int
    committed_at: datetime
    operation: str
    audit: EditAudit | None

    @property
    def committed_at_ms(self) -> int:
        """`committed_at` in ms since the epoch."""
        return round(self.committed_at.timestamp() * 1_000)


def local_audit(reason: str) -> EditAudit:
    """The audit of an edit that the current user makes on this machine with this version of kquota."""
    try:
        tool_version = version(DISTRIBUTION)
    except PackageNotFoundError:
        tool_version = "unknown"
    return EditAudit(actor=getpass.getuser(), host=socket.gethostname(), tool_version=tool_version, reason=reason)


def _properties(audit: EditAudit) -> CommitProperties:
    """With which an edit is committed; delta-rs does not try again by itself."""
    note = json.dumps(asdict(audit), ensure_ascii=False)
    return CommitProperties(custom_metadata={"userMetadata": note}, max_commit_retries=0)


def _commit_of(entry: Mapping[str, Any]) -> QuotaCommit:
    try:
        audit = EditAudit(**json.loads(entry["userMetadata"]))
    except (KeyError, TypeError, ValueError):
        audit = None
    committed_at = datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
    return QuotaCommit(entry["version"], committed_at, entry["operation"], audit)


@dataclass(frozen=True, slots=True)
class TableState:
    """An edited table at one version.

    Attributes:
        rows: every row by column, sorted by key; lists are tuples. They are not checked: SQL may have written them.
    """

    kind: ClassVar[RowKind]

    version: int
    rows: tuple[dict[str, Any], ...]


State = TypeVar("State", bound=TableState)
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class TableEdit(Generic[State]):
    """The result of an edit: all rows after it, at their version; that of `before` if nothing has changed."""

    before: State
    rows: tuple[dict[str, Any], ...]
    version: int

    @property
    def has_changed(self) -> bool:
        """Whether rows differ."""
        return self.rows != self.before.rows


RowsChanger = Callable[[tuple[dict[str, Any], ...]], Sequence[QuotaValues]]
"""Takes the rows of the table and returns all rows. It is called again if another edit came first."""


class EditedTable(Generic[State]):
    """A table under a root that operators edit.

    On a local disk an edit holds a lock file next to the table, which has its name: `quotas.lock`. On object stores the
    commit itself is conditional. In both cases an edit reads the table again and is made again if another commit came
    first.
    """

    kind: ClassVar[RowKind]

    def __init__(self, root: str, lock_timeout_seconds: float = 10.0) -> None:
        """Open the table; `TableMissing` if there is none, `TableUnreadable` if it cannot be read."""
        self.root: Final = root
        self.uri: Final = table_uri(root, self.kind.table)
        self._lock_timeout_seconds = lock_timeout_seconds
        self._watch_lock = threading.Lock()
        self._watched = open_table(self.uri)

    def version(self) -> int:
        """The newest version, or `TableUnreadable`. Takes 1 ms if nothing has changed since this was last asked."""
        with self._watch_lock, reading(self.uri):
            self._watched.update_incremental()
            return self._watched.version()

    def read(self, version: int | None = None) -> State:
        """The table at a version; None = the newest.

        Raises:
            TableMissing: the version does not exist, or no longer exists: its log entry or a file was cleaned away.
            TableUnreadable: the table cannot be read.
        """
        try:
            return self._state(open_table(self.uri, version))
        except (TableMissing, TableUnreadable) as exc:
            if version is None or (isinstance(exc, TableUnreadable) and not exc.is_file_missing):
                raise
            raise table_missing(self.uri, version, open_table(self.uri).version()) from exc

    def plan(
        self, change: RowsChanger, if_version: int | None = None, once_stored: Sequence[QuotaValues] = ()
    ) -> TableEdit[State]:
        """What `commit` would do now, at the present version; raises as `commit`. Writes nothing and takes no lock."""
        return self._changed(open_table(self.uri), change, if_version, once_stored)

    def commit(
        self,
        change: RowsChanger,
        audit: EditAudit,
        if_version: int | None = None,
        once_stored: Sequence[QuotaValues] = (),
    ) -> TableEdit[State]:
        """Replace the rows by the result of a function, in one commit.

        Args:
            change: takes the newest rows and returns all rows.
            if_version: the version that the table must be at; None = any.
            once_stored: rows of an earlier version. They may be stored again unchanged, see `validated`.

        Raises:
            Refused: the result has invalid rows.
            Conflict: the table is not at `if_version`, its lock did not become free, or others came first each time.
            TableUnwritable: the store refused.
        """

        def attempt(table: DeltaTable) -> TableEdit[State]:
            edit = self._changed(table, change, if_version, once_stored)
            return self._written(table, edit, edit.rows, audit) if edit.has_changed else edit

        return self._committed(attempt)

    def history(self, limit: int | None = None) -> list[QuotaCommit]:
        """The newest `limit` commits, newest first; None = all commits that the log still has."""
        with reading(self.uri):
            return [_commit_of(entry) for entry in open_table(self.uri).history(limit)]

    def columns_of_others(self) -> list[str]:
        """The columns that others have added; an edit keeps them as they are."""
        return columns_of_others(open_table(self.uri), self.kind.model)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the edit lock; `Conflict` if another edit keeps it. Object stores have none."""
        if "://" in self.uri:
            yield
            return
        path = Path(self.uri).with_name(f"{self.kind.table}.lock")
        lock = FileLock(path, timeout=self._lock_timeout_seconds)
        try:
            lock.acquire()
        except Timeout as exc:
            message = f"{path} is held by another edit, waited {self._lock_timeout_seconds:g} s"
            raise Conflict(message, f"nothing was changed; see who holds it: fuser -v {quote(str(path))}") from exc
        except OSError as exc:
            raise TableUnwritable(self.uri, str(exc)) from exc
        try:
            yield
        finally:
            lock.release()

    def _state(self, table: DeltaTable) -> State:
        """The table of a handle."""
        raise NotImplementedError

    def _changed(
        self, table: DeltaTable, change: RowsChanger, if_version: int | None, once_stored: Sequence[QuotaValues]
    ) -> TableEdit[State]:
        before = self._state(table)
        if if_version is not None and if_version != before.version:
            message = f"{self.uri} is at version {before.version}, not at {if_version} as --if-version wants"
            diff = command_text(self.kind.table, "diff", str(if_version), str(before.version))
            raise Conflict(message, f"see what changed: {diff}")
        rows = validated(change(before.rows), (*before.rows, *once_stored), self.kind)
        return TableEdit(before, tuple(rows), before.version)

    def _written(
        self, table: DeltaTable, edit: TableEdit[State], rows: Sequence[QuotaValues], audit: EditAudit
    ) -> TableEdit[State]:
        write_deltalake(
            table,
            _stored(table, rows, self.kind),
            mode="overwrite",
            commit_properties=_properties(audit),
            post_commithook_properties=NO_HOOKS,
        )
        return replace(edit, version=table.version())

    def _committed(self, attempt: Callable[[DeltaTable], Outcome]) -> Outcome:
        with self.lock():
            outcome = committed(self.uri, attempt)
            keep_on_disk(self.uri)
            self._checkpoint()
        return outcome

    def _checkpoint(self) -> None:
        table = open_table(self.uri)
        if checkpoint_if_due(table):
            try:
                keep_on_disk(self.uri)  # before the entries of the log go that it stands for
                table.cleanup_metadata()
            except (PipelineError, DeltaError, OSError) as exc:
                log.warning("the log of %s was not cleaned: %s", self.uri, first_line(exc))


def rows_at(table: DeltaTable, columns: Sequence[str], kind: RowKind) -> list[dict[str, Any]]:
    """The rows of a handle, sorted by key.

    Columns are in the given order, so that equal rows compare equal whatever the order in the table is.
    """
    rows = StoredTable(table).rows(columns)
    plain = ({name: tuple(one) if isinstance(one, list) else one for name, one in row.items()} for row in rows)
    return sorted(plain, key=kind.key)


def _stored(table: DeltaTable, rows: Sequence[QuotaValues], kind: RowKind) -> pa.Table:
    """The rows as the table stores them: a column that others have added keeps its values, and is null in a new row."""
    stored, added = pa.Table.from_pylist(list(rows), arrow_schema(kind.model)), columns_of_others(table, kind.model)
    before = StoredTable(table).read([*kind.keys, *added])
    place_of = {kind.key(row): place for place, row in enumerate(before.select(kind.keys).to_pylist())}
    places = pa.array([place_of.get(kind.key(row)) for row in rows], pa.int64())
    for name in added:
        stored = stored.append_column(before.schema.field(name), before[name].take(places))
    return stored.select(StoredTable(table).columns)


# The table `quotas`.


def parted(rows: Iterable[QuotaValues]) -> tuple[list[dict[str, Any]], dict[tuple[str, str], int]]:
    """The quotas of stored rows, and what the rows forgive. A row may be there only to forgive."""
    quotas, forgiven = list[dict[str, Any]](), {}
    for row in rows:
        quota = {name: row[name] for name in QUOTA_COLUMNS}
        if (until_ms := row[FORGIVEN]) is not None:
            forgiven[row["user"], row["client_id"]] = until_ms
        if until_ms is None or quota != _without_quota(row["user"], row["client_id"]):
            quotas.append(quota)
    return quotas, forgiven


def joined(quotas: Iterable[QuotaValues], forgiven: Forgiven) -> list[dict[str, Any]]:
    """The rows to store, sorted by entity: the inverse of `parted`."""
    rows = [{**quota, FORGIVEN: forgiven.get((quota["user"], quota["client_id"]))} for quota in quotas]
    known = {(row["user"], row["client_id"]) for row in rows}
    rows += [{**_without_quota(*entity), FORGIVEN: forgiven[entity]} for entity in forgiven.keys() - known]
    return sorted(rows, key=QUOTA_ROWS.key)


def _without_quota(user: str, client_id: str) -> dict[str, Any]:
    return {**dict.fromkeys(QUOTA_COLUMNS), "user": user, "client_id": client_id, "mode": "enforce"}


@dataclass(frozen=True, slots=True)
class QuotaTableState(TableState):
    """The quota table at one version; `rows` are its quotas.

    Attributes:
        forgiven: the debts that are forgiven; they are in no row.
        scope: `cluster` or `broker` (property `kquota.scope`).
        mode: `enforce`, or `shadow` for all rows, and for all tenants (property `kquota.mode`).
    """

    kind: ClassVar = QUOTA_ROWS

    scope: str
    mode: str
    forgiven: Forgiven = field(default_factory=dict)

    @property
    def stored_rows(self) -> list[dict[str, Any]]:
        """The rows as they are stored: with what they forgive, also those that only forgive."""
        return joined(self.rows, self.forgiven)


QuotaEdit = TableEdit[QuotaTableState]


class QuotaTable(EditedTable[QuotaTableState]):
    """The table `quotas` under a root."""

    kind: ClassVar = QUOTA_ROWS

    def alter(self, changes: Sequence[QuotaChange], audit: EditAudit) -> int:
        """Make changes in one commit; see `commit`. Returns the version."""
        return self.commit(lambda rows: altered(rows, changes), audit).version

    def commit(
        self,
        change: RowsChanger,
        audit: EditAudit,
        if_version: int | None = None,
        once_stored: Sequence[QuotaValues] = (),
        forgives: Collection[tuple[str, str]] = (),
    ) -> QuotaEdit:
        """Replace the quotas by the result of a function, in one commit; otherwise as `EditedTable.commit`.

        * `forgives`: user and client-id of the sensors the debts of which are forgiven, see `QuotaSnapshot.forgiven`.
        """

        def attempt(table: DeltaTable) -> QuotaEdit:
            edit = self._changed(table, change, if_version, once_stored)
            if not edit.has_changed and not forgives:
                return edit
            rows = joined(edit.rows, still_forgiven(edit.before.forgiven, forgives, wall_ms()))
            return self._written(table, edit, rows, audit)

        return self._committed(attempt)

    def set_mode(self, mode: str, audit: EditAudit) -> int:
        """Set `kquota.mode`: `enforce`, or `shadow` for all rows. Returns the version; raises as `commit`."""

        def attempt(table: DeltaTable) -> int:
            if table.metadata().configuration.get("kquota.mode") != mode:
                table.alter.set_table_properties(
                    {"kquota.mode": mode},
                    raise_if_not_exists=False,
                    commit_properties=_properties(audit),
                    post_commithook_properties=NO_HOOKS,
                )
            return table.version()

        return self._committed(attempt)

    def _state(self, table: DeltaTable) -> QuotaTableState:
        configuration = table.metadata().configuration
        quotas, forgiven = parted(rows_at(table, [*QUOTA_COLUMNS, FORGIVEN], self.kind))
        return QuotaTableState(
            version=table.version(),
            rows=tuple(quotas),
            forgiven=forgiven,
            scope=configuration.get("kquota.scope", "cluster"),
            mode=configuration.get("kquota.mode", "enforce"),
        )


@dataclass(frozen=True, slots=True)
class TenantTableState(TableState):
    """The table `tenants` at one version."""

    kind: ClassVar = TENANT_ROWS

    def tenants(self, mode: Literal["enforce", "shadow"] = "enforce") -> tuple[Tenant, ...]:
        """The tenants; `InvalidQuotas` if rows are none. `shadow` reads each as a shadow tenant."""
        return read_tenants(self.rows, self.version, mode)


class TenantTable(EditedTable[TenantTableState]):
    """The table `tenants` under a root."""

    kind: ClassVar = TENANT_ROWS

    @classmethod
    def found(cls, root: str) -> "TenantTable | None":
        """The table; None if there is none, as under the root of an earlier build: then there are no tenants."""
        try:
            return cls(root)
        except TableMissing:
            return None

    def alter(self, changes: Sequence[TenantChange], audit: EditAudit) -> int:
        """Make changes in one commit; see `commit`. Returns the version."""
        return self.commit(lambda rows: altered_tenants(rows, changes), audit).version

    def _state(self, table: DeltaTable) -> TenantTableState:
        return TenantTableState(table.version(), tuple(rows_at(table, TENANT_COLUMNS, self.kind)))
