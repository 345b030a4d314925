"""Throttled clients in purgatory: held, checked ahead of their end, renewed or released; each ends exactly once.

    violated ──▶ publish `throttle` ──▶ check, `lead_ms` before the end ──▶ owes longer? ──▶ publish `renewed` ─┐
                     ▲                                     ▲     │ no                                │
                     └── violated again, ends clearly later ┘    ▼                                       check again
                                                         wait for the end, check again ──▶ owes? ──▶ publish `renewed`
                                                                                       │ no
                                                                                       ▼
                                                                              publish `release`

What "longer" and "clearly later" are, and how long a slice is: `quota.throttle_time`.

A check happens ahead of the end because a record needs time to take effect: a renewal that is published when the
throttle ends lets the client run for one loop delay in each cycle. For an offender at k times its quota that adds up to
a leak. A slice does not forgive the rest of a debt: the next check finds it in `owed_ms`.

The end is checked too. Usage may have arrived since the last check, and after a restart the end may have passed while
the job was down.

The one lock here serialises everything that writes records: batches, checks and quota edits. The wheel inside the
ledger has a lock of its own that is never held over I/O, so what is due is handed out at once (`pop_due`, on a thread
of its own) even while a batch or a check is being published; its record follows within one batch (`tick`).
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.clock import Clock, Moment
from pipeline.failpoints import failpoint
from pipeline.throttle.decider import Decider
from pipeline.throttle.ledger import Holds, Running, ThrottleLedger, Throttles
from pipeline.throttle.publisher import HeardPublisher, Publisher
from pipeline.throttle.shapes import (
    CLIENTS,
    NO_LEVEL,
    Publications,
    holds_users,
    int64s,
    kinds_of,
    own_bounds_of,
    types_of,
)
from quota.arrays import Flags, Ids, Ints
from quota.decisions import Asked, Claims, Evaluation, decision_ids
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot, SnapshotAt
from quota.throttle_time import Slicing, Step
from quota.usage import Pair, names_of, some_of
from schemas.throttle_record import SENSOR, Cause

log = logging.getLogger(__name__)

_MEASURED: Final = 512
_EVERY: Final = 16


class RenewLead:
    """How long before its end a throttle is checked: a renewal must reach the client before it wakes.

    From the instant a debt becomes visible to the instant the client knows, there pass: up to one trigger until usage
    is in the engine, the time to publish, the client's own lag. Hence

        lead = trigger + p99 of the publish lag, as measured + client lag, and never below a floor.
    """

    def __init__(self, trigger_ms: int, client_lag_ms: int, min_lead_ms: int) -> None:
        self._fixed_ms = trigger_ms + client_lag_ms
        self._min_ms = min_lead_ms
        self._lags_ms: deque[int] = deque(maxlen=_MEASURED)
        self._observed = 0
        self._lead_ms = max(self._fixed_ms, min_lead_ms)

    @property
    def lead_ms(self) -> int:
        """The lead now."""
        return self._lead_ms

    def observe(self, publish_lag_ms: int) -> None:
        """Take in how long one publishing took; the p99 is of the last 512 and taken again every 16."""
        self._lags_ms.append(publish_lag_ms)
        self._observed += 1
        if self._observed % _EVERY == 0:
            ordered = sorted(self._lags_ms)
            p99_ms = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
            self._lead_ms = max(self._fixed_ms + p99_ms, self._min_ms)


# What is published of a batch, and what a check decides: functions of values, of whole columns.


def violations_to_publish(asked: Asked, running: Running, now_ms: int, slicing: Slicing) -> tuple[Ids, Ints]:
    """The batch's throttles that a client can obey and that change what it knows: their places, and their slices.

    A violation holds its client for the larger of X and of what its bucket owes, in slices. A client that is held hears
    of it only if its throttle would end clearly later than the end published last. Otherwise a client that ignores its
    throttle would get a record with every batch; the check before the end renews it anyway.
    """
    claims, capped_ms = asked.claims, asked.throttle_time_ms
    owed_ms = np.maximum(claims.owed_ms, capped_ms)
    slices_ms = slicing.first_slices_ms(owed_ms, capped_ms, claims.window_ms, claims.quota_type)
    is_published = slicing.is_published(owed_ms, slices_ms, running.end_ms - now_ms, running.is_held)
    published = is_published.nonzero()[0]
    return published, slices_ms[published]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check decided of each of n throttles: its `Step`, and how long it is held if that is `HOLD`; else 0."""

    steps: Ints
    slices_ms: Ints

    @classmethod
    def of(cls, steps: Ints, claims: Claims, slicing: Slicing) -> "CheckResult":
        """By the steps, and by what is owed."""
        slices_ms = slicing.slices_ms(claims.owed_ms, claims.window_ms, claims.quota_type)
        return cls(steps, np.where(steps == Step.HOLD, slices_ms, 0))


