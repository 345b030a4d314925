"""The quotas that a sync puts on brokers: all of the table, or those of some users, for a beginning in small steps."""

from dataclasses import dataclass, replace

from pipeline.tables.quotas.source import QuotaSource, Scope
from quota.snapshot import QuotaSnapshot


@dataclass(frozen=True, slots=True)
class ChosenQuotas:
    """Follows the quota table, and leaves out the rows that are not chosen, as if the table did not have them.

    Attributes:
        source: All quotas.
        users: Whose rows are chosen: raw names, or `<default>`; "" chooses rows without a user. Empty = all rows.
    """

    source: QuotaSource
    users: frozenset[str]

    @property
    def scope(self) -> Scope:
        """See `QuotaSource`."""
        return self.source.scope

    def pin(self) -> QuotaSnapshot:
        """See `QuotaSource`."""
        return self._chosen(self.source.pin())

    def poll(self) -> QuotaSnapshot | None:
        """See `QuotaSource`."""
        snapshot = self.source.poll()
        return None if snapshot is None else self._chosen(snapshot)

    def _chosen(self, snapshot: QuotaSnapshot) -> QuotaSnapshot:
        if not self.users:
            return snapshot
        return replace(snapshot, quotas=tuple(one for one in snapshot.quotas if one.user in self.users))
