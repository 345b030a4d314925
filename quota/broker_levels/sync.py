"""The brokers' quotas kept as in the quota table: what to write now. Plain values in and out, no clock, no I/O.

Two times come in. `now_ms` is of a clock that never steps: pauses and retries are counted on it.
`known_until_ms` is event time, as the usage has it: what is seen of the brokers is judged by it. Where both meet (was
an event before or after a write?) the write is dated in event time, with `LAG_MS` between the two at most.

How it is used, each period of a second:

1. `load_quotas` if there is another version of the quota table; `record` the usage that is new; `follow_members` with
   what members of tenants may use now.
2. Every 10 s, at the start, and after any failure whose outcome is not known: `set_brokers`, then `observe` with all
   that the brokers hold. Before the first `observe` nothing is written.
3. `period` returns what to write. Store it, write it, store the answers; then `confirm` what the brokers took, and
   `refuse` what they did not. Nothing counts as written until then: what was neither confirmed nor refused is asked for
   again, and `observe` finds out whether it got there.
"""

from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from quota.broker_levels.entries import (
    MOST_OWN_PER_USER,
    BrokerEntry,
    EntryKey,
    EntryKind,
    MemberBounds,
    MemberRate,
    OwnGrants,
    Refusal,
    as_brokers_take,
    broker_entries,
    narrower_bounds,
    needs_entry,
)
from quota.broker_levels.levels import NEVER_MS, EntityLevels, LevelMove
from quota.broker_levels.metering import metering_entries
from quota.broker_levels.usage import NUM_SAMPLES, SAMPLE_WINDOW_MS, BrokerUsage
from quota.broker_levels.writes import EDITED, MEMBER, BrokerHoldings, Cause, Change, Drift, Owned, WriteRetries
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot

EXPIRE_EVERY_MS: Final = 60_000


LAG_MS: Final = 10_000
"""How far event time may be behind `now_ms` without one of the clocks being wrong: as long as a level must stand."""