def check(due: Throttles, claims: Claims, at_ms: Ints, slicing: Slicing) -> CheckResult:
    """Check throttles shortly before they end, and at their end (`Slicing.at_check`).

    * `due`: The throttles whose check or end has come.
    * `claims`: What each of their clients owes at the instant of its check, by the quota type that owes most.
    """
    left_ms = np.maximum(due.end_ms - at_ms, 0)
    return CheckResult.of(slicing.at_check(claims.owed_ms, left_ms, due.is_at_end), claims, slicing)


def check_after_edit(
    throttles: Throttles, claims: Claims, at_ms: Ints, slicing: Slicing, is_renamed: Flags
) -> CheckResult:
    """Check throttles whose bound, mode, level or exceptions an operator has just changed (`Slicing.at_edit`).

    Under a shadow quota, an exemption, or no bound nothing is owed. A throttle that holds others than before
    (`is_renamed`) is published again with its end where it would have none other.
    """
    left_ms = np.maximum(throttles.end_ms - at_ms, 0)
    # No bound is infinity: it is below nothing, and nothing that is finite falls from it.
    is_same_type = throttles.quota_type == claims.quota_type
    fell = is_same_type & np.isfinite(throttles.bound) & (claims.own_bound < throttles.bound)
    result = CheckResult.of(slicing.at_edit(claims.owed_ms, left_ms, fell), claims, slicing)
    again = is_renamed & (result.steps == Step.WAIT) & (left_ms > 0)
    return CheckResult(np.where(again, Step.HOLD, result.steps), np.where(again, left_ms, result.slices_ms))


