"""What is written to the brokers, what kquota owns there, and what stands in the way: plain values, to be stored.

A *write* changes one value at one entity and quota type, on all brokers alike. kquota owns a key from its first write
there until it has given back what stood there before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final, TypeVar

from quota.broker_levels.entries import BrokerEntry, EntryKey, EntryKind, Refusal, is_metering


class Cause(IntEnum):
    """Why a level is what it is now."""

    KEPT = 0
    TOGETHER_ABOVE = 1
    ROOM_LEFT = 2
    QUIET = 3
    QUIET_OFFENDER = 4
    OUT_OF_RANGE = 5


ADDED: Final = "added"
EDITED: Final = "edited"
REMOVED: Final = "removed"
GIVEN_BACK: Final = "given_back"
ADOPTED: Final = "adopted"
METERING: Final = "metering"
MEMBER: Final = "member"

WORDS: Final = {
    "kept": "nothing has changed",
    "together_above": "the brokers together would give more than the bound",
    "room_left": "brokers that are asked for less leave room for the others",
    "quiet": "use has been far below the bound",
    "quiet_offender": "use has been far below the bound, but was above it lately",
    "out_of_range": "the bound or the number of brokers has changed",
    ADDED: "the quota table asks for it",
    EDITED: "the quota table was edited",
    REMOVED: "it is no longer needed, and nothing stood there before",
    GIVEN_BACK: "it is no longer needed, and this stood there before",
    ADOPTED: "a value that others wrote was adopted",
    METERING: "brokers measure a client only under a quota",
    MEMBER: "what it may use of its tenant's bound has changed",
}
"""Why something is written, by `Change.cause`."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A key that is kquota's.

    Attributes:
        before: what stood on the brokers before kquota's first write; None for nothing.
        value: what kquota wrote last.
        bound: T when it was written.
        written_at_ms: on the clock of `BrokerSync`'s `now_ms`.
        over_at_ms: when the brokers were last asked for more than T together, as far as it was stored; None for never.
    """

    before: float | None
    value: float
    kind: EntryKind
    bound: float
    written_at_ms: int
    over_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One write.

    Attributes:
        old: the value on the brokers until then; None for none.
        new: the value from then on, as Kafka takes it; None to remove it.
        bound: T; None if the entry goes.
        kind: what the new value is; None if the entry goes. The key is then no longer owned.
        demand: of a level, per broker-id what was wanted there, per second; None where it counted as unbounded. In the
            order of the brokers. Empty where no level was computed.
        cause: a key of `WORDS`.
    """

    key: EntryKey
    old: float | None
    new: float | None
    bound: float | None
    kind: EntryKind | None
    demand: dict[str, float | None]
    cause: str
    before: float | None
    over_at_ms: int | None = None

    def owned(self, written_at_ms: int) -> Owned | None:
        """What kquota owns at the key once this is in force; None if the entry goes."""
        if self.new is None or self.bound is None or self.kind is None:
            return None
        return Owned(self.before, self.new, self.kind, self.bound, written_at_ms, self.over_at_ms)

    @property
    def is_move(self) -> bool:
        """Whether a level moves because of what is used, or of the brokers there are."""
        return self.cause.upper() in Cause.__members__


class DriftKind(StrEnum):
    """How a value got onto the brokers that kquota does not want there."""

    FOREIGN = "foreign"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Drift:
    """A value on the brokers that is not kquota's, at a key where kquota wants to write. It is left alone.

    `ours` is what kquota wrote last, `wanted` what it would write there; None for nothing. `foreign`: kquota never
    wrote there. `changed`: someone changed what kquota wrote.
    """

    key: EntryKey
    theirs: float | None
    ours: float | None
    wanted: float | None
    kind: DriftKind


RETRY_MS: Final = 600_000


