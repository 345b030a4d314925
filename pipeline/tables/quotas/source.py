"""The quotas in force: the newest valid versions of the tables `quotas` and `tenants`; and older ones for replays."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, Generic, Literal, TypeVar

from pipeline.errors import PipelineError, TableMissing
from pipeline.tables.quotas.table import EditedTable, QuotaTable, QuotaTableState, State, TenantTable, TenantTableState
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot
from quota.tenants import Tenant

log = logging.getLogger(__name__)
Scope = Literal["cluster", "broker"]
Value = TypeVar("Value")
_KEPT_VERSIONS: Final = 64
_NO_TABLE: Final = -1


class QuotaSource:
    """Follows the quota table and the tenants. An invalid version is refused with an error in the log.

    The last valid one stays then. If the newest version is invalid at the start, the newest valid version before it is
    in force. A missing table `tenants` means that there are none, and is looked for at each poll. Several threads may
    use one object.

    Raises:
        InvalidQuotas: No version of one of the tables that can still be read is valid.
    """

    def __init__(self, table: QuotaTable) -> None:
        self._lock = Lock()
        self._root = table.root
        self._quotas = _Followed(table, _Quotas.of)
        self._tenants: _Followed[TenantTableState, tuple[Tenant, ...]] | None = None
        self._snapshots: OrderedDict[tuple[int, int], QuotaSnapshot] = OrderedDict()
        self._follow_tenants()
        self._pinned = self._snapshot(*self._newest)

    @property
    def scope(self) -> Scope:
        """The property `kquota.scope` of the newest valid version of the quotas seen so far."""
        return "broker" if self._quotas.newest.scope == "broker" else "cluster"

    def is_refused(self) -> bool:
        """Whether the newest version of a table seen so far is invalid, so that an older one is in force."""
        return self._quotas.is_refused or (self._tenants is not None and self._tenants.is_refused)

    def pin(self) -> QuotaSnapshot:
        """The newest valid version of both tables seen so far. Reads nothing."""
        return self._pinned

    def poll(self) -> QuotaSnapshot | None:
        """Look for newer versions. Returns those in force if one of them is new and valid, else None.

        An error of one table is raised when the other one has no news.
        """
        failed: PipelineError | None = None
        with self._lock:
            for follow in (self._quotas.poll, self._follow_tenants):
                try:
                    follow()
                except PipelineError as exc:
                    failed = failed or exc
            if self._newest != self._pinned.versions:
                self._pinned = self._snapshot(*self._newest)
                return self._pinned
        if failed:
            raise failed
        return None

    def at(self, version: int, tenants_version: int = _NO_TABLE) -> QuotaSnapshot:
        """The versions with these numbers, for a batch that was decided with them; −1 for no table `tenants`."""
        with self._lock:
            return self._snapshot(version, tenants_version)

    @property
    def _newest(self) -> tuple[int, int]:
        return self._quotas.version, _NO_TABLE if self._tenants is None else self._tenants.version

    def _follow_tenants(self) -> None:
        if self._tenants is not None:
            self._tenants.poll()
        elif (table := TenantTable.found(self._root)) is not None:
            self._tenants = _Followed(table, TenantTableState.tenants)

    def _snapshot(self, version: int, tenants_version: int) -> QuotaSnapshot:
        versions = version, tenants_version
        if versions not in self._snapshots:
            quotas, tenants = self._quotas.at(version), tuple[Tenant, ...]()
            if tenants_version != _NO_TABLE:
                self._tenants = self._tenants or _Followed(TenantTable(self._root), TenantTableState.tenants)
                tenants = self._tenants.at(tenants_version)
            self._snapshots[versions] = quotas.with_tenants(tenants, tenants_version)
            if len(self._snapshots) > _KEPT_VERSIONS:
                self._snapshots.popitem(last=False)
        self._snapshots.move_to_end(versions)
        return self._snapshots[versions]


@dataclass(frozen=True, slots=True)
class _Quotas:
    """One version of the quota table."""

    snapshot: QuotaSnapshot
    scope: str
    mode: str

    @classmethod
    def of(cls, stored: QuotaTableState) -> "_Quotas":
        return cls(valid_snapshot(stored), stored.scope, stored.mode)

    def with_tenants(self, tenants: tuple[Tenant, ...], version: int) -> QuotaSnapshot:
        """Both tables together. The mode of the quota table is that of the tenants, too."""
        if self.mode == "shadow":
            tenants = tuple(replace(tenant, mode="shadow") for tenant in tenants)
        return replace(self.snapshot, tenants=tenants, tenants_version=version)


class _Followed(Generic[State, Value]):
    """Follows one table: keeps what `check` makes of each version, and refuses those in which it finds mistakes.

    Attributes:
        version: the newest valid one seen so far.
    """

    def __init__(self, table: EditedTable[State], check: Callable[[State], Value]) -> None:
        self._table, self._check = table, check
        self._cache: OrderedDict[int, Value] = OrderedDict()
        self._refused_version = -1
        self.version = -1
        newest = table.read()
        self._see(newest)
        if self.version < 0:
            self._see(_newest_valid(table, newest.version, check))
        self._seen_version = newest.version

    @property
    def newest(self) -> Value:
        """What `version` holds."""
        return self._cache[self.version]

    @property
    def is_refused(self) -> bool:
        """Whether a version after `version` is invalid."""
        return self._refused_version > self.version

    def poll(self) -> None:
        """Look for a newer version."""
        version = self._table.version()
        if version != self._seen_version:
            stored = self._table.read(version)
            self._seen_version = version
            self._see(stored)

    def at(self, version: int) -> Value:
        """What a version holds."""
        if version not in self._cache:
            self._keep(version, self._check(self._table.read(version)))
        self._cache.move_to_end(version)
        return self._cache[version]

    def _see(self, stored: State) -> None:
        try:
            value = self._check(stored)
        except InvalidQuotas as exc:
            if stored.version != self._refused_version:
                self._refused_version = stored.version
                what = f"{stored.kind.table} v{stored.version}"
                log.error("%s are refused, the last valid version stays in force: %s", what, exc)
            return
        self.version = max(self.version, stored.version)
        self._keep(stored.version, value)

    def _keep(self, version: int, value: Value) -> None:
        self._cache[version] = value
        while len(self._cache) > _KEPT_VERSIONS:
            del self._cache[next(one for one in self._cache if one != self.version)]


def newest_valid(table: QuotaTable, version: int) -> QuotaSnapshot:
    """The quotas of the newest valid version up to a given one, inclusive, without tenants; see `QuotaSource`.

    If none that is kept is valid, `InvalidQuotas` has what is wrong with the newest of them.
    """
    return valid_snapshot(_newest_valid(table, version, valid_snapshot))


def in_force(
    table: EditedTable[State], version: int | None, check: Callable[[State], object]
) -> tuple[State, InvalidQuotas | None]:
    """The version in force when a version was the newest, as stored, and why that one is refused; None if it is not.

    Without any valid version nothing is in force: then it is the refused version itself. `check` raises
    `InvalidQuotas` for an invalid version.
    """
    newest = table.read(version)
    try:
        check(newest)
    except InvalidQuotas as refused:
        try:
            return _newest_valid(table, newest.version - 1, check), refused
        except InvalidQuotas:
            return newest, refused
    return newest, None


def _newest_valid(table: EditedTable[State], version: int, check: Callable[[State], object]) -> State:
    first: InvalidQuotas | None = None
    for candidate in range(version, -1, -1):
        try:
            stored = table.read(candidate)
            check(stored)
        except InvalidQuotas as exc:
            first = first or exc
        except TableMissing:
            break
        else:
            return stored
    raise first or InvalidQuotas(version, ["no version of it is kept"], table.kind.table)


def valid_snapshot(stored: QuotaTableState) -> QuotaSnapshot:
    """A version of the quotas, without tenants; `InvalidQuotas` if rows are none."""
    mode: Literal["enforce", "shadow"] = "shadow" if stored.mode == "shadow" else "enforce"
    return QuotaSnapshot.from_rows(stored.stored_rows, version=stored.version, mode=mode)
