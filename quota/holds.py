"""How decisions would affect clients: how long each is held, and how much it used while it was held.

The usage does not react to the decisions: it is what was stored, even where a client would have waited. Apart from that
a throttle lives as in the job: an applied decision holds a client for its capped X; further decisions extend that;
before and at its end the client is checked, and renewed if it still owes (`quota.throttle_time.Slicing`). Usage at or
after the beginning of a hold and before its end counts as deferred.

Between two batches nothing is recorded, so what a client owes depends on the time alone. Therefore each check can be
taken at its own instant, and many clients can be checked in one step.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from quota.arrays import Floats, Ids, Ints
from quota.decisions import Throttles
from quota.entity import TIE_ORDER
from quota.throttle_time import Slicing, Step


@dataclass(frozen=True, slots=True)
class Claims:
    """Of each of n clients the quota type that asks for the longest wait, and its figures: those of `Owed`."""

    quota_type: Ints
    bound: Floats
    level: Ints
    window_ms: Ints
    owed_ms: Ints

    def take(self, rows: Ints) -> "Claims":
        """The claims of some of the clients."""
        columns = (getattr(self, field.name) for field in fields(self))
        return Claims(*(column[rows] for column in columns))


@dataclass(frozen=True, slots=True)
class Owed:
    """What n clients owe of each quota type. Arrays of shape [3, n], one row per type in the order of `QUOTA_TYPES`.

    Attributes:
        bound: T per second; infinity = none.
        level: the level the bound comes from; 0 = no quota.
        window_ms: W.
        owed_ms: the larger of X by the rate and of the time the bucket needs to come back to 0; 0 without a bound.
    """

    bound: Floats
    level: Ints
    window_ms: Ints
    owed_ms: Ints

    def largest(self, preferred: Ints) -> Claims:
        """The type that asks for the longest wait, for each client: see `type_that_owes_most`."""
        return self.of_types(type_that_owes_most(self.owed_ms, preferred))

    def of_types(self, quota_type: Ints) -> Claims:
        """The figures of one type for each client."""
        at = quota_type, np.arange(len(quota_type))
        return Claims(quota_type, self.bound[at], self.level[at], self.window_ms[at], self.owed_ms[at])


def type_that_owes_most(owed_ms: Ints, preferred: Ints) -> Ints:
    """The quota type that asks for the longest wait, of what n clients owe of each, int64[3, n].

    Where several ask for the same wait (also: for none) it is the preferred one. If that is not among them, it is the
    first in `TIE_ORDER`.
    """
    size = len(preferred)
    columns = np.arange(size)
    first = np.array(TIE_ORDER)[owed_ms[list(TIE_ORDER)].argmax(axis=0)] if size else preferred
    return np.where(owed_ms[preferred, columns] == owed_ms[first, columns], preferred, first)


OwedAt = Callable[[Ids, int | Ints, Ints | None], Owed]
"""What clients owe, at an instant or each at its own, of all types or of some: `quota.replay.ReplayEngine.owed_at`."""

_NEVER: Final = np.iinfo(np.int64).max
_NO_WINDOW: Final = -1
_LONGEST_MS: Final = 1 << 52  # a throttle beyond all time is cut to this, so that its end is still a number


@dataclass(frozen=True, slots=True)
class HoldTotals:
    """Sums for each client: sample windows with an applied decision, time held in the range, bytes used while held."""

    windows: Ints
    throttle_ms: Ints
    deferred_bytes: Ints


class Holds:
    """The holds of clients in a range of time. The caller numbers the clients 0, 1, 2 … and goes forward in time.

    Args:
        owed_at: returns what clients owe, as of the batches recorded so far.
        start_ms: begin of the range. Earlier decisions hold clients too, but nothing before it is counted.
        end_ms: end of the range, exclusive.
    """

    def __init__(self, slicing: Slicing, owed_at: OwedAt, start_ms: int, end_ms: int) -> None:
        self._slicing = slicing
        self._owed_at = owed_at
        self._start_ms = start_ms
        self._end_ms = end_ms
        # Of each client: the running throttle, or the last one; `_due_ms` is `_NEVER` while none runs.
        self._from_ms, self._until_ms, self._due_ms = (np.zeros(0, np.int64) for _ in range(3))
        self._quota_type, self._level, self._bound = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        self._counted_until_ms = 0
        self._last_window, self._windows, self._throttle_ms, self._deferred_bytes = (
            np.zeros(0, np.int64) for _ in range(4)
        )

    @property
    def held(self) -> Ids:
        """Numbers of the clients that are held, ascending."""
        return np.flatnonzero(self._due_ms < _NEVER)

    def use(self, clients: Ids, used_at_ms: Ints, used_bytes: Ints) -> None:
        """Take in rows of usage, after `advance` and before the decisions that follow from it."""
        self._grow(clients)
        waits = (used_at_ms < self._until_ms[clients]) & (used_at_ms >= self._from_ms[clients])
        rows = waits.nonzero()[0]
        rows = rows[(used_at_ms[rows] >= self._start_ms) & (used_at_ms[rows] < self._end_ms)]
        if len(rows):
            np.add.at(self._deferred_bytes, clients[rows], used_bytes[rows])

    def decide(self, clients: Ids, throttles: Throttles, at_ms: int, is_old: bool = False) -> None:
        """Take in the applied decisions of a batch, one per client: they begin throttles, or extend those that run.

        Those of a batch that is too old to throttle by (`is_old`) only count.
        """
        self._grow(clients)
        if self._start_ms <= at_ms < self._end_ms:
            window = at_ms // self._slicing.sample_window_ms
            self._windows[clients] += self._last_window[clients] != window
            self._last_window[clients] = window
        if is_old:
            return
        slicing, runs = self._slicing, self._due_ms[clients] < _NEVER
        types = throttles.quota_type
        owed = self._owed_at(clients, at_ms, types).of_types(types)
        owed_ms = np.maximum(owed.owed_ms, throttles.throttle_time_ms)
        slices_ms = np.maximum(throttles.throttle_time_ms, slicing.slices_ms(owed_ms, owed.window_ms, types))
        slices_ms = np.minimum(slices_ms, _LONGEST_MS)
        left_ms = self._until_ms[clients] - at_ms
        is_published = slicing.is_published(owed_ms, slices_ms, left_ms, runs)
        self._from_ms[clients[is_published & ~runs]] = at_ms
        news = is_published.nonzero()[0]
        published = clients[news]
        self._bound[published], self._level[published] = throttles.bound[news], throttles.level[news]
        self._quota_type[published] = types[news]
        self._hold(published, np.full(len(published), at_ms), slices_ms[news])

    def advance(self, to_ms: int) -> None:
        """Take all checks that are due up to an instant, inclusive: before the batch of that instant is recorded."""
        while len(due := (self._due_ms <= to_ms).nonzero()[0]):
            self._check(due, to_ms)

    def begin_epoch(self, last_ms: int, now_ms: int) -> None:
        """Go on at `now_ms` in place of `last_ms`, because clocks were set back: what is left of a throttle stays left.

        What was held until then counts at the times it was held. `advance` has been called for `last_ms`.
        """
        held, moved_ms = self.held, now_ms - last_ms
        self._count(held, np.full(len(held), last_ms))
        self._from_ms += moved_ms
        self._until_ms += moved_ms
        self._due_ms[held] += moved_ms
        self._last_window[:] = _NO_WINDOW
        self._counted_until_ms = now_ms

    def take_up(
        self, clients: Ids, quota_types: Ints, bound: Floats, from_ms: Ints, until_ms: Ints, at_ms: int
    ) -> None:
        """Hold clients whose throttles run at an instant; the quotas are loaded, the clients resolved."""
        self._grow(clients)
        self._quota_type[clients], self._bound[clients] = quota_types, bound
        self._from_ms[clients] = from_ms
        # A check that was due may have been taken; taken again it finds the same.
        self._hold(clients, np.full(len(clients), at_ms), until_ms - at_ms)
        self._level[clients] = self._owed_at(clients, at_ms, None).of_types(quota_types).level
        self.check_after_edit(at_ms)

    def check_after_edit(self, at_ms: int) -> None:
        """Check throttles whose bound or level an edit has changed; the quotas are loaded, the clients resolved."""
        clients = self.held
        if not len(clients):
            return
        owed = self._owed_at(clients, at_ms, None)
        own = self._quota_type[clients], np.arange(len(clients))
        touched = np.flatnonzero((owed.bound[own] != self._bound[clients]) | (owed.level[own] != self._level[clients]))
        clients, claims = clients[touched], owed.largest(self._quota_type[clients]).take(touched)
        left_ms = np.maximum(self._until_ms[clients] - at_ms, 0)
        fell = (claims.quota_type == self._quota_type[clients]) & (claims.bound < self._bound[clients])
        steps = self._slicing.at_edit(claims.owed_ms, left_ms, fell)
        released = clients[steps == Step.RELEASE]
        self._until_ms[released] = at_ms
        self._take(steps, clients, np.full(len(clients), at_ms), claims)

    def finish(self) -> HoldTotals:
        """Take the looks up to the end of the range, end all throttles there, and return the sums."""
        self.advance(self._end_ms - 1)
        self._release(self.held)
        return HoldTotals(self._windows, self._throttle_ms, self._deferred_bytes)

    def _check(self, clients: Ids, to_ms: int) -> None:
        """Check clients, each at its own instant: renewed, released, or left to wait for the end.

        If the end is not after `to_ms`, what is owed then is asked for in the same step. It is used if the check before
        the end does not renew: this saves a second step for most clients.
        """
        at_ms, until_ms = self._due_ms[clients], self._until_ms[clients]
        soon = ((at_ms < until_ms) & (until_ms <= to_ms)).nonzero()[0]
        asked = np.concatenate((clients, clients[soon]))
        owed = self._owed_at(asked, np.concatenate((at_ms, until_ms[soon])), None)
        both = owed.largest(self._quota_type[asked])
        steps = self._slicing.at_check(both.owed_ms[: len(clients)], until_ms - at_ms, at_ms >= until_ms)
        ends = (steps[soon] == Step.WAIT).nonzero()[0]
        at_ms[soon[ends]] = until_ms[soon[ends]]
        used = np.arange(len(clients))
        used[soon[ends]] = len(clients) + ends
        claims = both.take(used)
        self._take(self._slicing.at_check(claims.owed_ms, until_ms - at_ms, at_ms >= until_ms), clients, at_ms, claims)

    def _take(self, steps: Ints, clients: Ids, at_ms: Ints, claims: Claims) -> None:
        renewed = (steps == Step.HOLD).nonzero()[0]
        self._renew(clients[renewed], at_ms[renewed], claims.take(renewed))
        self._release(clients[steps == Step.RELEASE])
        waiting = clients[steps == Step.WAIT]
        self._due_ms[waiting] = self._until_ms[waiting]

    def _renew(self, clients: Ids, at_ms: Ints, claims: Claims) -> None:
        self._bound[clients], self._level[clients] = claims.bound, claims.level
        self._quota_type[clients] = claims.quota_type
        slices_ms = self._slicing.slices_ms(claims.owed_ms, claims.window_ms, claims.quota_type)
        self._hold(clients, at_ms, np.minimum(slices_ms, _LONGEST_MS))
        # A slice shorter than the lead is all that is owed: a check at this same instant would find nothing more.
        checked = clients[self._due_ms[clients] <= at_ms]
        self._due_ms[checked] = self._until_ms[checked]

    def _hold(self, clients: Ids, at_ms: Ints, slices_ms: Ints) -> None:
        until_ms = at_ms + slices_ms
        self._until_ms[clients] = until_ms
        self._due_ms[clients] = np.maximum(until_ms - self._slicing.lead_ms, at_ms)

    def _release(self, clients: Ids) -> None:
        self._due_ms[clients] = _NEVER
        self._count(clients, self._until_ms[clients])

    def _count(self, clients: Ids, to_ms: Ints) -> None:
        from_ms = np.maximum(self._from_ms[clients], self._counted_until_ms)
        to_ms = np.maximum(from_ms, to_ms)
        first_ms, last_ms = (np.clip(ms, self._start_ms, self._end_ms) for ms in (from_ms, to_ms))
        self._throttle_ms[clients] += last_ms - first_ms

    def _grow(self, clients: Ids) -> None:
        size = int(clients.max()) + 1 if len(clients) else 0
        if size <= len(self._windows):
            return
        room = 2 * size - len(self._windows)
        self._due_ms = np.pad(self._due_ms, (0, room), constant_values=_NEVER)
        self._last_window = np.pad(self._last_window, (0, room), constant_values=_NO_WINDOW)
        self._from_ms, self._until_ms = np.pad(self._from_ms, (0, room)), np.pad(self._until_ms, (0, room))
        self._quota_type, self._level = np.pad(self._quota_type, (0, room)), np.pad(self._level, (0, room))
        self._bound, self._windows = np.pad(self._bound, (0, room)), np.pad(self._windows, (0, room))
        self._throttle_ms = np.pad(self._throttle_ms, (0, room))
        self._deferred_bytes = np.pad(self._deferred_bytes, (0, room))