class WriteRetries:
    """The keys whose last write a broker refused, and when each is tried again.

    >>> retries, key = WriteRetries(), EntryKey("alice", "", "producer_byte_rate")
    >>> retries.refuse(key, 5.0, "not allowed", now_ms=0)
    >>> [retries.is_due(key, 5.0, now_ms) for now_ms in (0, 599_999, 600_000)], retries.is_due(key, 6.0, now_ms=0)
    ([False, False, True], True)
    """

    def __init__(self) -> None:
        self._tried: dict[EntryKey, tuple[float | None, int, Refusal]] = {}  # T of the write; when it is due again

    def refuse(self, key: EntryKey, bound: float | None, reason: str, now_ms: int) -> None:
        """A broker refused this, for a reason that is a part of a sentence. Another bound is tried at once."""
        self._tried[key] = bound, now_ms + RETRY_MS, Refusal(key, "broker", reason)

    def is_due(self, key: EntryKey, bound: float | None, now_ms: int) -> bool:
        """Whether this may be tried now."""
        if key not in self._tried:
            return True
        last_bound, due_at_ms, _ = self._tried[key]
        return last_bound != bound or now_ms >= due_at_ms

    def forget(self, key: EntryKey) -> None:
        """It was taken, or is not wanted any more."""
        self._tried.pop(key, None)

    @property
    def refusals(self) -> list[Refusal]:
        """What is refused now."""
        return [refusal for *_, refusal in self._tried.values()]


Value = TypeVar("Value")


def _set(values: dict[EntryKey, Value], key: EntryKey, value: Value | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


LEVELS: Final = (EntryKind.LEVEL, EntryKind.OWN)
_UNDECIDED_KEPT: Final = 4  # the largest number of unanswered writes of a key that are remembered: the newest ones


class BrokerHoldings:
    """What the brokers hold, what of it is kquota's, and what should stand there: one value per key, on all brokers.

    At each key one of these is true:

    * All is as it should be.
    * Something is *due*: the entry is new, was edited, or goes. Levels that move are decided elsewhere.
    * There is a *drift*: the brokers hold a value that is not kquota's. It is left alone, unless values of others are
      adopted. If it is what kquota wants there, nothing is due, and what others changed is kquota's again.

    What was written and not answered is remembered. If it turns up on the brokers later, it is kquota's.

    Attributes:
        held: what the brokers hold, as far as it is known.
        wanted: what should stand there.
        due: the cause of what is to be written, in the order in which it became due.
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
            is_ours = key in self.owned and self.owned[key].value == held.get(key)
            if arrived is not None and not is_ours:
                self.take(arrived, now_ms)
        self._follow_metering(now_ms)

    def _follow_metering(self, now_ms: int) -> None:
        """`kquota meter enable` and `disable` may have changed the brokers: what they hold is what is wanted."""
        for key, one in list(self.owned.items()):
            if one.kind is EntryKind.METERING and self.held.get(key) != one.value and key not in self._undecided:
                del self.owned[key]
        for key, value in self.held.items():
            if key not in self.owned and is_metering(key, value):
                self.owned[key] = Owned(None, value, EntryKind.METERING, value, now_ms)

    def take(self, change: Change, now_ms: int) -> None:
        """The brokers took this. `review` has to follow."""
        self._undecided.pop(change.key, None)
        owned = change.owned(now_ms)
        if owned is None:
            self.moved_at_ms.pop(change.key, None)
        elif change.is_move:
            self.moved_at_ms[change.key] = now_ms
        _set(self.owned, change.key, owned)
        _set(self.held, change.key, change.new)

    def refuse(self, change: Change) -> None:
        """The brokers refused this."""
        left = [other for other in self._undecided.get(change.key, ()) if other != change]
        _set(self._undecided, change.key, left or None)

    def review(self, keys: Iterable[EntryKey]) -> None:
        """Find what is due and what has drifted at these keys."""
        for key in keys:
            drift, due = self._judge(key, self.wanted.get(key), self.owned.get(key))
            _set(self.due, key, due)
            _set(self.drifts, key, drift)

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
        added = METERING if entry.kind is EntryKind.METERING else ADDED
        return None, added if held is None else ADOPTED

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
