"""What the brokers hold, what of it is kquota's, and what should stand there.

At each key one of these is true:

* All is as it should be.
* Something is *due*: the entry is new, was edited, or goes. A level that moves is no matter of this module.
* There is a *drift*: the brokers hold a value that is not kquota's. It is left alone, unless values of others are
  adopted. If it is what kquota wants there, there is nothing to do, and what others changed is kquota's again.

What was written and not answered is remembered. If it turns up on the brokers later, it is kquota's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from quota.broker_entries import BrokerEntry, EntryKey, EntryKind
from quota.broker_writes import (
    ADDED,
    ADOPTED,
    EDITED,
    GIVEN_BACK,
    REMOVED,
    RESTORED,
    Change,
    Drift,
    DriftKind,
    Owned,
)

LEVELS: Final = (EntryKind.LEVEL, EntryKind.OWN)
_UNDECIDED_KEPT: Final = 4
"""The largest number of unanswered writes of a key that are remembered: the newest ones."""


class BrokerHoldings:
    """One value per key, everywhere.

    Args:
        adopt: write where others wrote, too.

    Attributes:
        owned: what is kquota's.
        held: what the brokers hold, as far as it is known.
        wanted: what should stand there.
        brokers: how many brokers there are.
        due: the cause of what is to be written, in the order in which it became due.
        drifts: what is left alone.
        moved_at_ms: when a level was last written for any reason but an edit.
    """

    def __init__(self, adopt: bool) -> None:
        self._adopt = adopt
        self._undecided: dict[EntryKey, list[Change]] = {}
        self.owned: dict[EntryKey, Owned] = {}
        self.held: dict[EntryKey, float] = {}
        self.wanted: dict[EntryKey, BrokerEntry] = {}
        self.brokers = 0
        self.due: dict[EntryKey, str] = {}
        self.drifts: dict[EntryKey, Drift] = {}
        self.moved_at_ms: dict[EntryKey, int] = {}

    def restore(self, owned: Mapping[EntryKey, Owned], undecided: Iterable[Change]) -> None:
        """See `BrokerSync.restore_owned`."""
        self.owned = dict(owned)
        self.held = {key: one.value for key, one in owned.items()}
        self.moved_at_ms = {key: one.written_at_ms for key, one in owned.items()}
        self.hand_out(undecided)

    def hand_out(self, changes: Iterable[Change]) -> None:
        """These may get to the brokers."""
        for change in changes:
            of_key = self._undecided.setdefault(change.key, [])
            if change not in of_key:
                of_key.append(change)
                del of_key[:-_UNDECIDED_KEPT]

    def observe(self, held: Mapping[EntryKey, float], now_ms: int) -> None:
        """Compare with what the brokers hold, and decide what was not answered. `review` has to follow."""
        self.held = dict(held)
        for key, changes in list(self._undecided.items()):
            arrived = next((change for change in reversed(changes) if change.new == held.get(key)), None)
            if arrived is not None and not self._is_ours(key):
                self.take(arrived, now_ms)

    def _is_ours(self, key: EntryKey) -> bool:
        return key in self.owned and self.owned[key].value == self.held.get(key)

    def take(self, change: Change, now_ms: int) -> None:
        """The brokers took this. `review` has to follow."""
        self._undecided.pop(change.key, None)
        owned = change.owned(now_ms)
        if change.is_move:
            self.moved_at_ms[change.key] = now_ms
        if owned is None:
            self.owned.pop(change.key, None)
            self.moved_at_ms.pop(change.key, None)
        else:
            self.owned[change.key] = owned
        if change.new is None:
            self.held.pop(change.key, None)
        else:
            self.held[change.key] = change.new

    def refuse(self, change: Change) -> None:
        """The brokers refused this."""
        left = [other for other in self._undecided.get(change.key, ()) if other != change]
        self._undecided[change.key] = left
        if not left:
            del self._undecided[change.key]

    def review(self, keys: Iterable[EntryKey]) -> None:
        """Say what is due and what has drifted at these keys."""
        for key in keys:
            drift, due = self._judge(key, self.wanted.get(key), self.owned.get(key))
            if due is not None:
                self.due[key] = due
            else:
                self.due.pop(key, None)
            if drift is not None:
                self.drifts[key] = drift
            else:
                self.drifts.pop(key, None)

    def _judge(self, key: EntryKey, entry: BrokerEntry | None, owned: Owned | None) -> tuple[Drift | None, str | None]:
        held = self.held.get(key)
        if owned is None:
            return (None, None) if entry is None else self._judge_new(key, entry, held)
        value = self.value(key)
        if held in {value, owned.value}:
            if held is not None and held != owned.value:
                bound = owned.bound if entry is None else entry.bound
                owned = self.owned[key] = replace(owned, value=held, bound=bound)
            return None, self._due(entry, owned)
        if self._adopt:
            return None, ADOPTED if entry is not None else GIVEN_BACK
        return Drift(key, held, owned.value, value, DriftKind.CHANGED), None

    def _judge_new(self, key: EntryKey, entry: BrokerEntry, held: float | None) -> tuple[Drift | None, str | None]:
        """An entry where kquota never wrote. The first write of a sensor of a default is a move of its level."""
        if held is not None and not self._adopt:
            is_right = held == entry.bound and entry.kind not in LEVELS
            return None if is_right else Drift(key, held, None, entry.bound, DriftKind.FOREIGN), None
        if entry.kind is EntryKind.OWN:
            return None, None
        return None, ADDED if held is None else ADOPTED

    def _due(self, entry: BrokerEntry | None, owned: Owned) -> str | None:
        if entry is None:
            return REMOVED if owned.before is None else GIVEN_BACK
        if owned.kind is not entry.kind:
            self.owned[entry.key] = replace(owned, kind=entry.kind)
        return EDITED if entry.kind not in LEVELS and owned.value != entry.bound else None

    def value(self, key: EntryKey) -> float | None:
        """What should stand at a key; None for nothing. A level stays, within its range."""
        entry, owned = self.wanted.get(key), self.owned.get(key)
        if entry is None:
            return None if owned is None else owned.before
        if owned is None or entry.kind not in LEVELS:
            return entry.bound
        return min(max(owned.value, entry.bound / max(self.brokers, 1)), entry.bound)

    def ruled(self, key: EntryKey) -> Owned | None:
        """What kquota owns at a key that has a level, if it stands as it should; else None."""
        entry = self.wanted.get(key)
        is_level = entry is not None and entry.kind in LEVELS
        return self.owned.get(key) if is_level and key not in self.drifts and key not in self.due else None

    def change(self, key: EntryKey) -> Change:
        """The write that is due at a key."""
        entry, owned, held, cause = self.wanted.get(key), self.owned.get(key), self.held.get(key), self.due[key]
        before = held if owned is None else owned.before
        if entry is None:
            cause = REMOVED if before is None else GIVEN_BACK
            return Change(key, held, before, None, None, {}, cause, before)
        over_at_ms = None if owned is None else owned.over_at_ms
        return Change(key, held, self.value(key), entry.bound, entry.kind, {}, cause, before, over_at_ms)

    def restored(self) -> list[Change]:
        """See `BrokerSync.restore`."""
        found = []
        for key, owned in self.owned.items():
            if owned.kind not in LEVELS or key in self.drifts:
                continue
            if owned.kind is EntryKind.OWN or key not in self.wanted:
                cause = REMOVED if owned.before is None else GIVEN_BACK
                found.append(Change(key, owned.value, owned.before, None, None, {}, cause, owned.before))
            elif owned.value != self.wanted[key].bound:
                bound = self.wanted[key].bound
                found.append(
                    Change(key, owned.value, bound, bound, owned.kind, {}, RESTORED, owned.before, owned.over_at_ms)
                )
        return found
