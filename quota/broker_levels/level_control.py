"""The next level of every entity: what all brokers shall enforce from now on, and why.

**The rule.** Each broker enforces the level L by itself, and all of them together shall give the entity T
(`quota.broker_level`). In every period, for every entity:

1. **Who throttles.** A broker whose O is at least 0.97 · L when it has a new event mutes the entity for X = (O − L) / L
   · W after that event. A muted client hides what it wants. So the broker counts as saturated until 5 s after the mute:
   the broker's sample windows begin elsewhere than ours, and its X may be longer. Events from before the last alter
   tell nothing: they were judged by another level.
2. **What the others want**: their rate of the last two to three seconds. It is in full view.
3. **All fits** if no broker throttles and the wants are together at most 1.02 · T, lately or over W. Then L is left
   alone. Only a broker that is asked for 0.97 · L or more counts as unbounded then: it gets what the others leave
   before it throttles.
4. Otherwise the level is that of `broker_levels`.
5. **When it is written**: if it differs by 5 % or more, in the same direction for 2 s, and 10 s after the last alter
   that was no edit of T.
   A level that must go down is not held up for the 2 s while the brokers would let through more than 1.2 · T.
6. **Quiet**: less than T / 2 for a minute and no broker throttles. L goes back to T, and the entity costs nothing more.
   But one that was over T in the last ten minutes goes to T / n, if no broker is asked for more than 0.8 of that: when
   it begins again, n brokers do not let through n · T.
7. A level outside T / n … T is corrected at once: the bound or the number of brokers has changed.

The thresholds were chosen by simulation: docs/broker-levels.md.
"""

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Final, Self

import numpy as np

from quota.arrays import Flags, Floats, Ints
from quota.broker_level import broker_levels
from quota.broker_levels.usage import BrokerView
from quota.throttle_time import throttle_time_ms

NEVER_MS: Final = -(1 << 60)  # an instant before all others


