"""The engine behind one lock, with the event clock that checks are evaluated on.

Batches and checks come from different threads; the engine itself has no lock. A batch's time is made of stored data
only (`evaluated_at_ms`, never this clock), so a replay decides the same. A check's time is the last batch's
`evaluated_at_ms` plus the steady time that has passed since; it never flows into a batch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import Moment
from pipeline.throttle.shapes import (
    CLIENTS,
    NO_BOUND,
    NO_LEVEL,
    NO_PUBLICATIONS,
    PUBLICATIONS,
    Flags,
    Floats,
    Ints,
    bounds_of,
    columns_of,
    levels_of,
    reasons_of,
    rows_of_types,
    table_of,
    types_of,
)
from quota.current_rates import CurrentRates, RecentUsage, current_rates
from quota.engine import QuotaEngine
from quota.replay import Evaluation
from quota.resolution import Side
from quota.snapshot import QuotaSnapshot
from schemas.arrow import decision_id_column


@dataclass(frozen=True, slots=True)
class Decided:
    """A batch's outcome.

    Attributes:
        decisions: Columns of `QuotaEngine.record` plus `decision_id`, one row per violated sensor and client.
        violations: The throttles it asks for, one per client; of `PUBLICATIONS`.
    """

    decisions: pa.Table
    violations: pa.Table


@dataclass(frozen=True, slots=True)
class Standing:
    """What is in force now for each of n throttles: by its client and the quota type it is held for.

    Attributes:
        bound: The enforced bound, float64[n]; `NO_BOUND` for none.
        level: The level it comes from, int64[n]; `NO_LEVEL` for none.
    """

    bound: Floats
    level: Ints

    def is_changed(self, throttles: pa.Table) -> Flags:
        """Which of the throttles were published with another bound, or come from another level."""
        levels = levels_of(throttles)
        is_other_level: Flags = (levels != NO_LEVEL) & (levels != self.level)
        is_other_bound: Flags = bounds_of(throttles) != self.bound
        return is_other_level | is_other_bound


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
        self._steady_at_last_ms = 0

    @property
    def last(self) -> Evaluation:
        """Facts of the newest recorded batch, with the quota version in force now."""
        return self._last

    def decide(
        self,
        snapshot: QuotaSnapshot,
        usage: pa.Table,
        evaluation: Evaluation,
        now: Moment,
        *,
        is_old: bool = False,
        wait_until_stored: Callable[[], object] = lambda: None,
    ) -> Decided:
        """Record a batch's usage and decide it under the quota version it has pinned.

        * `usage`: Measure columns of `usage`; may have no rows.
        * `evaluation`: Facts of the batch; its time must not be below the previous batch's, unless it begins a time
          epoch: then the rates begin empty, and the debts stay.
        * `now`: The moment that stands for its time, for the event clock of later checks only.
        * `is_old`: No throttle is published for it: see `QuotaEngine.record`.
        * `wait_until_stored`: Called once the batch is decided; returns when its usage is stored. No check sees usage
          that may still be lost. If it raises, the engine is ahead of the tables and must not be used again.
        """
        with self._lock:
            self._engine.load_quotas(snapshot)
            begins_epoch = evaluation.time_epoch > self._last.time_epoch
            if begins_epoch:
                self._engine.begin_epoch(self._last.evaluated_at_ms, evaluation.evaluated_at_ms)
                self._recent.clear()
            rows = self._engine.record(usage, evaluated_at_ms=evaluation.evaluated_at_ms, is_old=is_old)
            self._recent.add(usage, evaluation.evaluated_at_ms)
            query_id, batch_id = evaluation.query_id, evaluation.batch_id
            ids = decision_id_column(rows, cluster=self.cluster, query_id=query_id, batch_id=batch_id)
            decisions = rows.append_column("decision_id", ids)
            violations = self._violations(decisions, evaluation.evaluated_at_ms)
            if self._in_force is None or snapshot.version >= self._in_force.version:
                self._in_force = snapshot
            else:
                # An edit was adopted since the batch pinned its quotas: checks go on under the edit.
                self._engine.load_quotas(self._in_force)
            # A batch without newer usage does not set the clock of checks back: what is owed goes on shrinking.
            if begins_epoch or evaluation.evaluated_at_ms > self._last.evaluated_at_ms:
                self._steady_at_last_ms = now.steady_ms
            self._last = replace(evaluation, quota_version=self._in_force.version)
            wait_until_stored()
        return Decided(decisions, violations)

    def resume(self, evaluation: Evaluation, now: Moment) -> None:
        """Go on after a batch of an earlier driver that had no usage, or none that is needed: time does not go back.

        * `evaluation`: Facts of that batch. Its quotas are not put in force: `adopt` does that.
        """
        with self._lock:
            self._last = replace(evaluation, quota_version=self._last.quota_version)
            self._steady_at_last_ms = now.steady_ms

    def check(self, throttles: pa.Table, now: Moment) -> tuple[Evaluation, pa.Table]:
        """What each of these clients of `HELD` owes now, of `REASONS`, and the facts to recompute it from."""
        with self._lock:
            seen = replace(self._last, evaluated_at_ms=self._evaluated_at_ms(now))
            return seen, reasons_of(self._engine, throttles, seen.evaluated_at_ms)

    def current_rates(self, held: pa.Table) -> tuple[Evaluation, CurrentRates]:
        """How near every sensor is to its bound at the newest batch; see `quota.current_rates` for `held`.

        A batch waits for one block of clients at most. What it records meanwhile is in the rates of later blocks.
        """
        with self._lock:
            seen, recent = self._last, self._recent.copy()
        now_ms = seen.evaluated_at_ms
        return seen, current_rates(recent.at(now_ms), now_ms, self._rates_of, held)

    def _rates_of(self, clients: pa.Table) -> pa.Table:
        with self._lock:
            at_ms = self._last.evaluated_at_ms
            found = pa.concat_tables([self._engine.rates(clients, at_ms, side) for side in Side])
        time.sleep(0)  # a batch that waits for the lock goes first
        return found

    def resolve(self, clients: pa.Table) -> pa.Table:
        """Which quota holds for clients of `CLIENTS`: see `QuotaEngine.resolve`. Reads only."""
        with self._lock:
            return self._engine.resolve(clients)

    def standing(self, throttles: pa.Table) -> Standing:
        """What is in force now for each of these rows of `HELD` or `PUBLICATIONS`."""
        levels = self.resolve(throttles.select(CLIENTS.names))
        own = rows_of_types(levels, types_of(throttles))
        is_enforced = pc.fill_null(pc.equal(own["mode"], "enforce"), False).to_numpy()
        return Standing(np.where(is_enforced, bounds_of(own), NO_BOUND), levels_of(own))

    def adopt(self, snapshot: QuotaSnapshot) -> bool:
        """Put a quota version in force for checks if it is newer; returns whether it is. Batches pin their own."""
        with self._lock:
            if self._in_force is not None and snapshot.version <= self._in_force.version:
                return False
            self._in_force = snapshot
            self._engine.load_quotas(snapshot)
            self._last = replace(self._last, quota_version=snapshot.version)
            return True

    def buckets(self) -> pa.Table:
        """Token buckets that are not full under the bounds in force, for the `sensor_state` table."""
        with self._lock:
            return self._engine.buckets()

    def restore_buckets(self, buckets: pa.Table) -> None:
        """Set the token buckets as a snapshot has them; all others become full."""
        with self._lock:
            self._engine.restore_buckets(buckets)

    def expire_idle(self) -> int:
        """Drop sensors that have been idle for an hour of event time; returns how many."""
        with self._lock:
            return self._engine.expire_idle(self._last.evaluated_at_ms)

    def _evaluated_at_ms(self, now: Moment) -> int:
        """The instant of checks: the newest batch's, and the steady time that has passed since."""
        return self._last.evaluated_at_ms + max(now.steady_ms - self._steady_at_last_ms, 0)

    def _violations(self, decisions: pa.Table, evaluated_at_ms: int) -> pa.Table:
        """The throttles that applied decisions ask for: their own O, T and W; bucket and debt as evaluated."""
        applied = decisions.filter(decisions["applied"])
        if not applied.num_rows:
            return NO_PUBLICATIONS
        owed = self._engine.evaluate(applied, evaluated_at_ms=evaluated_at_ms)
        debts = rows_of_types(owed, types_of(applied)).select(["tokens", "owed_ms"])
        asked = columns_of(applied, PUBLICATIONS) | columns_of(debts, PUBLICATIONS)
        fixed = {"action": "throttle", "cause": "violation", "extends": False}
        return table_of(PUBLICATIONS, applied.num_rows, asked | fixed)