class ThrottlePurgatory:
    """Holds throttled clients and publishes to the topic. Its `decider` says what each of them owes."""

    def __init__(
        self,
        decider: Decider,
        publisher: Publisher | HeardPublisher,
        slicing: Slicing,
        lead: RenewLead,
        clock: Clock,
    ) -> None:
        self.decider = decider
        self._publisher = publisher
        self._base_slicing = slicing
        self._lead = lead
        self._clock = clock
        self._ledger = ThrottleLedger(start_ms=0)
        self._lock = Lock()
        # Every held throttle was decided under this quota version, or checked since it came into force.
        self._settled = -1, -1

    def __len__(self) -> int:
        """The number of held clients (NumDelayedOperations; PurgatorySize is the same: nothing is held twice)."""
        return len(self._ledger)

    def held(self) -> pa.Table:
        """The running throttles, in the order in which they began; of `HELD`."""
        with self._lock:
            return self._ledger.rows(self._ledger.held())

    def held_until(self) -> pa.Table:
        """Who is held, for which quota type, and `until_ms`, the end by wall clock: as `quota.current_rates` has it."""
        held, now = self.held(), self._clock.now()
        until_ms = int64s(held, "end_ms") - now.steady_ms + now.wall_ms
        return held.select([*CLIENTS.names, "quota_type"]).append_column("until_ms", pa.array(until_ms))

    def take_over(
        self,
        takes_topic: bool = False,
        publishes_running: bool = False,
        quotas_at: SnapshotAt | None = None,
    ) -> None:
        """Fence an earlier publisher, publish what is stored but not yet on the topic, take up the stored throttles.

        What is overdue is due at once: the first `tick` checks it and renews or releases it.

        * `takes_topic`: See `Publisher.take_over`.
        * `publishes_running`: Whether the topic lacks what was published before, so that the running throttles go out
            again, with their old numbers.
        * `quotas_at`: Gives the quotas and tenants of versions: what they forgive, and the terms of tenants, the
            throttles of these versions know. None: no debt was ever forgiven, and there are no tenants.
        """
        with self._lock:
            highest_seq, running = self._publisher.newest()
            now = self._clock.now()
            self._ledger, self._settled = ThrottleLedger(start_ms=now.steady_ms), (-1, -1)
            is_running = pc.greater(running["throttled_until_ms"], now.wall_ms)
            again = running.filter(is_running) if publishes_running else running.slice(0, 0)
            self._publisher.take_over(highest_seq, now, takes_topic, again)
            # Clients hear of the last of them only now, and what is left counts from here: the log has it at once.
            now = self._clock.now()
            if running.num_rows:
                log.info("took up %d running throttles", running.num_rows)
            end_ms = now.steady_ms + left_ms(running, now)
            ids = np.array(running["decision_id"].to_pylist(), np.object_)
            clients, no_level = running.select(CLIENTS.names), np.full(running.num_rows, NO_LEVEL, np.int64)
            types = types_of(running)
            keys, bound = self.decider.keys_of(clients, types), own_bounds_of(running)
            excepted = np.empty(running.num_rows, np.object_)
            stored = running["except_client_ids"].to_pylist()
            excepted[:] = [None if one is None else tuple(one) for one in stored]
            forgiven_ms = np.zeros(len(ids), np.int64) if quotas_at is None else _forgiven_ms(running, quotas_at)
            kind = kinds_of(*(pc.not_equal(running[name], "").to_numpy() for name in SENSOR))
            tenant, times = _tenants_of(running, quotas_at), self._times(end_ms, now.steady_ms)
            standing = types, bound, no_level, tenant, kind, forgiven_ms
            self._ledger.hold(keys, clients, excepted, *standing, ids, *times)

    def violated(self, violations: Asked, evaluation: Evaluation, batch_versions: dict[str, int]) -> int:
        """Publish and hold what a batch's violations ask for; returns the number of records.

        A batch that is run again finds its version recorded and writes nothing; the throttles it wrote the first
        time were taken up by `take_over`.
        """
        with self._lock:
            now = self._caught_up()
            valid = self._still_valid(violations, evaluation)
            running = self._ledger.running(valid.keys)
            news, slices_ms = violations_to_publish(valid, running, now.steady_ms, self._slicing)
            if not len(news):
                return 0
            publications = self._begun(valid.take(news), running.take(news), slices_ms, evaluation)
            forgiven_ms = self.decider.forgiven_ms(lambda: publications.clients, publications.claims.quota_type)
            at_ms = np.full(len(news), now.steady_ms)
            return self._publish(publications, evaluation, at_ms, now, forgiven_ms, batch_versions)

    def pop_due(self) -> int:
        """Take what is due from the wheel; never waits for a batch. Returns how many now wait for `tick`."""
        return self._ledger.pop_due(self._clock.now().steady_ms)

    def tick(self, is_on_time: bool = False) -> int:
        """Handle all that is due: checks and ends; returns the number of records.

        * `is_on_time`: For a rehearsal, which is never late: each is checked at the instant at which it is due.
        """
        if not self.pop_due() and not self._publisher.is_behind:
            return 0
        with self._lock:
            now = self._caught_up()
            clients, popped_ms = self._ledger.take_due()
            due = self._ledger.throttles(clients)
            at_ms = due.due_ms if is_on_time else np.full(len(due), now.steady_ms)
            late = {"due_ms": due.due_ms, "lateness_ms": np.maximum(popped_ms - due.due_ms, 0)}
            return self._check(check, due, at_ms, now, ("renewed", "expired"), late)

    def quotas_changed(self, snapshot: QuotaSnapshot) -> int:
        """Adopt a newer quota version and check at once every throttle it touches; returns the records.

        To be called again with the version in force, as the poller does: an edit that meets a batch in flight is
        settled by a later call, even if another batch has adopted the version by then.
        """
        with self._lock:
            if not self.decider.adopt(snapshot) and snapshot.versions <= self._settled:
                return 0
            records = self._check_after_edit()
            self._settled = snapshot.versions
            return records

    def next_due_ms(self) -> int | None:
        """A lower bound, on the steady clock, of when `tick` has something to do; None: not before a batch."""
        return self._ledger.next_due_ms()

    def close(self) -> None:
        """Leave the topic. Running throttles stay stored; they lapse at consumers when they end."""
        with self._lock:
            self._publisher.close()

    def _caught_up(self) -> Moment:
        """Publish what is behind, which may wait for a broker; the time after that."""
        self._publisher.catch_up(self._clock.now())
        return self._clock.now()

    def _check_after_edit(self) -> int:
        now = self._caught_up()
        held = self._ledger.held()
        if not len(held):
            return 0
        throttles, excepted = self._ledger.throttles(held), self._ledger.excepted(held)
        in_force = self.decider.in_force(self._ledger.names(held), throttles.quota_type)
        is_moved = in_force.is_other_target(holds_users(excepted))
        is_renamed = excepted != in_force.excepted
        is_forgiven = in_force.forgives(throttles.forgiven_ms, throttles.kind)
        is_other = in_force.differs(throttles.bound, throttles.level, self._ledger.tenants(held))
        touched = (is_other | is_renamed) & ~is_forgiven
        at_ms = np.full(len(held), now.steady_ms)
        records = self._let_go(held[is_forgiven], now)
        records += self._hold_users_of(held[is_moved & ~holds_users(excepted) & ~is_forgiven], now)
        throttles = self._ledger.throttles(held[touched])
        judged = partial(check_after_edit, is_renamed=(is_renamed & ~is_moved)[touched])
        return records + self._check(judged, throttles, at_ms[touched], now, ("quota_changed", "quota_changed"), {})

    def _let_go(self, holds: Holds, now: Moment) -> int:
        """Release whose debts are forgiven; a client goes on to be held for another type of which it owes more."""
        if not len(holds):
            return 0
        throttles, names, least_ms = self._ledger.throttles(holds), self._ledger.names(holds), self._slicing.min_hold_ms
        forgiven = self.decider.unsettled(names)
        forgiven[np.arange(len(holds)), throttles.quota_type] = True
        evaluation, claims = self.decider.claims(names, throttles.quota_type, now.steady_ms, forgiven, least_ms)
        goes_on = claims.quota_type != throttles.quota_type
        slices_ms = self._slicing.slices_ms(claims.owed_ms, claims.window_ms, claims.quota_type)
        targets, ids = (self._ledger.keys(holds), names), self._ledger.decision_ids(holds)
        about = {"cause": pc.if_else(pa.array(goes_on), "quota_changed", "forgiven")}
        publications = self._publications(targets, claims, goes_on, np.where(goes_on, slices_ms, 0), ids, about)
        forgiven_ms = self.decider.in_force(names, claims.quota_type).forgiven_ms
        return self._publish(publications, evaluation, np.full(len(holds), now.steady_ms), now, forgiven_ms)

    def _hold_users_of(self, clients: Holds, now: Moment) -> int:
        """Hold the users of clients that were held on their own, where those owe; the clients are released after that.

        In the other direction the next batch holds the clients that use the sensor.
        """
        if not len(clients):
            return 0
        throttles, names = self._ledger.throttles(clients), self._ledger.names(clients)
        names = names.set_column(2, CLIENTS.field("client_id"), pa.nulls(len(clients), pa.string()))
        keys = self.decider.keys_of(names, throttles.quota_type)
        _, first = np.unique(keys[0], return_index=True)
        first = first[~self._ledger.running(some_of(keys, first)).is_held]
        forgiven_ms = self.decider.forgiven_ms(lambda: names, throttles.quota_type)
        evaluation, claims = self.decider.claims(names, throttles.quota_type, now.steady_ms)
        claims = claims.take(first)
        slicing = self._slicing
        slices_ms = slicing.slices_ms(claims.owed_ms, claims.window_ms, claims.quota_type)
        owes = claims.owed_ms >= slicing.min_hold_ms
        news, claims, slices_ms = first[owes], claims.take(owes), slices_ms[owes]
        ids, holds = self._ledger.decision_ids(clients[news]), np.ones(len(news), np.bool_)
        targets = some_of(keys, news), names.take(pa.array(news))
        publications = self._publications(targets, claims, holds, slices_ms, ids, {"cause": "quota_changed"})
        at_ms = np.full(len(news), now.steady_ms)
        return self._publish(publications, evaluation, at_ms, now, forgiven_ms[news])

    def _publications(
        self,
        targets: tuple[Pair, pa.Table],
        claims: Claims,
        holds: Flags,
        slices_ms: Ints,
        ids: NDArray[np.object_],
        about: dict[str, Any],
    ) -> Publications:
        """Records for targets, by their keys and names; a user's has the exceptions that are in force."""
        keys, clients = targets
        are_users = pc.is_null(clients["client_id"]).to_numpy()
        users = np.array(clients["user"].to_pylist(), np.object_)
        excepted = self.decider.except_client_ids(np.where(are_users, users, ""), claims.quota_type, claims.tenant)
        for at in np.flatnonzero(are_users):
            excepted[at] = excepted[at] or ()  # a release of one that is held client by client now
        return Publications(keys, clients, excepted, claims, holds, slices_ms, ids, about)

    def _still_valid(self, violations: Asked, evaluation: Evaluation) -> Asked:
        """Without those whose bound, mode or level an edit has changed since the batch pinned its quotas, or forgiven.

        They stay recorded as decisions. The edit has checked whom it touches, or will; a throttle under the quotas of
        before would hold a client that has just been let go.
        """
        if not len(violations) or evaluation.versions >= self.decider.last.versions:
            return violations
        clients, claims = _clients_of(violations), violations.claims
        in_force = self.decider.in_force(clients, claims.quota_type)
        tenant = self.decider.tenants_of(claims.tenant, of_batch=True)
        changed = in_force.differs(claims.own_bound, claims.level, tenant)
        changed |= in_force.is_other_target(violations.holds_user)
        forgiven_ms = self.decider.forgiven_ms(lambda: clients, claims.quota_type)
        changed |= in_force.forgives(forgiven_ms, kinds_of(claims.has_user, claims.has_client_id))
        return violations.take(~changed)

    def _begun(self, asked: Asked, running: Running, slices_ms: Ints, batch: Evaluation) -> Publications:
        """The records of throttles that begin, or are extended, in the order of the names."""
        clients = _clients_of(asked)
        by_type = clients.append_column("type", pa.array(asked.claims.quota_type))
        order = pc.sort_indices(by_type, [(name, "ascending") for name in by_type.column_names])
        clients, rows = clients.take(order), order.to_numpy()
        asked, running = asked.take(rows), running.take(rows)
        types = names_of(QUOTA_TYPES, asked.claims.quota_type)
        decisions = clients.append_column("quota_type", types)
        ids = np.array(decision_ids(decisions, self.decider.cluster, batch), np.object_)
        # An extension keeps the decision that began the throttle.
        extends = running.is_held
        ids[extends] = running.decision_ids[extends]
        begins = pc.if_else(pa.array(asked.is_debt), "debt", "violation")
        holds, cause = np.ones(len(rows), np.bool_), pc.if_else(pa.array(extends), "extended", begins)
        targets = asked.keys, clients
        return self._publications(targets, asked.claims, holds, slices_ms[rows], ids, {"cause": cause})

    def _check(
        self,
        judged: Callable[[Throttles, Claims, Ints, Slicing], CheckResult],
        throttles: Throttles,
        at_ms: Ints,
        now: Moment,
        causes: tuple[Cause, Cause],
        late: dict[str, Ints],
    ) -> int:
        """Check throttles, each at its own instant of steady time; returns the number of records.

        * `causes`: Of a throttle that goes on, and of a release.
        * `late`: When each was due, and how much later it was popped.
        """
        if not len(throttles):
            return 0
        keys, slicing = self._ledger.keys(throttles.holds), self._slicing
        # Before the claims: a batch that forgives between the two is not known then, so the debt is still let go.
        forgiven_ms = self.decider.forgiven_ms(partial(self._ledger.names, throttles.holds), throttles.quota_type)
        evaluation, claims = self.decider.check(throttles, keys, self._ledger.names, at_ms)
        result = judged(throttles, claims, at_ms, slicing)
        self._ledger.wait_for_end(throttles.holds[result.steps == Step.WAIT])
        news = (result.steps != Step.WAIT).nonzero()[0]
        if not len(news):
            return 0
        failpoint("check.decided")
        clients, holds = throttles.holds[news], result.steps[news] == Step.HOLD
        about: dict[str, Any] = {name: pa.array(column[news]) for name, column in late.items()}
        about["cause"] = pc.if_else(pa.array(holds), *causes)
        targets, slices_ms = (some_of(keys, news), self._ledger.names(clients)), result.slices_ms[news]
        ids = self._ledger.decision_ids(clients)
        publications = self._publications(targets, claims.take(news), holds, slices_ms, ids, about)
        return self._publish(publications, evaluation, at_ms[news], now, forgiven_ms[news])

    def _publish(
        self,
        publications: Publications,
        evaluation: Evaluation,
        at_ms: Ints,
        now: Moment,
        forgiven_ms: Ints,
        batch_versions: dict[str, int] | None = None,
    ) -> int:
        """Write records that count from these instants of steady time on.

        * `forgiven_ms`: Until when the debts of their sensors had been forgiven when it was seen what they owe.
        """
        wall_ms = at_ms + (now.wall_ms - now.steady_ms)
        written = self._publisher.write(publications, evaluation, wall_ms, batch_versions)
        if not written:
            return 0
        holds = publications.holds
        clients = publications.clients if holds.all() else publications.clients.filter(pa.array(holds))
        end_ms = at_ms + publications.throttle_time_ms
        keys, claims = some_of(publications.keys, holds), publications.claims.take(holds)
        excepted, ids = publications.excepted[holds], publications.decision_ids[holds]
        kind = kinds_of(claims.has_user, claims.has_client_id)
        tenant = self.decider.tenants_of(claims.tenant)
        standing = claims.quota_type, claims.own_bound, claims.level, tenant, kind, forgiven_ms[holds]
        self._ledger.hold(keys, clients, excepted, *standing, ids, *self._times(end_ms[holds], at_ms[holds]))
        self._ledger.drop(some_of(publications.keys, ~holds))
        self._lead.observe(self._clock.now().steady_ms - now.steady_ms)
        return written

    def _times(self, end_ms: Ints, now_ms: int | Ints) -> tuple[Ints, Ints]:
        """The ends of throttles, and when they are checked."""
        return end_ms, np.maximum(end_ms - self._slicing.lead_ms, now_ms)

    @property
    def _slicing(self) -> Slicing:
        return replace(self._base_slicing, lead_ms=self._lead.lead_ms)


