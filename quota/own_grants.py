"""Which sensors of defaults have an entry of their own, or asked for one and cannot have it, under the quotas in force.

The answers of `quota.own_entries` are kept: asking is dear, and they hold until the quotas change.
"""

from collections.abc import Iterable

from quota.broker_entries import BrokerEntry, EntryKey
from quota.own_entries import Refused, own_entries
from quota.snapshot import QuotaSnapshot


class OwnGrants:
    """The answers to all that have asked.

    Attributes:
        granted: the entries of those that may have one.
        refused: the others.
    """

    def __init__(self) -> None:
        self._snapshot = QuotaSnapshot(0, ())
        self.granted: dict[EntryKey, BrokerEntry] = {}
        self.refused: dict[EntryKey, Refused] = {}

    def load(self, snapshot: QuotaSnapshot, asking: Iterable[EntryKey]) -> None:
        """Put other quotas in force.

        Args:
            snapshot: the quotas.
            asking: those that have an entry, and shall keep it if they may.
        """
        self._snapshot = snapshot
        self.granted, self.refused = {}, {}
        self.ask(asking)

    def ask(self, keys: Iterable[EntryKey]) -> None:
        """Ask for these too. Those that asked before cost nothing, but a new entry can make another one harmful."""
        asked = self.granted.keys() | self.refused.keys()
        new = [key for key in dict.fromkeys(keys) if key not in asked]
        if new:
            answer = own_entries(self._snapshot, [*self.granted, *new])
            self.granted = {entry.key: entry for entry in answer.granted}
            self.refused.update({refused.key: refused for refused in answer.refused})

    def forget(self, keys: Iterable[EntryKey]) -> None:
        """These need none any more."""
        for key in keys:
            self.granted.pop(key, None)
            self.refused.pop(key, None)
