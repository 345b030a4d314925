"""The levels of all quota types on one cluster, and the usage they are found by."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from quota.broker_entries import BrokerEntry, EntryKey, EntryKind
from quota.broker_holdings import BrokerHoldings
from quota.broker_usage import BrokerUsage
from quota.broker_writes import Owned
from quota.entity import QUOTA_TYPES
from quota.entity_levels import EntityLevels, LevelMoves
from quota.level_control import LevelRules
from quota.level_state import NEVER_MS
from quota.snapshot import QuotaSnapshot

EXPIRE_EVERY_MS: Final = 600_000


class ClusterLevels:
    """One `EntityLevels` per quota type.

    Args:
        rules: the thresholds.
        num_samples: N of the brokers.
        sample_window_ms: w of the brokers.

    Attributes:
        broker_ids: the brokers that are in the cluster.
    """

    def __init__(self, rules: LevelRules, num_samples: int, sample_window_ms: int) -> None:
        self._usage = BrokerUsage(num_samples, sample_window_ms)
        self._of_type = {name: EntityLevels(at, self._usage, rules) for at, name in enumerate(QUOTA_TYPES)}
        self._expired_at_ms = 0
        self.broker_ids: tuple[str, ...] = ()

    def __contains__(self, key: EntryKey) -> bool:
        return key in self._of_type[key.quota_type]

    def load(self, snapshot: QuotaSnapshot) -> None:
        """See `BrokerUsage.load`."""
        self._usage.load(snapshot)

    def record(self, usage: pa.Table) -> None:
        """See `BrokerSync.record`."""
        self._usage.record(usage)

    def begin_epoch(self, at_ms: int) -> None:
        """See `BrokerSync.begin_epoch`."""
        self._usage.forget()
        for levels in self._of_type.values():
            levels.begin_epoch(at_ms)

    @property
    def unplaced_bytes(self) -> int:
        """See `BrokerSync.unplaced_bytes`."""
        return self._usage.unplaced_bytes

    def set_brokers(self, broker_ids: Sequence[str]) -> None:
        """See `BrokerSync.set_brokers`."""
        if set(broker_ids) == set(self.broker_ids):
            return
        self.broker_ids = tuple(broker_ids)
        columns = self._usage.set_brokers(self.broker_ids)
        for levels in self._of_type.values():
            levels.set_brokers(columns)

    def list_entries(self, entries: Iterable[BrokerEntry], owned: Mapping[EntryKey, Owned], at_ms: int) -> None:
        """See `EntityLevels.list_entries`.

        Args:
            entries: those of the quota table, and those of sensors of defaults.
            owned: what is on the brokers.
            at_ms: the instant, in event time.
        """
        bounds: dict[str, dict[EntryKey, float]] = {name: {} for name in QUOTA_TYPES}
        own: dict[str, dict[EntryKey, float]] = {name: {} for name in QUOTA_TYPES}
        for entry in entries:
            if entry.kind is EntryKind.LEVEL:
                bounds[entry.quota_type][entry.key] = entry.bound
            elif entry.kind is EntryKind.OWN and entry.key in owned:
                own[entry.quota_type][entry.key] = entry.bound
        for name, levels in self._of_type.items():
            levels.list_entries(bounds[name], own[name], at_ms)

    def follow(self, keys: Iterable[EntryKey], holdings: BrokerHoldings) -> None:
        """Learn what is in force at these keys."""
        held: dict[str, list[tuple[EntryKey, Owned, int]]] = {name: [] for name in QUOTA_TYPES}
        left: dict[str, list[EntryKey]] = {name: [] for name in QUOTA_TYPES}
        for key in keys:
            owned = holdings.ruled(key)
            if owned is None:
                left[key.quota_type].append(key)
            else:
                held[key.quota_type].append((key, owned, holdings.moved_at_ms.get(key, NEVER_MS)))
        for name, levels in self._of_type.items():
            levels.hold(held[name])
            levels.leave(left[name])

    def period(self, at_ms: int, now_ms: int, event_ahead_ms: int) -> list[LevelMoves]:
        """See `EntityLevels.period`: one answer per quota type."""
        moves = [levels.period(at_ms, now_ms, event_ahead_ms) for levels in self._of_type.values()]
        if now_ms - self._expired_at_ms >= EXPIRE_EVERY_MS:
            self._expired_at_ms = now_ms
            self._expire(at_ms)
        return moves

    def _expire(self, at_ms: int) -> None:
        used = np.concatenate([levels.sensors for levels in self._of_type.values()])
        if self._usage.expire(used, at_ms):
            for levels in self._of_type.values():
                levels.renumber_sensors()

    def no_longer_needed(self, at_ms: int) -> list[EntryKey]:
        """See `EntityLevels.no_longer_needed`."""
        return [key for levels in self._of_type.values() for key in levels.no_longer_needed(at_ms)]

    def drop(self, keys: Iterable[EntryKey]) -> None:
        """See `EntityLevels.drop`."""
        gone = list(keys)
        for name, levels in self._of_type.items():
            levels.drop(key for key in gone if key.quota_type == name)
