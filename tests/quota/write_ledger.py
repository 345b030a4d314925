"""What a shell stores of the writes of a sync, and brokers that hold what was written: plain lists and dictionaries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from quota.broker_levels.entries import EntryKey
from quota.broker_levels.sync import BrokerSync
from quota.broker_levels.writes import Change, Owned


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
    """The table of writes.

    Attributes:
        rows: each write, when, and whether the brokers took it; None as long as that is not known.
        held: what the brokers hold.
        written: what really got to the brokers, and when.
    """

    held: dict[EntryKey, float] = field(default_factory=dict)
    rows: list[tuple[Change, int, bool | None]] = field(default_factory=list)
    written: list[tuple[Change, int]] = field(default_factory=list)

    def write(self, sync: BrokerSync, changes: Sequence[Change], now_ms: int, fate: Fate) -> list[Change]:
        """Bring the writes of a period as far as they get. Returns those that the brokers took."""
        if fate is Fate.KILLED_BEFORE:
            return []
        first = len(self.rows)
        self.rows.extend((change, now_ms, None) for change in changes)
        if fate in {Fate.KILLED_STORED, Fate.NOT_WRITTEN}:
            return []
        written = list(changes[: len(changes) // 2] if fate is Fate.KILLED_HALFWAY else changes)
        self.written.extend((change, now_ms) for change in written)
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
