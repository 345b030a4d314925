"""The quotas in force: the newest valid version of the quota table; and older versions for replays."""

import logging
from collections import OrderedDict
from threading import Lock
from typing import Final, Literal

from pipeline.errors import TableMissing
from pipeline.tables.quotas.table import QuotaTable, QuotaTableState
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot

log = logging.getLogger(__name__)
Scope = Literal["cluster", "broker"]
_KEPT_VERSIONS: Final = 64


class QuotaSource:
    """Follows the quota table. An invalid version is refused with an error in the log, and the last valid one stays.

    If the newest version is invalid at the start, the newest valid version before it is in force. Several threads may
    use one object.

    Attributes:
        scope: The property `kquota.scope` of the newest valid version seen so far.

    Raises:
        InvalidQuotas: No version that can still be read is valid.
    """

    def __init__(self, table: QuotaTable) -> None:
        self._table = table
        self._lock = Lock()
        self._cache: OrderedDict[int, QuotaSnapshot] = OrderedDict()
        self._refused_version = -1
        self._seen_version = -1
        newest = table.read()
        self.scope: Scope = "broker" if newest.scope == "broker" else "cluster"
        self._pinned = self._valid(newest) or newest_valid(table, newest.version)
        self._keep(self._pinned)

    def is_refused(self) -> bool:
        """Whether the newest version seen so far is invalid, so that an older one is in force."""
        return self._refused_version > self._pinned.version

    def pin(self) -> QuotaSnapshot:
        """The newest valid version seen so far. Reads nothing."""
        return self._pinned

    def poll(self) -> QuotaSnapshot | None:
        """Look for a newer version. Returns it if it is valid, else None."""
        with self._lock:
            version = self._table.version()
            if version == self._seen_version:
                return None
            stored = self._table.read(version)
            self._seen_version = version
            snapshot = self._valid(stored)
            if snapshot is None or snapshot.version <= self._pinned.version:
                return None
            self._pinned, self.scope = snapshot, "broker" if stored.scope == "broker" else "cluster"
            return snapshot

    def at(self, version: int, tenants_version: int = -1) -> QuotaSnapshot:
        """The version with this number, for a batch that was decided with it."""
        with self._lock:
            if version not in self._cache:
                self._keep(valid_snapshot(self._table.read(version)))
            self._cache.move_to_end(version)
            return self._cache[version]

    def _valid(self, stored: QuotaTableState) -> QuotaSnapshot | None:
        try:
            snapshot = valid_snapshot(stored)
        except InvalidQuotas as exc:
            if stored.version != self._refused_version:
                self._refused_version = stored.version
                log.error("quotas v%d are refused, the last valid version stays in force: %s", stored.version, exc)
            return None
        self._keep(snapshot)
        return snapshot

    def _keep(self, snapshot: QuotaSnapshot) -> None:
        self._cache[snapshot.version] = snapshot
        while len(self._cache) > _KEPT_VERSIONS:
            self._cache.popitem(last=False)


def newest_valid(table: QuotaTable, version: int) -> QuotaSnapshot:
    """The newest valid version up to a given one, inclusive; see `QuotaSource`.

    If none that is kept is valid, `InvalidQuotas` has what is wrong with the newest of them.
    """
    first: InvalidQuotas | None = None
    for candidate in range(version, -1, -1):
        try:
            return valid_snapshot(table.read(candidate))
        except InvalidQuotas as exc:
            first = first or exc
        except TableMissing:
            break
    raise first or InvalidQuotas(version, ["no version of it is kept"])


def in_force(table: QuotaTable, version: int | None = None) -> tuple[QuotaTableState, InvalidQuotas | None]:
    """The version in force when a version was the newest, as stored, and why that one is refused; None if it is not.

    Without any valid version nothing is in force: then it is the refused version itself.
    """
    newest = table.read(version)
    try:
        valid_snapshot(newest)
    except InvalidQuotas as refused:
        try:
            return table.read(newest_valid(table, newest.version - 1).version), refused
        except InvalidQuotas:
            return newest, refused
    return newest, None


def valid_snapshot(stored: QuotaTableState) -> QuotaSnapshot:
    """A version as quotas; `InvalidQuotas` if rows are none."""
    mode: Literal["enforce", "shadow"] = "shadow" if stored.mode == "shadow" else "enforce"
    return QuotaSnapshot.from_rows(stored.stored_rows, version=stored.version, mode=mode)
