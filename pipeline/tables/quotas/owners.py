"""The owners that the versions of the quota table name."""

from functools import lru_cache
from typing import Final

from pipeline.tables.errors import TableMissing
from pipeline.tables.quotas.source import QuotaVersions
from quota.owners import Owners

_KEPT_VERSIONS: Final = 16


class StoredOwners:
    """Reads owners from the quota table, version by version. For one thread.

    Args:
        table: The quota table.
    """

    def __init__(self, table: QuotaVersions) -> None:
        self._table = table
        self._cached = lru_cache(_KEPT_VERSIONS)(self._read)

    def at(self, version: int) -> Owners:
        """The owners of a version; of a version that can no longer be read, none.

        Raises:
            TableUnreadable: The table can not be read.
        """
        return self._cached(version)

    def _read(self, version: int) -> Owners:
        try:
            return Owners(self._table.read(version).rows)
        except TableMissing:
            return Owners(())
