"""The quotas in force: the newest valid version of the quota table, and older ones for replays."""

import logging
from collections import OrderedDict
from threading import Lock
from typing import Final, Literal

from pipeline.tables.errors import TableMissing
from pipeline.tables.quota_table import QuotaTable, QuotaTableState
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot

log = logging.getLogger(__name__)

_KEPT_VERSIONS: Final = 64


class QuotaSource:
    """Follows the quota table. An invalid version is refused loudly and the last valid one stays.

    After a start into an invalid table the newest older version that is valid is in force. Safe for several threads.

    Args:
        table: The quota table; must have been created.

    Raises:
        InvalidQuotas: No version of the table that can still be read is valid.
    """

    def __init__(self, table: QuotaTable) -> None:
        self._table = table
        self._lock = Lock()
        self._cache: OrderedDict[int, QuotaSnapshot] = OrderedDict()
        self._refused_version = -1
        newest = table.read()
        self.scope: Literal["cluster", "broker"] = "broker" if newest.scope == "broker" else "cluster"
        self._pinned = self._valid(newest) or newest_valid(table, newest.version)
        self._keep(self._pinned)

    def pin(self) -> QuotaSnapshot:
        """The newest valid version seen so far; costs nothing."""
        return self._pinned

    def poll(self) -> QuotaSnapshot | None:
        """Look for a newer version; the newly valid one, None if there is none. About 1 ms when nothing changed."""
        with self._lock:
            version = self._table.version_if_changed()
            if version is None:
                return None
            snapshot = self._valid(self._table.read(version))
            if snapshot is None or snapshot.version <= self._pinned.version:
                return None
            self._pinned = snapshot
            return snapshot

    def at(self, version: int) -> QuotaSnapshot:
        """A certain version, as a batch pinned it."""
        with self._lock:
            if version not in self._cache:
                stored = self._table.read(version)
                self._keep(_snapshot(stored))
            self._cache.move_to_end(version)
            return self._cache[version]

    def _valid(self, stored: QuotaTableState) -> QuotaSnapshot | None:
        try:
            snapshot = _snapshot(stored)
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
    """The newest valid version that is not above a given one.

    Raises:
        InvalidQuotas: None of those that are kept is valid; says what is wrong with the given one.
    """
    first: InvalidQuotas | None = None
    for candidate in range(version, -1, -1):
        try:
            return _snapshot(table.read(candidate))
        except InvalidQuotas as exc:
            first = first or exc
        except TableMissing:
            break
    raise first or InvalidQuotas(version, ["no version of it is kept"])


def _snapshot(stored: QuotaTableState) -> QuotaSnapshot:
    mode: Literal["enforce", "shadow"] = "shadow" if stored.mode == "shadow" else "enforce"
    return QuotaSnapshot.from_rows(stored.rows, version=stored.version, mode=mode)
