"""What is written to the brokers, what kquota owns there, and what stands in the way: plain values, to be stored.

A *write* changes one value at one entity and quota type, on all brokers alike. kquota owns a key from its first write
there until it has given back what stood there before.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from quota.broker_entries import EntryKey, EntryKind
from quota.level_control import Cause

ADDED: Final = "added"
EDITED: Final = "edited"
REMOVED: Final = "removed"
GIVEN_BACK: Final = "given_back"
ADOPTED: Final = "adopted"
RESTORED: Final = "restored"

WORDS: Final = {
    **{cause.name.lower(): cause.words for cause in Cause},
    ADDED: "the quota table asks for it",
    EDITED: "the quota table was edited",
    REMOVED: "it is no longer needed, and nothing stood there before",
    GIVEN_BACK: "it is no longer needed, and this stood there before",
    ADOPTED: "a value that others wrote was adopted",
    RESTORED: "the sync stops, and every broker gets the whole bound",
}
"""Why something is written, by `Change.cause`."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A key that is kquota's.

    Attributes:
        before: what stood on the brokers before kquota's first write; None for nothing.
        value: what kquota wrote last.
        kind: what the value is.
        bound: T when it was written.
        written_at_ms: when, on the clock of `BrokerSync`'s `now_ms`.
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
        key: the entity and the quota type.
        old: the value on the brokers until then; None for none.
        new: the value from then on, as Kafka takes it; None to remove it.
        bound: T; None if the entry goes.
        kind: what the new value is; None if the entry goes. The key is then no longer owned.
        demand: of a level, per broker-id what was wanted there, per second; None where it counted as unbounded. In the
            order of the brokers. Empty where no level was computed.
        cause: a key of `WORDS`.
        before: what stood on the brokers before kquota's first write; None for nothing.
        over_at_ms: as in `Owned`.
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
        """What kquota owns at the key once this is in force; None if the entry goes.

        Args:
            written_at_ms: when it was written.
        """
        if self.new is None or self.bound is None or self.kind is None:
            return None
        return Owned(self.before, self.new, self.kind, self.bound, written_at_ms, self.over_at_ms)

    @property
    def is_move(self) -> bool:
        """Whether a level moves because of what is used, or of the brokers there are."""
        return self.cause.upper() in Cause.__members__

    @property
    def words(self) -> str:
        """The write in a sentence.

        >>> key = EntryKey("alice", "", "producer_byte_rate")
        >>> level = Change(key, 100.0, 35.0, 100.0, EntryKind.LEVEL, {"1": None, "2": 30.0}, "together_above", None)
        >>> print(level.words)
        100 to 35 of 100 on each of 2 brokers: the brokers together would give more than the bound
        >>> print(Change(key, 35.0, None, None, None, {}, "removed", None).words)
        35 to nothing: it is no longer needed, and nothing stood there before
        """
        of_bound = "" if self.bound is None or self.bound == self.new else f" of {self.bound:.12g}"
        brokers = f" on each of {len(self.demand)} brokers" if self.demand else ""
        return f"{_shown(self.old)} to {_shown(self.new)}{of_bound}{brokers}: {WORDS[self.cause]}"


class DriftKind(StrEnum):
    """How a value got onto the brokers that kquota does not want there."""

    FOREIGN = "foreign"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Drift:
    """A value on the brokers that is not kquota's, at a key where kquota wants to write. It is left alone.

    Attributes:
        key: the entity and the quota type.
        theirs: what stands there; None for nothing.
        ours: what kquota wrote last; None if it never wrote there.
        wanted: what kquota would write there; None to remove it.
        kind: `foreign`: kquota never wrote there. `changed`: someone changed what kquota wrote.
    """

    key: EntryKey
    theirs: float | None
    ours: float | None
    wanted: float | None
    kind: DriftKind

    @property
    def words(self) -> str:
        """The drift in a sentence.

        >>> drift = Drift(EntryKey("alice", "", "producer_byte_rate"), 7e6, None, 1e6, DriftKind.FOREIGN)
        >>> print(drift.words)
        the brokers have 7000000, which kquota did not write; it wants 1000000
        """
        wrote = "which kquota did not write" if self.kind is DriftKind.FOREIGN else f"kquota wrote {_shown(self.ours)}"
        return f"the brokers have {_shown(self.theirs)}, {wrote}; it wants {_shown(self.wanted)}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A key that kquota wants to write and cannot.

    Attributes:
        key: the entity and the quota type.
        by: `broker`: it refused the write. `resolution`: an entry of its own would change another client's quota.
        reason: why, as a part of a sentence.
        retry_at_ms: when it is tried again; None for when the quotas change.
    """

    key: EntryKey
    by: Literal["broker", "resolution"]
    reason: str
    retry_at_ms: int | None


def _shown(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.12g}"
