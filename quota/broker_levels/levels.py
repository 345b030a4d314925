"""The levels of all quota types on one cluster: which entities are looked at in a period, and what is proposed.

A *row* is an entity that has a level, or may need one:

* an entity of the quota table;
* a sensor of a default that has an entry of its own on the brokers;
* a *candidate*: a sensor of a default that is busy. It stands under T on every broker. If a lower level is proposed for
  it, it asks for an entry of its own.

Most entities are far below their bound, and a period costs nothing for them. A row is looked at if its level is not T,
if it used T / 2 or more on all brokers together in the last 15 s, if a broker that throttled it may still hide what it
wants, or if its bound was edited. For all others `propose` would change nothing.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Final, NamedTuple, Self

import numpy as np

from quota.arrays import Flags, Floats, Ids, Ints
from quota.broker_level import broker_levels
from quota.broker_levels.entries import EntryKey, EntryKind, writable_levels
from quota.broker_levels.usage import BrokerUsage, BrokerView
from quota.broker_levels.writes import Cause, Owned
from quota.entity import QUOTA_TYPES
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
        at_once: entities with an edited T: their level may be written at once, whatever was seen or written before.
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


BUSY: Final = 0.5  # the part of T from which on an entity is looked at

BUSY_MS: Final = 15_000
"""For how long after: longer than W, so that no broker throttles an entity that is not looked at."""


class Standing(IntEnum):
    """Why a row is there."""

    LISTED = 0
    OWN = 1
    CANDIDATE = 2


class LevelMove(NamedTuple):
    """A row whose level should move, or whose bound was edited.

    Attributes:
        is_candidate: whether it has no entry yet.
        is_edited: whether it has another bound than the one its level was written for.
        level: L as Kafka takes it, per second.
        passing: as in `Proposals`; likewise demand, float64[n].
        over_at_ms: when the brokers were last asked for more than T together.
    """

    key: EntryKey
    is_candidate: bool
    is_edited: bool
    level: float
    bound: float
    cause: Cause
    passing: float
    demand: Floats
    over_at_ms: int


class EntityLevels:
    """The rows of one quota type. A move is proposed only for ruled ones: the brokers have what is known here."""

    def __init__(self, quota_type: int, usage: BrokerUsage) -> None:
        self._type, self._usage = quota_type, usage
        self._brokers = 0
        self._linked = 0
        self._keys: list[EntryKey] = []
        self._rows: dict[EntryKey, int] = {}
        self._standing, self._sensor, self._busy_until_ms, self._moved_at_ms = (np.zeros(0, np.int64) for _ in range(4))
        self._bound, self._written_for = np.zeros(0), np.zeros(0)
        self._is_ruled = np.zeros(0, np.bool_)
        empty = np.zeros(0, np.int64)
        self._state = LevelState.start(np.zeros(0), empty, empty, self._brokers, 0)

    def set_brokers(self, columns: Ints) -> None:
        """Follow the brokers by the columns that `BrokerUsage.set_brokers` returned."""
        self._brokers = len(columns)
        self._state = self._state.on_brokers(columns)

    def list_entries(self, bounds: Mapping[EntryKey, float], own: Mapping[EntryKey, float], at_ms: int) -> None:
        """Set T of the entries of the quota table, and of own ones of sensors of defaults. Other rows are dropped."""
        listed = {**bounds, **own}
        self._keep(np.array([key in listed for key in self._keys], np.bool_))
        self._add([key for key in listed if key not in self._rows], listed, at_ms)
        self._bound = np.array([listed[key] for key in self._keys], np.float64)
        standing = (Standing.OWN if key in own else Standing.LISTED for key in self._keys)
        self._standing = np.array(list(standing), np.int64)

    def rebound(self, bounds: Mapping[EntryKey, float]) -> None:
        """Set T of rows that are there."""
        for key, bound in bounds.items():
            self._bound[self._rows[key]] = bound

    def begin_epoch(self, at_ms: int) -> None:
        """See `BrokerSync.begin_epoch`. `BrokerUsage.forget` comes before."""
        never, now = np.full(len(self._keys), NEVER_MS), np.full(len(self._keys), at_ms)
        self._state = replace(
            LevelState.start(self._state.level, self._state.altered_at_ms, never, self._brokers, at_ms),
            over_at_ms=np.minimum(self._state.over_at_ms, now),
        )
        self._busy_until_ms = never
        self.renumber_sensors()

    def hold(self, held: Sequence[tuple[EntryKey, Owned, int]]) -> None:
        """What was written at keys that have a row, and when that was for any reason but an edit."""
        found = [(self._rows[key], owned, moved_at_ms) for key, owned, moved_at_ms in held if key in self._rows]
        if not found:
            return
        rows = np.array([row for row, *_ in found], np.int64)
        part = self._state.take(rows)
        level = np.array([owned.value for _, owned, _ in found], np.float64)
        over_at_ms = np.array([NEVER_MS if owned.over_at_ms is None else owned.over_at_ms for _, owned, _ in found])
        moved = level != part.level
        part = replace(
            part,
            level=level,
            altered_at_ms=np.array([owned.written_at_ms for _, owned, _ in found], np.int64),
            over_at_ms=np.maximum(part.over_at_ms, over_at_ms),
            side=np.where(moved, 0, part.side),
        )
        self._state = self._state.put(rows, part)
        self._written_for[rows] = [owned.bound for _, owned, _ in found]
        self._moved_at_ms[rows] = [moved_at_ms for *_, moved_at_ms in found]
        self._is_ruled[rows] = True
        of_defaults = [row for row, owned in zip(rows.tolist(), found, strict=True) if owned[1].kind is EntryKind.OWN]
        self._standing[of_defaults] = Standing.OWN

    def leave(self, keys: Iterable[EntryKey]) -> None:
        """Propose nothing for these, until they are held again. Candidates have nothing to hold, and go on."""
        rows = np.array([self._rows[key] for key in keys if key in self._rows], np.int64)
        self._is_ruled[rows[self._standing[rows] != Standing.CANDIDATE]] = False

    def period(self, at_ms: int, now_ms: int, event_ahead_ms: int) -> list[LevelMove]:
        """One period, with usage known up to `at_ms`, and event time ahead of `now_ms` by `event_ahead_ms`."""
        self._link()
        together = np.append(self._usage.together(self._type, at_ms), 0.0)
        if self._brokers > 1:
            self._follow_candidates(together[:-1], at_ms, now_ms + event_ahead_ms)
        busy = together[self._sensor] >= BUSY * self._bound
        self._busy_until_ms[busy] = at_ms + BUSY_MS
        rows = np.flatnonzero(self._is_ruled & (~self._is_idle(at_ms) | (self._bound != self._written_for)))
        view = self._usage.view(self._type, self._sensor[rows], at_ms)
        part, bound, written_for = self._state.take(rows), self._bound[rows], self._written_for[rows]
        is_edited = bound != written_for
        # The new bound at once, with the level in proportion, and judged by nothing that was seen under the old one.
        level = np.where(is_edited, part.level * (bound / written_for), part.level)
        altered_at_ms = np.where(is_edited, now_ms, part.altered_at_ms) + event_ahead_ms
        tried = replace(part, level=level, altered_at_ms=altered_at_ms, over_at_ms=np.minimum(part.over_at_ms, at_ms))
        found, seen = propose(view, bound, tried, now_ms, is_edited, self._moved_at_ms[rows])
        # Only what is remembered. `hold` sets what is in force.
        memory = replace(seen, level=part.level, altered_at_ms=part.altered_at_ms)
        if len(rows):
            self._state = self._state.put(rows, memory)
        new = writable_levels(found.level, bound, QUOTA_TYPES[self._type])
        at = np.flatnonzero(((found.cause != Cause.KEPT) & (new != part.level)) | is_edited)
        return [
            LevelMove(
                self._keys[rows[one]],
                bool(self._standing[rows[one]] == Standing.CANDIDATE),
                bool(is_edited[one]),
                float(new[one]),
                float(bound[one]),
                Cause(int(found.cause[one])),
                float(found.passing[one]),
                found.demand[one],
                int(memory.over_at_ms[one]),
            )
            for one in at.tolist()
        ]

    def no_longer_needed(self, at_ms: int) -> list[EntryKey]:
        """The own entries of sensors that are quiet and were not over T lately."""
        is_quiet = at_ms - self._state.used_at_ms >= RULES.quiet_ms
        not_over = at_ms - self._state.over_at_ms >= RULES.remember_ms
        return self._keys_of((self._standing == Standing.OWN) & is_quiet & not_over)

    def drop(self, keys: Iterable[EntryKey]) -> None:
        """Forget these rows."""
        gone = set(keys)
        if gone:
            self._keep(np.array([key not in gone for key in self._keys], np.bool_))

    @property
    def sensors(self) -> Ids:
        """The sensors that have a row."""
        return self._sensor[self._sensor >= 0]

    def __contains__(self, key: EntryKey) -> bool:
        return key in self._rows

    def renumber_sensors(self) -> None:
        """Look up all sensors again, after `BrokerUsage.expire`."""
        self._sensor = np.array([self._usage.sensor((key.user, key.client_id)) for key in self._keys], np.int64)
        self._linked = len(self._usage.tags)

    def _is_idle(self, at_ms: int) -> Flags:
        """Which rows stand at T, and have not been near it lately."""
        state = self._state
        is_hidden = (state.saturated_until_ms > at_ms).any(axis=1)
        is_at_rest = (state.level == self._written_for) & (state.side == 0) & (at_ms >= self._busy_until_ms)
        is_idle: Flags = is_at_rest & ~is_hidden
        return is_idle

    def _follow_candidates(self, together: Floats, at_ms: int, since_ms: int) -> None:
        """Add busy sensors of defaults, and drop those that are no longer."""
        bound = self._usage.default_bounds(self._type)
        name = QUOTA_TYPES[self._type]
        busy = np.flatnonzero(together >= BUSY * bound).tolist()
        bounds = {EntryKey(*self._usage.tags[sensor], name): float(bound[sensor]) for sensor in busy}
        # Sorted, since the numbers of sensors differ from process to process.
        self._add(sorted(key for key in bounds if key not in self._rows), bounds, since_ms, Standing.CANDIDATE)
        gone = (self._standing == Standing.CANDIDATE) & self._is_idle(at_ms)
        gone &= ~np.isin(self._sensor, busy)
        if gone.any():
            self._keep(~gone)

    def _link(self) -> None:
        name, tags = QUOTA_TYPES[self._type], self._usage.tags
        for sensor in range(self._linked, len(tags)):
            row = self._rows.get(EntryKey(*tags[sensor], name))
            if row is not None:
                self._sensor[row] = sensor
        self._linked = len(tags)

    def _add(
        self,
        keys: Sequence[EntryKey],
        bounds: Mapping[EntryKey, float],
        at_ms: int,
        standing: Standing = Standing.LISTED,
    ) -> None:
        if not keys:
            return
        size = len(keys)
        self._rows.update(zip(keys, range(len(self._keys), len(self._keys) + size), strict=True))
        self._keys.extend(keys)
        bound = np.array([bounds[key] for key in keys], np.float64)
        sensor = np.array([self._usage.sensor((key.user, key.client_id)) for key in keys], np.int64)
        never = np.full(size, NEVER_MS)
        self._state = self._state.joined(LevelState.start(bound, never, never, self._brokers, at_ms))
        self._bound, self._written_for = np.append(self._bound, bound), np.append(self._written_for, bound)
        self._sensor, self._busy_until_ms = np.append(self._sensor, sensor), np.append(self._busy_until_ms, never)
        self._moved_at_ms = np.append(self._moved_at_ms, never)
        self._standing = np.append(self._standing, np.full(size, standing))
        self._is_ruled = np.append(self._is_ruled, np.full(size, standing is Standing.CANDIDATE))

    def _keep(self, kept: Flags) -> None:
        if kept.all():
            return
        self._keys = self._keys_of(kept)
        self._rows = {key: row for row, key in enumerate(self._keys)}
        rows = np.flatnonzero(kept)
        self._state = self._state.take(rows)
        self._bound, self._written_for = self._bound[rows], self._written_for[rows]
        self._sensor, self._busy_until_ms = self._sensor[rows], self._busy_until_ms[rows]
        self._moved_at_ms = self._moved_at_ms[rows]
        self._standing, self._is_ruled = self._standing[rows], self._is_ruled[rows]

    def _keys_of(self, chosen: Flags) -> list[EntryKey]:
        return [self._keys[row] for row in np.flatnonzero(chosen).tolist()]
