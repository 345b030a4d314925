"""A `BrokerSync`, brokers that take what it writes, what a shell stores of that, and a clock set by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from quota.broker_levels.entries import MOST_OWN_PER_USER, EntryKey
from quota.broker_levels.sync import BrokerSync
from quota.broker_levels.writes import LEVELS, Change, Owned
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from quota.tenants import Tenant
from tests.quota.factories import table, usage_row


class Fate(Enum):
    """How far the writes of a period get."""

    DONE = "stored, written, answered"
    KILLED_BEFORE = "killed before they are stored"
    KILLED_STORED = "killed when they are stored"
    KILLED_HALFWAY = "killed when half of them is written"
    KILLED_WRITTEN = "killed before the answers are stored"
    UNANSWERED = "written, but the answers are lost"
    NOT_WRITTEN = "not written, and nobody knows"

    @property
    def is_killed(self) -> bool:
        return self.name.startswith("KILLED")


@dataclass
class WriteLedger:
    """The table of writes: each, when, and whether the brokers took it (None: not known); and what the brokers hold."""

    held: dict[EntryKey, float] = field(default_factory=dict)
    rows: list[tuple[Change, int, bool | None]] = field(default_factory=list)

    def write(self, sync: BrokerSync, changes: Sequence[Change], now_ms: int, fate: Fate) -> list[Change]:
        """Bring the writes of a period as far as they get. Returns those that the brokers took."""
        if fate is Fate.KILLED_BEFORE:
            return []
        first = len(self.rows)
        self.rows.extend((change, now_ms, None) for change in changes)
        if fate in {Fate.KILLED_STORED, Fate.NOT_WRITTEN}:
            return []
        written = list(changes[: len(changes) // 2] if fate is Fate.KILLED_HALFWAY else changes)
        for change in written:
            if change.new is None:
                self.held.pop(change.key, None)
            else:
                self.held[change.key] = change.new
        if fate is Fate.DONE:
            self.rows[first:] = [(change, now_ms, True) for change in changes]
            sync.confirm(changes, now_ms)
        return written

    def restart(self, sync: BrokerSync, now_ms: int) -> None:
        """Tell a new sync what was stored."""
        owned: dict[EntryKey, Owned] = {}
        undecided: dict[EntryKey, list[Change]] = {}
        for change, written_at_ms, is_taken in self.rows:
            if is_taken is None:
                undecided.setdefault(change.key, []).append(change)
                continue
            undecided.pop(change.key, None)
            now = change.owned(written_at_ms)
            if now is None:
                owned.pop(change.key, None)
            else:
                owned[change.key] = now
        sync.restore_owned(owned, [change for changes in undecided.values() for change in changes], now_ms)


PRODUCER, CONSUMER, REQUEST = QUOTA_TYPES
START_MS = 1_700_000_000_000
D = "<default>"
QUIET_MS = (1_000, 70_000, 3_000, 10_000, 610_000, 3_000, 10_000)
"""Pauses after which a sync remembers nothing of what was used."""
Told = tuple[str, float | None, float | None, str]
"""A write: user, old value, new value, cause."""


def key_of(user: str, client_id: str = "", quota_type: str = PRODUCER) -> EntryKey:
    return EntryKey(user, client_id, quota_type)


def told(changes: Sequence[Change]) -> list[Told]:
    return [(change.key.user, change.old, change.new, change.cause) for change in changes]


def levels_of(sync: BrokerSync) -> dict[EntryKey, float]:
    """The levels in force, of the keys whose value is one."""
    return {key: one.value for key, one in sync.owned.items() if one.kind in LEVELS}


class Synced:
    """A cluster of two brokers, 1 and 2, unless others are given."""

    def __init__(
        self,
        *rows: Mapping[str, Any],
        held: Mapping[EntryKey, float] | None = None,
        brokers: Sequence[str] = ("1", "2"),
        adopt: bool = False,
        own_entries_per_user: int = MOST_OWN_PER_USER,
    ) -> None:
        self.now_ms = START_MS
        self.brokers = brokers
        self.ledger = WriteLedger(dict(held or {}))
        self.sync = BrokerSync(adopt=adopt, own_entries_per_user=own_entries_per_user)
        self.load(*rows)
        self.describe()

    def load(
        self,
        *rows: Mapping[str, Any],
        mode: Literal["enforce", "shadow"] = "enforce",
        mirror: bool = False,
        tenants: tuple[Tenant, ...] = (),
    ) -> None:
        self._rows, self._mode, self._mirror = rows, mode, mirror
        self.sync.load_quotas(replace(QuotaSnapshot.from_rows(rows, 1, mode), tenants=tenants), mirror)

    def describe(self) -> None:
        self.sync.set_brokers(self.brokers)
        self.sync.observe(self.ledger.held, self.now_ms)

    def others_write(self, key: EntryKey, value: float | None) -> None:
        if value is None:
            self.ledger.held.pop(key, None)
        else:
            self.ledger.held[key] = value
        self.describe()

    def restart(self, adopt: bool = False, own_entries_per_user: int = MOST_OWN_PER_USER) -> None:
        self.sync = BrokerSync(adopt=adopt, own_entries_per_user=own_entries_per_user)
        self.ledger.restart(self.sync, self.now_ms)
        self.load(*self._rows, mode=self._mode, mirror=self._mirror)
        self.describe()

    def record(self, loads: Mapping[str, Sequence[int]]) -> None:
        """Usage of the next second: what each user, or `user/client-id`, produces on each broker."""
        used = [
            usage_row(self.now_ms + 900, broker_id=broker, user=user, client_id=client_id, produced_bytes=amount)
            for client, amounts in loads.items()
            for user, _, client_id in [client.partition("/")]
            for broker, amount in zip(self.brokers, amounts, strict=True)
        ]
        self.sync.record(table(used))

    def pass_time(self, pause_ms: int, fate: Fate = Fate.DONE) -> tuple[Sequence[Change], Sequence[Change]]:
        """A period after a pause: what the sync wants to write, and what of it gets to the brokers."""
        self.now_ms += pause_ms
        changes = self.sync.period(self.now_ms - 1, self.now_ms)
        return changes, self.ledger.write(self.sync, changes, self.now_ms, fate)

    def period(self, fate: Fate = Fate.DONE) -> list[Told]:
        """A second later, without usage."""
        return told(self.pass_time(1_000, fate)[0])

    def rest(self) -> list[Told]:
        """Nobody uses anything until nothing is remembered."""
        return [one for pause_ms in QUIET_MS for one in told(self.pass_time(pause_ms)[0])]

    def use(self, seconds: int, loads: Mapping[str, Sequence[int]]) -> list[Change]:
        """Some seconds of `record`, a period after each. Returns all that was written."""
        written: list[Change] = []
        for _ in range(seconds):
            self.record(loads)
            written += self.pass_time(1_000)[0]
        return written
