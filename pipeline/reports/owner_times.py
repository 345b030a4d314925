"""Which owners the quota table named when."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pipeline.tables.errors import TableMissing
from pipeline.tables.quotas.table import QuotaTable
from quota.owners import Owners

OwnerOf = Callable[[str, str], str | None]
"""The owner of a client, by user and client-id; None if nobody is."""


@dataclass(frozen=True, slots=True)
class OwnerTimes:
    """The owners since an instant, in order of time; versions that name the same owners are one.

    Usage that nobody owned when it happened is that of the first owner named later. So owners that are given to clients
    after a month hold for that month too, and a client that changes hands is still charged to whom it belonged.

    Attributes:
        from_ms: When each came into force, ascending. The first one also holds before its time.
        owners: One for each entry of `from_ms`.
    """

    from_ms: tuple[int, ...]
    owners: tuple[Owners, ...]

    @classmethod
    def of(cls, table: QuotaTable, since_ms: int) -> "OwnerTimes":
        """The owners since an instant, by the times of the commits. Versions that are no longer kept are left out."""
        found: list[tuple[int, Owners]] = []
        for commit in table.history(None):
            try:
                owners = Owners(table.read(commit.version).rows)
            except TableMissing:
                break
            committed_ms = round(commit.committed_at.timestamp() * 1000)
            if found and found[-1][1] == owners:
                found[-1] = committed_ms, owners
            else:
                found.append((committed_ms, owners))
            if committed_ms <= since_ms:
                break
        found.reverse()
        return cls(tuple(at_ms for at_ms, _ in found), tuple(owners for _, owners in found))

    def spans(self, start_ms: int, end_ms: int) -> list[tuple[int, int, OwnerOf]]:
        """A range, cut where the owners change: of each part its begin, its end, and who owns a client."""
        cuts = [start_ms, *(ms for ms in self.from_ms[1:] if start_ms < ms < end_ms), end_ms]
        return [(begin, end, partial(self._owner, begin)) for begin, end in pairwise(cuts)]

    def _owner(self, instant_ms: int, user: str, client_id: str) -> str | None:
        place = max(sum(ms <= instant_ms for ms in self.from_ms) - 1, 0)
        named = (owners.of(user, client_id) for owners in self.owners[place:])
        return next((owner for owner in named if owner is not None), None)