@dataclass(frozen=True, slots=True)
class LevelState:
    """What is remembered of m entities on n brokers from one period to the next.

    After a restart the first three are known from what was written; `start` forgets the rest, which costs some seconds.

    Attributes:
        level: L in force, per second.
        altered_at_ms: when it was written; `NEVER_MS` for never. Events from before it tell nothing of L.
        over_at_ms: when the brokers were last asked for more than T together.
        saturated_until_ms: until when each broker counts as saturated, int64[m, n].
        side: −1, 0, 1: the level should go down, stay, go up; since `side_since_ms`.
        used_at_ms: when it last was not quiet.
    """

    level: Floats
    altered_at_ms: Ints
    over_at_ms: Ints
    saturated_until_ms: Ints
    side: Ints
    side_since_ms: Ints
    used_at_ms: Ints

    @classmethod
    def start(cls, level: Floats, altered_at_ms: Ints, over_at_ms: Ints, brokers: int, now_ms: int) -> Self:
        """The state of entities of which no more is known."""
        size = len(level)
        now = np.full(size, now_ms, np.int64)
        never = np.full((size, brokers), NEVER_MS, np.int64)
        return cls(level, altered_at_ms, over_at_ms, never, np.zeros(size, np.int64), now, now)

    def on_brokers(self, columns: Ints) -> Self:
        """These entities on other brokers: each broker has its column until now; −1 for one that has joined."""
        known = np.append(self.saturated_until_ms, np.full((len(self.level), 1), NEVER_MS), axis=1)
        return replace(self, saturated_until_ms=known[:, columns])

    def take(self, rows: Ints) -> Self:
        """Some of the entities, in this order."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Ints, others: "LevelState") -> Self:
        """These entities, each once, in the state that others have."""
        columns = {field.name: getattr(self, field.name).copy() for field in fields(self)}
        for name, column in columns.items():
            column[rows] = getattr(others, name)
        return type(self)(**columns)

    def joined(self, others: "LevelState") -> Self:
        """These entities and then the others, all on the same brokers."""
        return type(self)(
            *(np.concatenate((getattr(self, field.name), getattr(others, field.name))) for field in fields(self))
        )


_ROUNDING: Final = 1e-9
_LONGEST_MUTE_MS: Final = 1 << 50
"""X where the level is next to nothing. Later than everything, and far from the largest instant."""


class Cause(IntEnum):
    """Why a level is what it is now."""

    KEPT = 0
    TOGETHER_ABOVE = 1
    ROOM_LEFT = 2
    QUIET = 3
    QUIET_OFFENDER = 4
    OUT_OF_RANGE = 5


@dataclass(frozen=True, slots=True)
class LevelRules:
    """The thresholds of the rule. Fractions are of L or T, as in the docstring of the module."""

    saturated: float = 0.97
    saturated_hold_ms: int = 5_000
    fits: float = 1.02
    hysteresis: float = 0.05
    confirm_ms: int = 2_000
    urgent: float = 1.2
    alter_interval_ms: int = 10_000
    quiet: float = 0.5
    quiet_ms: int = 60_000
    quiet_offender: float = 0.8
    remember_ms: int = 600_000


RULES: Final = LevelRules()


@dataclass(frozen=True, slots=True)
class Proposals:
    """What to write: one row per entity; those with `Cause.KEPT` need nothing.

    Attributes:
        level: the level it should have; the old one if it is kept.
        passing: what the brokers would let through of the recent rates, per second.
        demand: d_b as it was counted, per second, float64[m, n]; infinity where it counted as unbounded.
    """

    level: Floats
    cause: Ints
    passing: Floats
    demand: Floats


def propose(
    view: BrokerView,
    bound: Floats,
    state: LevelState,
    now_ms: int,
    at_once: Flags,
    moved_at_ms: Ints,
) -> tuple[Proposals, LevelState]:
    """One period: who needs another level, and what to remember until the next period.

    Args:
        view: the brokers, at least one, at an instant not before that of the last period.
        bound: T of each entity, above 0.
        state: what was remembered, and the levels in force.
        now_ms: when the alters would be written, on the clock of `moved_at_ms`. All else is in event time.
        at_once: entities whose level may be written at once, whatever was seen or written before: those whose T was
            edited.
        moved_at_ms: when each level was last written for any reason but an edit: the 10 s begin there.
    """
    level, even = state.level, bound / view.recent.shape[1]
    seen = _look(view, bound, state)
    used_at_ms = np.where(seen.in_use, view.at_ms, state.used_at_ms)
    over_at_ms = np.where(seen.fits, state.over_at_ms, view.at_ms)
    quiet = view.at_ms - used_at_ms >= RULES.quiet_ms
    offender = quiet & (view.at_ms - over_at_ms < RULES.remember_ms)
    rests = view.recent.max(axis=1) <= RULES.quiet_offender * even
    at_rest = np.where(offender, np.where(rests, even, level), bound)
    target = np.where(quiet, at_rest, np.where(seen.is_left_alone, level, seen.filled))

    up, down = target >= level * (1 + RULES.hysteresis), target <= level * (1 - RULES.hysteresis)
    side = np.where(target == level, 0, up.astype(np.int64) - down)
    side_since_ms = np.where(side != state.side, view.at_ms, state.side_since_ms)
    urgent = (side < 0) & (seen.passing > RULES.urgent * bound)
    confirmed = urgent | (view.at_ms - side_since_ms >= RULES.confirm_ms)
    in_time = confirmed & (now_ms - moved_at_ms >= RULES.alter_interval_ms)
    due = (side != 0) & (in_time | at_once)
    outside = (level > bound * (1 + _ROUNDING)) | (level < even * (1 - _ROUNDING))

    quiet_cause = np.where(offender, Cause.QUIET_OFFENDER, Cause.QUIET)
    moved_cause = np.where(side > 0, Cause.ROOM_LEFT, Cause.TOGETHER_ABOVE)
    cause = np.where(outside, Cause.OUT_OF_RANGE, np.where(due, np.where(quiet, quiet_cause, moved_cause), Cause.KEPT))
    new = np.where(due, target, np.where(outside, np.clip(level, even, bound), level))
    remembered = LevelState(
        level, state.altered_at_ms, over_at_ms, seen.saturated_until_ms, side, side_since_ms, used_at_ms
    )
    return Proposals(new, cause, seen.passing, seen.demand), remembered


@dataclass(frozen=True, slots=True)
class _Look:
    """What the brokers show in a period."""

    saturated_until_ms: Ints
    demand: Floats
    filled: Floats  # the level of these demands
    passing: Floats  # what the brokers would let through of the recent rates, per second
    fits: Flags  # no broker throttles, and all that is wanted is at most T
    is_left_alone: Flags  # all fits, and no broker is asked for as much as L
    in_use: Flags


def _look(view: BrokerView, bound: Floats, state: LevelState) -> _Look:
    level = state.level[:, None]
    saturated_until_ms = _saturated_until(view, state)
    saturated = view.at_ms < saturated_until_ms
    throttles = saturated.any(axis=1)
    wanted = view.recent.sum(axis=1)
    fits = ~throttles & (np.minimum(wanted, view.observed.sum(axis=1)) <= RULES.fits * bound)
    pressing = (fits & (state.level < bound))[:, None] & (view.recent >= RULES.saturated * level)
    presses = pressing.any(axis=1)
    unbounded = saturated | pressing
    return _Look(
        saturated_until_ms,
        demand=np.where(unbounded, np.inf, view.recent),
        filled=broker_levels(view.recent, unbounded, bound),
        passing=np.minimum(view.recent, level).sum(axis=1),
        fits=fits,
        is_left_alone=fits & ~presses,
        in_use=throttles | presses | (wanted >= RULES.quiet * bound),
    )


def _saturated_until(view: BrokerView, state: LevelState) -> Ints:
    level = np.maximum(state.level, np.finfo(np.float64).tiny)[:, None]
    new_event = (view.last_ms > view.at_ms - 1_000) & (view.last_ms >= state.altered_at_ms[:, None])
    throttles = new_event & (view.observed >= RULES.saturated * level)
    mute_ms = np.minimum(throttle_time_ms(view.observed, level, view.window_ms), _LONGEST_MUTE_MS)
    until_ms = view.last_ms + mute_ms + RULES.saturated_hold_ms
    return np.where(throttles, np.maximum(until_ms, state.saturated_until_ms), state.saturated_until_ms)
