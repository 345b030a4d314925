"""Clients, simulated brokers and a `BrokerSync` that is killed from time to time, on one clock set by hand."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quota.broker_levels.entries import EntryKey
from quota.broker_levels.sync import BrokerSync
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row, table, usage_row
from tests.quota.level_runs import BOUND, OFFSET_MS, START_MS, STEP_MS, SimulatedBrokers
from tests.quota.write_ledger import Fate, WriteLedger

Floats = NDArray[np.float64]

DOWN_SECONDS: Final = 3
"""From the kill until the next process has read what was stored."""
KEPT_SECONDS: Final = 12
"""The usage that a new process reads: what the rates are made of."""


@dataclass
class SyncedBrokers:
    """Users that want multiples of T from n brokers.

    Attributes:
        overloads: k of each user.
        shares: the part of its requests that goes to each broker, in turn, float64[moves, n].
        move_seconds: how long each of them lasts.
        kills: what happens to the sync in which second.
        sent: what all brokers took in each second, divided by T, float64[users] each.
        levels: the values that the brokers held in each second, divided by T, likewise.
    """

    overloads: Floats
    shares: Floats
    move_seconds: int
    kills: dict[int, Fate]
    ledger: WriteLedger = field(default_factory=WriteLedger)
    sent: list[Floats] = field(default_factory=list)
    levels: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._shape = len(self.overloads), self.shares.shape[1]
        self._brokers = SimulatedBrokers(self._shape[0] * self._shape[1])
        self._keys = [EntryKey(f"user-{number}", "", QUOTA_TYPES[0]) for number in range(self._shape[0])]
        rows = [quota_row(key.user, producer_byte_rate=BOUND) for key in self._keys]
        self._snapshot = QuotaSnapshot.from_rows(rows, 1)
        self._usage: list[pa.Table] = []
        self._sync = self._new_sync(START_MS)
        self._write(START_MS, Fate.DONE)

    def _new_sync(self, now_ms: int) -> BrokerSync:
        sync = BrokerSync()
        self.ledger.restart(sync, now_ms)
        sync.load_quotas(self._snapshot, mirror=False)
        sync.set_brokers([str(broker) for broker in range(self._shape[1])])
        sync.observe(self.ledger.held, now_ms)
        for usage in self._usage[-KEPT_SECONDS:-1]:
            sync.record(usage)
        return sync

    def _write(self, now_ms: int, fate: Fate) -> None:
        self.ledger.write(self._sync, self._sync.period(now_ms - 1001, now_ms), now_ms, fate)

    def run(self) -> None:
        """All moves."""
        dead_until = -1
        for second in range(len(self.shares) * self.move_seconds):
            wanted = self.shares[second // self.move_seconds] * self.overloads[:, None] * BOUND
            self._usage.append(self._second(second, wanted))
            now_ms = START_MS + (second + 1) * 1000
            if second < dead_until:
                continue
            if second == dead_until:
                self._sync = self._new_sync(now_ms)
            elif len(self._usage) > 1:
                self._sync.record(self._usage[-2])
            self._write(now_ms, self.kills.get(second, Fate.DONE))
            if second in self.kills:
                dead_until = second + DOWN_SECONDS

    def _second(self, second: int, wanted: Floats) -> pa.Table:
        held = np.array([self.ledger.held[key] for key in self._keys])
        amount, bound = (wanted * (STEP_MS / 1000.0)).ravel(), np.repeat(held, self._shape[1])
        sent, last_ms = np.zeros(self._shape), np.zeros(self._shape, np.int64)
        for step in range(0, 1000, STEP_MS):
            now_ms = START_MS + second * 1000 + step + OFFSET_MS
            took = self._brokers.send(amount, bound, now_ms).reshape(self._shape)
            sent += took
            last_ms[took > 0] = now_ms
        self.sent.append(sent.sum(axis=1) / BOUND)
        self.levels.append(held / BOUND)
        used = np.argwhere(sent > 0).tolist()
        return table(
            [
                usage_row(
                    int(last_ms[user, broker]),
                    broker_id=str(broker),
                    user=self._keys[user].user,
                    produced_bytes=round(sent[user, broker]),
                )
                for user, broker in used
            ]
        )

    def come_to_rest(self) -> None:
        """Restart once more, and let nobody send anything until nothing is remembered."""
        self._usage = []
        now_ms = START_MS + len(self.sent) * 1000
        self._sync = self._new_sync(now_ms)
        for pause_ms in (1_000, 65_000, 3_000, 10_000, 610_000, 3_000, 10_000):
            now_ms += pause_ms
            self._write(now_ms, Fate.DONE)
