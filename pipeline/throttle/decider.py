"""The engine behind one lock, with the event clock that looks are evaluated on.

Batches and looks come from different threads; the engine itself has no lock. A batch's time is made of stored data
only (`evaluated_at_ms`, never this clock), so a replay decides the same. A look's time is the last batch's
`evaluated_at_ms` plus the steady time that has passed since; it never flows into a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import Moment
from pipeline.throttle.held import HeldThrottle, Publication, Reason
from pipeline.throttle.reasons import entities_of, largest_claims, reason_of, sensor_of
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.evaluation import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.client_key import ClientKey
from schemas.decision_id import decision_ids


@dataclass(frozen=True, slots=True)
class Decided:
    """A batch's outcome.

    Attributes:
        decisions: Columns of `QuotaEngine.record` plus `decision_id`, one row per violated sensor and client.
        violations: The throttles it asks for, one per client.
    """

    decisions: pa.Table
    violations: list[Publication]


@dataclass(frozen=True, slots=True)
class Standing:
    """The enforced bound of one client and quota type, None for none, and the level it comes from."""

    bound: float | None
    level: int | None


class Decider:
    """Records batches, evaluates looks, adopts quota versions.

    Args:
        engine: The engine; nobody else may touch it.
        cluster: Part of every decision id.

    Attributes:
        scope: Of the engine.
        cluster: As given.
    """

    def __init__(self, engine: QuotaEngine, cluster: str) -> None:
        self._engine = engine
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

    def decide(self, snapshot: QuotaSnapshot, usage: pa.Table, evaluation: Evaluation, now: Moment) -> Decided:
        """Record a batch's usage and decide it under the quota version it has pinned.

        Args:
            snapshot: The pinned quotas; their version is `evaluation.quota_version`.
            usage: Measure columns of `usage`; may have no rows.
            evaluation: Facts of the batch; its time must not be below the previous batch's.
            now: The moment that stands for its time, for the event clock of later looks only.
        """
        with self._lock:
            self._engine.load_quotas(snapshot)
            rows = self._engine.record(usage, evaluated_at_ms=evaluation.evaluated_at_ms)
            decisions = self._with_ids(rows, evaluation)
            violations = self._violations(decisions, evaluation.evaluated_at_ms)
            if self._in_force is None or snapshot.version >= self._in_force.version:
                self._in_force = snapshot
            else:
                # An edit was adopted since the batch pinned its quotas: looks go on under the edit.
                self._engine.load_quotas(self._in_force)
            self._last = replace(evaluation, quota_version=self._in_force.version)
            self._steady_at_last_ms = now.steady_ms
        return Decided(decisions, violations)

    def resume(self, evaluation: Evaluation, now: Moment) -> None:
        """Go on after a batch of an earlier driver that had no usage, or none that is needed: time does not go back.

        Args:
            evaluation: Facts of that batch. Its quotas are not put in force: `adopt` does that.
            now: The moment that stands for its time.
        """
        with self._lock:
            self._last = replace(evaluation, quota_version=self._last.quota_version)
            self._steady_at_last_ms = now.steady_ms

    def look(self, throttles: Sequence[HeldThrottle], now: Moment) -> tuple[Evaluation, dict[ClientKey, Reason]]:
        """What each of these clients owes now, with the facts to recompute it from. Changes nothing."""
        entities = entities_of([throttle.key for throttle in throttles])
        preferred = {throttle.key: throttle.reason.quota_type for throttle in throttles}
        with self._lock:
            passed_ms = max(now.steady_ms - self._steady_at_last_ms, 0)
            seen = replace(self._last, evaluated_at_ms=self._last.evaluated_at_ms + passed_ms)
            owed = self._engine.evaluate(entities, evaluated_at_ms=seen.evaluated_at_ms)
            claims = largest_claims(owed, preferred)
            sensors = self._sensors(throttles, claims)
        return seen, {key: reason_of(claim, sensors[key]) for key, claim in claims.items()}

    def standing(self, throttles: Sequence[HeldThrottle | Publication]) -> dict[ClientKey, Standing]:
        """Which bound, from which level, holds now for each of these clients' own quota type."""
        entities = entities_of([throttle.key for throttle in throttles])
        own_type = {throttle.key: throttle.reason.quota_type for throttle in throttles}
        with self._lock:
            rows = self._engine.resolve(entities).to_pylist()
        keyed = ((ClientKey(row["broker_id"], row["user"], row["client_id"]), row) for row in rows)
        return {
            key: Standing(row["bound"] if row["mode"] == "enforce" else None, row["level"])
            for key, row in keyed
            if row["quota_type"] == own_type[key]
        }

    def adopt(self, snapshot: QuotaSnapshot) -> bool:
        """Put a newer quota version in force for looks; batches pin their own.

        Returns:
            Whether it was newer than the one in force.
        """
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

    def _violations(self, decisions: pa.Table, evaluated_at_ms: int) -> list[Publication]:
        applied = decisions.filter(decisions["applied"])
        if not applied.num_rows:
            return []
        owed = self._engine.evaluate(applied, evaluated_at_ms=evaluated_at_ms)
        wanted = [name for name in applied["quota_type"].to_pylist() for _ in QUOTA_TYPES]
        own = owed.filter(pc.equal(owed["quota_type"], pa.array(wanted, pa.string())))
        return [_violation(row, debt) for row, debt in zip(applied.to_pylist(), own.to_pylist(), strict=True)]

    def _sensors(
        self, throttles: Sequence[HeldThrottle], claims: Mapping[ClientKey, Mapping[str, Any]]
    ) -> dict[ClientKey, Mapping[str, Any]]:
        """Sensor and level behind each claim: as published, unless another type claims or the bound has changed."""
        known = {throttle.key: throttle.reason for throttle in throttles}
        sensors: dict[ClientKey, Mapping[str, Any]] = {key: sensor_of(reason) for key, reason in known.items()}
        unsure = [
            key
            for key, claim in claims.items()
            if (claim["quota_type"], claim["bound"]) != (known[key].quota_type, known[key].bound)
            or known[key].level is None
        ]
        if unsure:
            for row in self._engine.resolve(entities_of(unsure)).to_pylist():
                key = ClientKey(row["broker_id"], row["user"], row["client_id"])
                if row["quota_type"] == claims[key]["quota_type"]:
                    sensors[key] = row
        return sensors

    def _with_ids(self, rows: pa.Table, evaluation: Evaluation) -> pa.Table:
        ids = decision_ids(
            cluster=self.cluster,
            query_id=evaluation.query_id,
            batch_id=evaluation.batch_id,
            broker_ids=rows["broker_id"].to_pylist(),
            users=rows["user"].to_pylist(),
            client_ids=rows["client_id"].to_pylist(),
            quota_types=rows["quota_type"].to_pylist(),
        )
        return rows.append_column("decision_id", pa.array(ids, pa.string()))


def _violation(row: Mapping[str, Any], debt: Mapping[str, Any]) -> Publication:
    """The publication an applied decision asks for: its own O, T and W; bucket and debt as evaluated."""
    return Publication(
        key=ClientKey(row["broker_id"], row["user"], row["client_id"]),
        action="throttle",
        cause="violation",
        throttle_time_ms=row["throttle_time_ms"],
        reason=reason_of({**row, "tokens": debt["tokens"], "owed_ms": debt["owed_ms"]}, row),
        decision_id=row["decision_id"],
    )