def left_ms(rows: pa.Table, now: Moment) -> Ints:
    """How much longer the running throttles last that stored rows stand for, after a restart.

    Their ends on the steady clock are as far away as their wall-clock ends are from the wall clock now, but never
    farther than the whole throttle is long: then the clock was set back, no client waits longer than its record gave.
    One whose end has passed, or is nearer than the lead, is due at once.
    """
    left_ms = np.minimum(int64s(rows, "throttled_until_ms") - now.wall_ms, int64s(rows, "throttle_time_ms"))
    return np.maximum(left_ms, 0)


def _forgiven_ms(rows: pa.Table, quotas_at: SnapshotAt) -> Ints:
    """Until when debts of the sensors of records were forgiven by the quotas that they were written under."""
    found, versions = np.zeros(rows.num_rows, np.int64), rows["quota_version"]
    for version in pc.unique(versions).to_pylist():
        own = pc.equal(versions, version)
        sensors = (rows[name].filter(own).to_pylist() for name in SENSOR)
        found[own.to_numpy()] = quotas_at(version, -1).forgiven_until_ms(zip(*sensors, strict=True))
    return found


def _tenants_of(rows: pa.Table, quotas_at: SnapshotAt | None) -> NDArray[np.object_]:
    """The tenants of the members that records hold, by the terms that they were written under; None for none."""
    found = np.full(rows.num_rows, None, np.object_)
    columns = (rows[name].to_pylist() for name in ("tenant", "quota_version", "tenants_version"))
    for at, (name, *versions) in enumerate(zip(*columns, strict=True)):
        if name is not None and quotas_at is not None:
            found[at] = next((one for one in quotas_at(*versions).tenants if one.name == name), None)
    return found


def _clients_of(asked: Asked) -> pa.Table:
    return asked.targets().cast(CLIENTS)
