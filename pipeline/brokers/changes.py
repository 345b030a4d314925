"""Makes changes so that each is known after a failure at any point, of this process too.

A change is stored before the brokers are asked for it and again with their answer. One without an answer is undecided:
what the brokers hold shows later whether they made it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pipeline.brokers.native import Look
from pipeline.clock import Clock
from pipeline.tables.broker_quotas import APPLIED, NOT_APPLIED, PENDING, BrokerQuotasTable
from quota.broker_levels.entries import EntryKey
from quota.broker_levels.writes import Change, Owned


class ClusterQuotas(Protocol):
    """The quotas of a cluster's brokers. A call that fails may have changed any part of what it was asked for."""

    def look(self) -> Look:
        """See `Look`."""

    def make(self, changes: Sequence[Change]) -> dict[EntryKey, str]:
        """Make changes; returns the keys that the brokers refuse, with the reason."""


# A broker that is asked may not have heard yet of what the controller has answered. It hears of it within some ms,
# and of 10 000 entities that were changed at once within 2 s.
_HEARD_AFTER_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Written:
    """What became of changes. The brokers had answered at `at_ms`, in steady time."""

    at_ms: int
    taken: tuple[Change, ...]
    refused: tuple[tuple[Change, str], ...]


class ChangeWriter:
    """Writes changes to the table and to the brokers. One caller at a time."""

    def __init__(self, table: BrokerQuotasTable, cluster: ClusterQuotas, clock: Clock) -> None:
        self._table = table
        self._cluster = cluster
        self._clock = clock
        self.undecided: tuple[Change, ...] = ()
        """What the brokers may have made or not. While there is any, no other changes can be made."""
        self._taken: dict[EntryKey, tuple[int, float | None]] = {}

    def take_over(self) -> tuple[dict[EntryKey, Owned], list[Change]]:
        """Fence an earlier sync, and return what it owned and left undecided; `Conflict` if another one starts now."""
        self._table.take_over()
        owned, undecided = self._table.state()
        self.undecided = tuple(undecided)
        return owned, undecided

    def write(self, changes: Sequence[Change]) -> Written:
        """Make changes. If it raises, they are undecided, all of them."""
        self._table.append([(change, PENDING) for change in changes], self._clock.now().wall_ms)
        self.undecided = tuple(changes)
        refused = self._cluster.make(changes)
        now = self._clock.now()
        taken = tuple(change for change in changes if change.key not in refused)
        left = tuple((change, refused[change.key]) for change in changes if change.key in refused)
        results = {change.key: f"refused: {reason}" for change, reason in left}
        self._table.append([(change, results.get(change.key, APPLIED)) for change in changes], now.wall_ms)
        self.undecided = ()
        self._taken.update({change.key: (now.steady_ms, change.new) for change in taken})
        return Written(now.steady_ms, taken, left)

    def settle(self, owned: Mapping[EntryKey, Owned]) -> None:
        """Store what became of the undecided changes, by what is kquota's as the brokers were seen after them.

        If it raises, they stay undecided.
        """
        results = [
            (change, APPLIED if _is_in_force(change, owned.get(change.key)) else NOT_APPLIED)
            for change in self.undecided
        ]
        self._table.append(results, self._clock.now().wall_ms)
        self.undecided = ()

    def with_taken(self, held: Mapping[EntryKey, float]) -> dict[EntryKey, float]:
        """What the brokers hold, with the newest changes: the broker that was asked may not have heard of these."""
        now_ms = self._clock.now().steady_ms
        self._taken = {key: one for key, one in self._taken.items() if now_ms - one[0] < _HEARD_AFTER_MS}
        seen: dict[EntryKey, float | None] = {**held, **{key: value for key, (_, value) in self._taken.items()}}
        return {key: value for key, value in seen.items() if value is not None}

    def refuse_fenced(self) -> None:
        """Raise `Conflict` if another sync has taken over."""
        self._table.refuse_fenced()


def _is_in_force(change: Change, owned: Owned | None) -> bool:
    expected = change.owned(0)
    if owned is None or expected is None:
        return owned is expected
    return owned.value == expected.value
