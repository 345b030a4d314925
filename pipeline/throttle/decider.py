"""The engine behind one lock, with the event clock that checks are evaluated on.

Batches and checks come from different threads; the engine itself has no lock. A batch's time is made of stored data
only (`evaluated_at_ms`, never this clock), so a replay decides the same. A check's time is the last batch's
`evaluated_at_ms` plus the steady time that has passed since; it never flows into a batch.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.clock import Moment
from pipeline.throttle.ledger import Holds, Throttles
from pipeline.throttle.shapes import NO_BOUND, NO_LEVEL, holds_users, levels_of, own_bounds_of, rows_of_types
from quota.arrays import Flags, Floats, Ids, Ints
from quota.current_rates import CurrentRates, RecentUsage, current_rates
from quota.decisions import Asked, Claims, Decisions, Evaluation, decision_ids
from quota.engine import QuotaEngine
from quota.entity import KIND_OF_LEVEL, Level, LevelKind
from quota.resolution import Side
from quota.snapshot import QuotaSnapshot
from quota.usage import Pair, Usage


@dataclass(frozen=True)
class Decided:
    """A batch's outcome.

    Attributes:
        violations: The throttles it asks for.
    """

    violations: Asked
    _decisions: Decisions
    _cluster: str
    _evaluation: Evaluation

    @property
    def held_rows(self) -> Ids:
        """A row of usage of each client that is to be held, alone or with its user; some clients have several."""
        judged = self._decisions.judged
        return np.zeros(0, np.int64) if judged is None else judged.violations.rows[judged.asks_hold]

    @cached_property
    def decisions(self) -> pa.Table:
        """Columns of `quota.decisions.STORED` plus `decision_id`."""
        rows = self._decisions.stored()
        ids = decision_ids(rows, self._cluster, self._evaluation)
        return rows.append_column("decision_id", pa.array(ids, pa.string()))


_KINDS: Final = np.array([0, *(KIND_OF_LEVEL[level] for level in Level), LevelKind.USER])
"""By level; the last one is `MEMBER_LEVEL`."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The quotas in force for n targets, each for one quota type.

    Attributes:
        bound: T, `NO_BOUND` for none that is enforced.
        level: `NO_LEVEL` for none.
        tenant: The `Tenant` of which each is a member; None for none.
        excepted: Where a throttle of the sensor holds the user, the client-ids that it does not hold; else None.
        forgiven_ms: Until when the debts of the sensor are forgiven; 0 for never.
    """

    bound: Floats
    level: Ints
    tenant: NDArray[np.object_]
    excepted: NDArray[np.object_]
    forgiven_ms: Ints

    def differs(self, bound: Floats, level: Ints, tenant: NDArray[np.object_]) -> Flags:
        """Which bounds, levels and tenants are other ones now; `NO_LEVEL` where a level is not known.

        A tenant whose level has moved is the same one.
        """
        is_other: Flags = (self.bound != bound) | ((level != NO_LEVEL) & (self.level != level))
        return is_other | np.not_equal(self.tenant, tenant).astype(np.bool_)

    def forgives(self, forgiven_ms: Ints, kinds: Ints) -> Flags:
        """Which debts are forgiven, and were not by then: of sensors that are still of the same `LevelKind`."""
        is_forgiven: Flags = (_KINDS[self.level] == kinds) & (self.forgiven_ms > forgiven_ms)
        return is_forgiven

    def is_other_target(self, are_users: Flags) -> Flags:
        """Which throttles must hold another target now: the user in place of a client, or clients one by one."""
        is_other: Flags = are_users != holds_users(self.excepted)
        return is_other


class Decider:
    """Records batches, evaluates checks, adopts quota versions. Nothing else may touch the engine."""

    def __init__(self, engine: QuotaEngine, cluster: str) -> None:
        self._engine = engine
        self._recent = RecentUsage(engine.num_samples, engine.sample_window_ms, engine.scope == "broker")
        self.scope = engine.scope
        self.cluster = cluster
        self._lock = Lock()
        self._last = Evaluation("", -1, 0, -1)
        self._in_force: QuotaSnapshot | None = None
        self._decided: QuotaSnapshot | None = None
        self._steady_at_last_ms = 0
        self._failure: BaseException | None = None

    @property
    def last(self) -> Evaluation:
        """Facts of the newest recorded batch, with the quota version in force now."""
        return self._last

    def decide(
        self,
        snapshot: QuotaSnapshot,
        usage: pa.Table | Usage,
        evaluation: Evaluation,
        now: Moment,
        *,
        wait_until_stored: Callable[[], object] = lambda: None,
    ) -> Decided:
        """Record a batch's usage and decide it under the quota version it has pinned.

        * `usage`: Measure columns of `usage`; may have no rows.
        * `evaluation`: Facts of the batch; its time must not be below the previous batch's, unless it begins a time
          epoch: then the rates begin empty, and the debts stay.
        * `now`: The moment that stands for its time, for the event clock of later checks only.
        * `wait_until_stored`: Called once the batch is decided; returns when its usage is stored. No check sees usage
          that may still be lost. After an error, of this or of a step before, the engine may be ahead of the tables:
          checks raise the same from then on.
        """
        with self._usable(is_batch=True):
            self._engine.load_quotas(snapshot)
            begins_epoch = evaluation.time_epoch > self._last.time_epoch
            if begins_epoch:
                self._engine.begin_epoch(self._last.evaluated_at_ms, evaluation.evaluated_at_ms)
                self._recent.clear()
            self._forgive(snapshot)
            decisions = self._engine.decide(usage, evaluation.evaluated_at_ms)
            violations = self._engine.asked(decisions)
            if isinstance(usage, pa.Table):
                self._recent.add(usage, evaluation.evaluated_at_ms)
            if self._in_force is None or snapshot.versions >= self._in_force.versions:
                self._in_force = snapshot
            else:
                # An edit was adopted since the batch pinned its quotas: checks go on under the edit.
                self._engine.load_quotas(self._in_force)
            # A batch without newer usage does not set the clock of checks back: what is owed goes on shrinking.
            if begins_epoch or evaluation.evaluated_at_ms > self._last.least_ms(evaluation.query_id):
                self._steady_at_last_ms = now.steady_ms
            self._last = evaluation.under(*self._in_force.versions)
            wait_until_stored()
        return Decided(violations, decisions, self.cluster, evaluation)

    @contextmanager
    def _usable(self, is_batch: bool = False) -> Iterator[None]:
        """The lock, for what is decided or published; raises if the engine knows usage that was not stored."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                yield
            except BaseException as exc:
                self._failure = exc if is_batch else None
                raise

    def _forgive(self, snapshot: QuotaSnapshot) -> None:
        """Forget the debts that a batch is the first one to forgive: that is a step of the batch, before its usage."""
        if self._decided is not None and (sensors := snapshot.forgiven_since(self._decided)):
            self._engine.forgive(sensors)
        self._decided = snapshot

    def resume(self, evaluation: Evaluation, now: Moment, snapshot: QuotaSnapshot | None = None) -> None:
        """Go on after a batch of an earlier driver that had no usage, or none that is needed: time does not go back.

        * `evaluation`: Facts of that batch.
        * `snapshot`: Its quotas, for what they forgive; None if no usage came since the last batch that was decided:
            then the next batch forgives the same. They are not put in force: `adopt` does that.
        """
        with self._lock:
            if snapshot is not None:
                self._forgive(snapshot)
            self._last = evaluation.under(*self._last.versions)
            self._steady_at_last_ms = now.steady_ms

    def check(
        self, throttles: Throttles, keys: Pair, names: Callable[[Holds], pa.Table], at_ms: Ints
    ) -> tuple[Evaluation, Claims]:
        """What the targets of these throttles owe at instants of steady time, and the facts to recompute it from.

        Where several quota types ask for the same wait (also: for none), it is the type that the throttle is held for.

        * `names`: Who they hold, of `CLIENTS`.
        """
        with self._usable():
            instants_ms = self._evaluated_at_ms(at_ms)
            claims, is_known = self._engine.claims(keys, throttles.quota_type, instants_ms)
            others = np.flatnonzero(~is_known)
            if len(others):
                clients, types = names(throttles.holds[others]), throttles.quota_type[others]
                claims.put(others, self._engine.claims_by_name(clients, types, instants_ms[others]))
            last_ms = int(instants_ms.max(initial=self._last.evaluated_at_ms))
            return replace(self._last, evaluated_at_ms=last_ms), claims

    def claims(
        self, clients: pa.Table, types: Ints, at_ms: int, forgiven: Flags | None = None, least_ms: int = 0
    ) -> tuple[Evaluation, Claims]:
        """The facts and what targets of `CLIENTS` owe at an instant of steady time: `QuotaEngine.claims_by_name`."""
        with self._usable():
            evaluation = replace(self._last, evaluated_at_ms=int(self._evaluated_at_ms(np.array(at_ms))))
            at_ms = evaluation.evaluated_at_ms
            return evaluation, self._engine.claims_by_name(clients, types, at_ms, forgiven, least_ms)

    def unsettled(self, clients: pa.Table) -> Flags:
        """Which debts of targets the quotas in force forgive, and no batch has forgotten yet: bool[n, types]."""
        sensors = self.resolve(clients)
        is_forgiven: Flags = _forgiven_ms(sensors, self._in_force) > _forgiven_ms(sensors, self._decided)
        return is_forgiven.reshape(clients.num_rows, -1)

    def keys_of(self, clients: pa.Table, types: Ints) -> Pair:
        """The keys of targets by their names: see `QuotaEngine.keys_of`."""
        return self._engine.keys_of(clients, types)

    def current_rates(self, held: pa.Table) -> tuple[Evaluation, CurrentRates]:
        """How near every sensor is to its bound at the newest batch; see `quota.current_rates` for `held`.

        A batch waits for one block of clients at most. What it records meanwhile is in the rates of later blocks.
        """
        with self._lock:
            seen, recent = self._last, self._recent.copy()
        now_ms = seen.evaluated_at_ms
        return seen, current_rates(recent.at(now_ms), now_ms, self._rates_of, held)

    def _rates_of(self, clients: pa.Table, always: Flags) -> pa.Table:
        with self._lock:
            at_ms = self._last.evaluated_at_ms
            found = pa.concat_tables([self._engine.rates(clients, at_ms, side, always) for side in Side])
        time.sleep(0)  # a batch that waits for the lock goes first
        return found

    def resolve(self, clients: pa.Table) -> pa.Table:
        """Which quota holds for clients of `CLIENTS`: see `QuotaEngine.resolve`. Reads only."""
        with self._lock:
            return self._engine.resolve(clients)

    def in_force(self, clients: pa.Table, types: Ints) -> InForce:
        """The quotas in force for targets of `CLIENTS`, and whom a throttle of their sensors holds."""
        own = rows_of_types(self.resolve(clients), types)
        is_enforced = pc.fill_null(pc.equal(own["mode"], "enforce"), False).to_numpy()
        users = np.array(own["sensor_user"].to_pylist(), np.object_)
        users[pc.not_equal(own["sensor_client_id"], "").to_numpy()] = ""
        excepted = self.except_client_ids(users, types, own["tenant"].to_pylist())
        forgiven_ms = _forgiven_ms(own, self._in_force)
        bound, tenant = np.where(is_enforced, own_bounds_of(own), NO_BOUND), self.tenants_of(own["tenant"].to_pylist())
        tenant[~is_enforced] = None
        return InForce(bound, levels_of(own), tenant, excepted, forgiven_ms)

    def tenants_of(self, names: Iterable[str | None], of_batch: bool = False) -> NDArray[np.object_]:
        """The tenants with these names that are in force, or those that the newest batch was decided under."""
        quotas = self._decided if of_batch else self._in_force
        of_name = {} if quotas is None else {one.name: one for one in quotas.tenants}
        found = [None if name is None else of_name.get(name) for name in names]
        tenants = np.empty(len(found), np.object_)
        tenants[:] = found
        return tenants

    def forgiven_ms(self, clients: Callable[[], pa.Table], types: Ints) -> Ints:
        """Until when the newest batch's quotas forgive the debts of targets of `CLIENTS`; 0 for never.

        * `clients`: Is only called if they forgive any.
        """
        decided = self._decided
        if decided is None or not decided.forgiven:
            return np.zeros(len(types), np.int64)
        return _forgiven_ms(rows_of_types(self.resolve(clients()), types), decided)

    def except_client_ids(
        self, users: NDArray[np.object_], types: Ints, tenants: Iterable[str | None]
    ) -> NDArray[np.object_]:
        """The client-ids that throttles of users do not hold: see `QuotaEngine.except_client_ids`; None for user ""."""
        found = np.full(len(users), None, np.object_)
        with self._lock:
            for at, (user, quota_type, tenant) in enumerate(zip(users, types.tolist(), tenants, strict=True)):
                found[at] = self._engine.except_client_ids(user, quota_type, tenant) if user else None
        return found

    def adopt(self, snapshot: QuotaSnapshot) -> bool:
        """Put a quota version in force for checks if it is newer; returns whether it is. Batches pin their own."""
        with self._lock:
            if self._in_force is not None and snapshot.versions <= self._in_force.versions:
                return False
            self._in_force = snapshot
            self._engine.load_quotas(snapshot)
            self._last = self._last.under(*snapshot.versions)
            return True

    def buckets(self) -> tuple[pa.Table, QuotaSnapshot | None]:
        """Token buckets that are not full under the bounds in force, for the `sensor_state` table, and these quotas."""
        with self._lock:
            return self._engine.buckets(), self._in_force

    def restore_buckets(self, buckets: pa.Table, under: QuotaSnapshot | None = None) -> None:
        """Set the token buckets as a snapshot has them; all others become full.

        * `under`: The quotas that `buckets` gave them with; None: those in force. An edit may have come into force
          since, and a tenant's level is one under the terms of before.
        """
        with self._lock:
            if under is not None:
                self._engine.load_quotas(under)
            self._engine.restore_buckets(buckets)
            if under is not None and self._in_force is not None:
                self._engine.load_quotas(self._in_force)

    def expire_idle(self) -> int:
        """Drop sensors that have been idle for an hour of event time; returns how many."""
        with self._lock:
            return self._engine.expire_idle(self._last.evaluated_at_ms)

    def _evaluated_at_ms(self, at_ms: Ints) -> Ints:
        """The instants of checks: the newest batch's, and the steady time that has passed since."""
        return self._last.evaluated_at_ms + np.maximum(at_ms - self._steady_at_last_ms, 0)


def _forgiven_ms(resolved: pa.Table, quotas: QuotaSnapshot | None) -> Ints:
    """`QuotaSnapshot.forgiven_until_ms` of the sensors in an answer of `QuotaEngine.resolve`."""
    if quotas is None or not quotas.forgiven:
        return np.zeros(resolved.num_rows, np.int64)
    sensors = (resolved[name].to_pylist() for name in ("sensor_user", "sensor_client_id"))
    return np.array(quotas.forgiven_until_ms(zip(*sensors, strict=True)), np.int64)
