"""Brokers in memory, under `pipeline.brokers.changes.ClusterQuotas`."""

from collections.abc import Sequence

from pipeline.brokers.changes import Look
from pipeline.errors import ClusterUnreachable
from quota.broker_levels.entries import EntryKey
from quota.broker_levels.writes import Change

ADDRESS = "nowhere:9092"


class FakeQuotas:
    """Holds values, and fails on demand.

    Attributes:
        values: What the brokers hold.
        broker_ids: Which brokers are up.
        refused: Keys that they refuse, with the reason.
        takes: How many changes of the next call are made before the connection is lost; None = all, and it is not lost.
        altered: Every change that was made, in order.
    """

    def __init__(self, *broker_ids: str) -> None:
        self.values: dict[EntryKey, float] = {}
        self.broker_ids = broker_ids or ("1", "2")
        self.refused: dict[EntryKey, str] = {}
        self.takes: int | None = None
        self.is_away = False
        self.altered: list[Change] = []

    def look(self) -> Look:
        self._answer()
        return Look(self.broker_ids, dict(self.values))

    def alter(self, changes: Sequence[Change]) -> dict[EntryKey, str]:
        self._answer()
        for change in changes if self.takes is None else changes[: self.takes]:
            if change.key in self.refused:
                continue
            self.altered.append(change)
            if change.new is None:
                self.values.pop(change.key, None)
            else:
                self.values[change.key] = change.new
        if self.takes is not None:
            self.takes = None
            raise ClusterUnreachable(ADDRESS, cause="the connection was lost", fix="try again")
        return {change.key: self.refused[change.key] for change in changes if change.key in self.refused}

    def _answer(self) -> None:
        if self.is_away:
            raise ClusterUnreachable(ADDRESS, cause="it is away", fix="start it")