class BrokerSync:
    """All that is known of the brokers' quotas and of the usage on each broker. One caller at a time.

    Args:
        adopt: write where others wrote, too. What stood there then is what is given back.
        num_samples: N of the brokers, `quota.window.num`.
        sample_window_ms: w of the brokers, `quota.window.size.seconds` · 1000.
        own_entries_per_user: see `OwnGrants`.
    """

    def __init__(
        self,
        adopt: bool = False,
        num_samples: int = NUM_SAMPLES,
        sample_window_ms: int = SAMPLE_WINDOW_MS,
        own_entries_per_user: int = MOST_OWN_PER_USER,
    ) -> None:
        self._usage = BrokerUsage(num_samples, sample_window_ms)
        self._levels = {name: EntityLevels(at, self._usage) for at, name in enumerate(QUOTA_TYPES)}
        self._expired_at_ms = 0
        self._broker_ids: tuple[str, ...] = ()
        self._holdings, self._retries = BrokerHoldings(adopt), WriteRetries()
        self._grants = OwnGrants(own_entries_per_user)
        self._members, self._own_bounds, self._asking = MemberBounds(), dict[EntryKey, float](), list[EntryKey]()
        self._narrower = dict[EntryKey, float]()
        self._snapshot: QuotaSnapshot | None = None
        self._mirror = self._is_observed = self._is_compared = False
        self._at_ms = self._ahead_ms = 0

    def restore_owned(self, owned: Mapping[EntryKey, Owned], undecided: Iterable[Change], now_ms: int) -> None:
        """Take over what an earlier process wrote. Call it once, before all else.

        Args:
            owned: of each key the newest write that the brokers took (`Change.owned`), unless it was given back.
            undecided: the writes after that, of which it was not stored whether they got to the brokers, the oldest
                first. The first `observe` decides: if the brokers hold what was written, it was written.
            now_ms: a write that is dated later, by a clock that was ahead, counts as of now.
        """
        past = {key: replace(one, written_at_ms=min(one.written_at_ms, now_ms)) for key, one in owned.items()}
        self._holdings.restore(past, undecided)

    def load_quotas(self, snapshot: QuotaSnapshot, mirror: bool) -> None:
        """Put other quotas in force. In shadow mode all that is owned is given back; with `mirror` brokers get T."""
        of_brokers = as_brokers_take(snapshot)
        is_same = self._snapshot is not None and of_brokers.quotas == self._snapshot.quotas and mirror == self._mirror
        self._snapshot = of_brokers
        if not is_same:
            self._mirror, self._is_compared = mirror, False
            self._usage.load(of_brokers)
            self._grants.load(of_brokers)
            entries = broker_entries(of_brokers, mirror)
            self._own_bounds = {one.key: one.bound for one in entries if one.kind is EntryKind.LEVEL}
        self._narrower = narrower_bounds(snapshot, self._own_bounds)

    def set_brokers(self, broker_ids: Sequence[str]) -> None:
        """Set which brokers are in the cluster, as `usage` has them, each once, in any order.

        A level below T ÷ brokers is corrected in the next period. So a caller may want to wait for a broker that is
        being restarted.
        """
        if set(broker_ids) != set(self._broker_ids):
            self._broker_ids, self._holdings.brokers = tuple(broker_ids), len(broker_ids)
            columns = self._usage.set_brokers(self._broker_ids)
            for levels in self._levels.values():
                levels.set_brokers(columns)

    def observe(self, held: Mapping[EntryKey, float], now_ms: int) -> None:
        """Compare with every value of kquota's types that the brokers hold, after the answers to all earlier writes."""
        if not self._is_observed or held != self._holdings.held:
            self._holdings.observe(held, now_ms)
            self._is_observed, self._is_compared = True, False

    def record(self, usage: pa.Table) -> None:
        """Record rows of `usage` that were not recorded before, with `quota.usage.COLUMNS`.

        Rows of brokers that are not in the cluster, or without a broker, count nowhere: `unplaced_bytes`.

        Raises:
            InvalidUsage: as for `QuotaEngine.record`.
        """
        self._usage.record(usage)

    def follow_members(self, rates: Mapping[EntryKey, MemberRate], now_ms: int) -> None:
        """Let T of rows be what members of tenants may use now, as `MemberBounds` does it; no rate = min(T, C).

        A member under the row of a default gets an entry of its own, if it may have one (`OwnGrants`), while that is
        not T. In a mirror every row stays at its T.
        """
        own_bounds = self._own_bounds
        of_defaults = [] if self._mirror else [key for key in rates if key not in own_bounds]
        self._asking = [key for key in of_defaults if needs_entry(rates[key])]
        self._grants.ask(self._asking)
        for key in self._asking:
            if key in self._grants.granted:
                self._holdings.wanted.setdefault(key, self._grants.granted[key])
        granted = {key: entry.bound for key, entry in self._grants.granted.items()}
        written_for = {key: self._holdings.owned[key].bound for key in rates if key in self._holdings.owned}
        before = self._members.moved.keys() - own_bounds.keys()
        changed = self._members.follow(rates, ChainMap(own_bounds, granted), written_for, now_ms, self._narrower)
        if self._members.moved.keys() - own_bounds.keys() != before:
            self._is_compared = False
        if not self._is_compared or not changed:
            return  # `_compare` takes them up
        wanted = self._holdings.wanted
        wanted.update({key: replace(wanted[key], bound=bound) for key, bound in changed.items()})
        for name, levels in self._levels.items():
            levels.rebound({key: bound for key, bound in changed.items() if key.quota_type == name})
        self._review(changed)

    def begin_epoch(self, at_ms: int) -> None:
        """Event time begins anew at an instant: forget all usage, and date nothing that is remembered after it."""
        self._at_ms = at_ms
        self._usage.forget()
        for levels in self._levels.values():
            levels.begin_epoch(at_ms)

    def period(self, known_until_ms: int, now_ms: int) -> list[Change]:
        """What to write now, each key at most once: what is due, then the levels that move.

        `known_until_ms` is the instant up to which usage was recorded, in event time. One before that of the last
        period counts as that; see `begin_epoch`.
        """
        if self._snapshot is None or not self._is_observed or not self._broker_ids:
            return []
        if known_until_ms > self._at_ms:
            self._at_ms, self._ahead_ms = known_until_ms, known_until_ms - now_ms
        # 0 if the clocks agree.
        event_ahead_ms = max(min(self._ahead_ms + LAG_MS, 0), self._ahead_ms)
        if not self._is_compared:
            self._compare(self._snapshot, now_ms + event_ahead_ms)
        moves = [] if self._mirror else self._moves(now_ms, event_ahead_ms)
        self._follow_own(moves)
        changes = self._choose(moves, now_ms)
        self._holdings.hand_out(changes)
        return changes

    def _moves(self, now_ms: int, event_ahead_ms: int) -> list[LevelMove]:
        periods = [levels.period(self._at_ms, now_ms, event_ahead_ms) for levels in self._levels.values()]
        if now_ms - self._expired_at_ms >= EXPIRE_EVERY_MS:
            self._expired_at_ms = now_ms
            used = np.concatenate([levels.sensors for levels in self._levels.values()])
            if self._usage.expire(used, self._at_ms):
                for levels in self._levels.values():
                    levels.renumber_sensors()
        return [move for moves in periods for move in moves]

    def confirm(self, changes: Iterable[Change], now_ms: int) -> None:
        """The brokers took these."""
        taken = list(changes)
        for change in taken:
            self._holdings.take(change, now_ms)
            self._retries.forget(change.key)
        self._review([change.key for change in taken])

    def refuse(self, change: Change, reason: str, now_ms: int) -> None:
        """The brokers refused this one, and did not change. It is tried again ten minutes later."""
        self._holdings.refuse(change)
        self._retries.refuse(change.key, change.bound, reason, now_ms)

    @property
    def owned(self) -> Mapping[EntryKey, Owned]:
        """What kquota owns on the brokers."""
        return self._holdings.owned

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """What is left alone because others wrote it, in the order of the keys."""
        return tuple(drift for _, drift in sorted(self._holdings.drifts.items()))

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """What cannot be written, in the order of the keys."""
        every = (*self._retries.refusals, *self._grants.refused.values())
        return tuple(sorted(every, key=lambda refusal: refusal.key))

    @property
    def left_out(self) -> Counter[str]:
        """By user, how many sensors of defaults need an entry of their own and get none: there is no room for more."""
        return self._grants.left_out

    @property
    def unplaced_bytes(self) -> int:
        """Bytes, produced and fetched, of usage that counted on no broker, since the start."""
        return self._usage.unplaced_bytes

    def _compare(self, snapshot: QuotaSnapshot, at_ms: int) -> None:
        holdings = self._holdings
        entries = {entry.key: self._members.applied(entry) for entry in broker_entries(snapshot, self._mirror)}
        if not self._mirror:
            had = {key: one for key, one in holdings.owned.items() if one.kind is EntryKind.OWN and key not in entries}
            self._grants.ask(sorted(had, key=lambda key: -(had[key].over_at_ms or 0)))
        granted = self._grants.granted
        of_members = {
            key: BrokerEntry(key, bound, EntryKind.LEVEL)
            for key, bound in self._members.moved.items()
            if key in granted
        }
        wanted = {**self._metering(entries), **granted, **of_members, **entries}
        keys = dict.fromkeys(chain(entries, wanted, holdings.wanted, holdings.owned, holdings.due, holdings.drifts))
        holdings.wanted = wanted
        for name, levels in self._levels.items():
            of_type = [entry for entry in wanted.values() if entry.key.quota_type == name]
            own = {one.key: one.bound for one in of_type if one.kind is EntryKind.OWN and one.key in holdings.owned}
            levels.list_entries({one.key: one.bound for one in of_type if one.kind is EntryKind.LEVEL}, own, at_ms)
        self._review(keys)
        self._is_compared = True

    def _metering(self, entries: Mapping[EntryKey, BrokerEntry]) -> dict[EntryKey, BrokerEntry]:
        """The entries that meter what is metered now. They go to another level rather than hide an entry."""
        owned, held = self._holdings.owned, self._holdings.held
        metered = {key.quota_type: one.value for key, one in owned.items() if one.kind is EntryKind.METERING}
        of_others = held.keys() - owned.keys()
        found = metering_entries((*entries, *of_others), metered)
        return {entry.key: entry for entry in found}

    def _review(self, keys: Collection[EntryKey]) -> None:
        """Find what is due at these keys, and let the levels know what is in force."""
        holdings = self._holdings
        holdings.review(keys)
        ruled = {key: holdings.ruled(key) for key in keys}
        for name, levels in self._levels.items():
            of_type = {key: owned for key, owned in ruled.items() if key.quota_type == name}
            moved_at_ms = holdings.moved_at_ms
            levels.hold([(key, one, moved_at_ms.get(key, NEVER_MS)) for key, one in of_type.items() if one is not None])
            levels.leave(key for key, one in of_type.items() if one is None)

    def _follow_own(self, moves: Sequence[LevelMove]) -> None:
        """Answer the sensors of defaults that ask for an entry, and give up those that need theirs no longer."""
        asking = sorted((-move.passing / move.bound, move.key) for move in moves if _asks_for_entry(move))
        grants, before = self._grants, set(self._grants.granted)
        grants.ask([*(key for _, key in asking), *self._asking])
        for levels in self._levels.values():
            grants.forget(levels.no_longer_needed(self._at_ms))
        asked = (*grants.granted, *grants.refused)
        members = set(self._asking)
        grants.forget([key for key in asked if key not in self._levels[key.quota_type] and key not in members])
        changed = sorted(before ^ set(grants.granted))
        for key in changed:
            if key in grants.granted:
                self._holdings.wanted[key] = grants.granted[key]
            else:
                self._holdings.wanted.pop(key, None)
        gone = [key for key in changed if key not in grants.granted]
        for key in gone:
            self._retries.forget(key)
        for name, levels in self._levels.items():
            levels.drop(key for key in gone if key.quota_type == name)
        self._review(changed)

    def _choose(self, moves: Sequence[LevelMove], now_ms: int) -> list[Change]:
        changes = [self._holdings.change(key) for key in self._holdings.due]
        changes += [self._moved(move) for move in moves if self._may_move(move)]
        return [change for change in changes if self._retries.is_due(change.key, change.bound, now_ms)]

    def _may_move(self, move: LevelMove) -> bool:
        if not move.is_candidate:
            return move.key in self._holdings.wanted
        return _asks_for_entry(move) and move.key in self._grants.granted and move.key not in self._holdings.drifts

    def _moved(self, move: LevelMove) -> Change:
        owned, held = self._holdings.owned.get(move.key), self._holdings.held.get(move.key)
        rates = zip(self._broker_ids, move.demand.tolist(), strict=True)
        return Change(
            move.key,
            held,
            move.level,
            move.bound,
            self._holdings.wanted[move.key].kind,
            {broker_id: None if np.isinf(rate) else rate for broker_id, rate in rates},
            self._cause(move),
            held if owned is None else owned.before,
            None if move.over_at_ms == NEVER_MS else move.over_at_ms,
        )

    def _cause(self, move: LevelMove) -> str:
        if not move.is_edited:
            return move.cause.name.lower()
        granted = self._grants.granted.get(move.key)
        own = self._own_bounds.get(move.key, 0.0 if granted is None else granted.bound)
        return MEMBER if self._members.moves(move.key, own) else EDITED


def _asks_for_entry(move: LevelMove) -> bool:
    """Whether it is a sensor of a default that needs an entry of its own."""
    return move.is_candidate and move.cause is Cause.TOGETHER_ABOVE
