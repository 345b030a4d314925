"""The levels of all quota types on one cluster: which entities are looked at in a period, and what is proposed.

A *row* is an entity that has a level, or may need one:

* an entity of the quota table;
* a sensor of a default that has an entry of its own on the brokers;
* a *candidate*: a sensor of a default that is busy. It stands under T on every broker. If a lower level is proposed for
  it, it asks for an entry of its own.

Most entities are far below their bound, and a period costs nothing for them. A row is looked at if its level is not T,
if it used T / 2 or more on all brokers together in the last 15 s, if a broker that throttled it may still hide what it
wants, or if its bound was edited. For all others `propose` would change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from quota.arrays import Flags, Floats, Ids, Ints
from quota.broker_levels.entries import EntryKey, EntryKind, writable_levels
from quota.broker_levels.level_control import NEVER_MS, RULES, Cause, LevelState, propose
from quota.broker_levels.usage import BrokerUsage
from quota.broker_levels.writes import Owned
from quota.entity import QUOTA_TYPES

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
