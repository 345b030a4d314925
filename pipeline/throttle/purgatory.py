"""Throttled clients in purgatory: held, checked ahead of their end, renewed or released; each ends exactly once.

The one lock here serialises everything that writes records: batches, checks and quota edits. The wheel inside the
ledger has a lock of its own that is never held over I/O, so what is due is handed out at once (`pop_due`, on a thread
of its own) even while a batch or a check is being published; its record follows within one batch (`tick`).
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import Clock, Moment
from pipeline.failpoints import failpoint
from pipeline.throttle.decider import Decider
from pipeline.throttle.ledger import ThrottleLedger
from pipeline.throttle.lifecycle import CheckResult, check, check_after_edit, violations_to_publish
from pipeline.throttle.publisher import Outbox, Publisher
from pipeline.throttle.shapes import CLIENTS, HELD, Ints, columns_of, int64s, table_of
from quota.replay import Evaluation
from quota.snapshot import QuotaSnapshot
from quota.throttle_time import Slicing

log = logging.getLogger(__name__)

Announce = Callable[[pa.Table, int], None]
"""Hears the records that were written together, of `WRITTEN`, and the quota version they were decided under. Must be
quick and must not raise.
"""

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


class ThrottlePurgatory:
    """Holds throttled clients and publishes to the topic."""

    def __init__(
        self,
        decider: Decider,
        publisher: Publisher,
        outbox: Outbox,
        slicing: Slicing,
        lead: RenewLead,
        clock: Clock,
        announce: Announce,
    ) -> None:
        self._decider = decider
        self._publisher = publisher
        self._outbox = outbox
        self._base_slicing = slicing
        self._lead = lead
        self._clock = clock
        self._announce = announce
        self._ledger = ThrottleLedger(start_ms=0)
        self._lock = Lock()
        # Every held throttle was decided under this quota version, or checked since it came into force.
        self._settled_version = -1

    def __len__(self) -> int:
        """The number of held clients (NumDelayedOperations; PurgatorySize is the same: nothing is held twice)."""
        return len(self._ledger)

    def held(self) -> pa.Table:
        """The running throttles, in the order in which they began; of `HELD`."""
        with self._lock:
            return self._ledger.held().select(HELD.names)

    def held_until(self) -> pa.Table:
        """Who is held, for which quota type, and `until_ms`, the end by wall clock: as `quota.current_rates` has it."""
        held, now = self.held(), self._clock.now()
        until_ms = int64s(held, "end_ms") - now.steady_ms + now.wall_ms
        return held.select([*CLIENTS.names, "quota_type"]).append_column("until_ms", pa.array(until_ms))

    def take_over(self, takes_topic: bool = False, publishes_running: bool = False) -> None:
        """Fence an earlier publisher, publish what is stored but not yet on the topic, take up the stored throttles.

        What is overdue is due at once: the first `tick` checks it and renews or releases it.

        * `takes_topic`: See `Publisher.take_over`.
        * `publishes_running`: Whether the topic lacks what was published before, so that the running throttles go out
            again, with their old numbers.
        """
        with self._lock:
            highest_seq, running = self._outbox.newest()
            now = self._clock.now()
            self._ledger = ThrottleLedger(start_ms=now.steady_ms)
            is_running = pc.greater(running["throttled_until_ms"], now.wall_ms)
            again = running.filter(is_running) if publishes_running else running.slice(0, 0)
            self._publisher.take_over(highest_seq, now, takes_topic, again)
            # Clients hear of the last of them only now, and what is left counts from here: the log has it at once.
            now = self._clock.now()
            if running.num_rows:
                log.info("took up %d running throttles", running.num_rows)
            self._ledger.hold(held_from(running, now, self._slicing.lead_ms))

    def violated(self, violations: pa.Table, evaluation: Evaluation, batch_versions: dict[str, int]) -> pa.Table:
        """Publish and hold what a batch's violations ask for; returns the records, of `WRITTEN`.

        A batch that is run again finds its version recorded and writes nothing; the throttles it wrote the first
        time were taken up by `take_over`.
        """
        with self._lock:
            now = self._clock.now()
            self._publisher.catch_up(now)
            valid = self._still_valid(violations, evaluation)
            news = violations_to_publish(valid, self._ledger.running(valid), now.steady_ms, self._slicing)
            return self._publish(news, evaluation, now, batch_versions)

    def pop_due(self) -> int:
        """Take what is due from the wheel; never waits for a batch. Returns how many now wait for `tick`."""
        return self._ledger.pop_due(self._clock.now().steady_ms)

    def tick(self) -> int:
        """Handle all that is due: checks and ends; returns the number of records."""
        if not self.pop_due() and not self._publisher.is_behind:
            return 0
        with self._lock:
            now = self._clock.now()
            self._publisher.catch_up(now)
            return self._check(self._ledger.take_due(), check, now)

    def quotas_changed(self, snapshot: QuotaSnapshot) -> int:
        """Adopt a newer quota version and check at once every throttle it touches; returns the records.

        To be called again with the version in force, as the poller does: an edit that meets a batch in flight is
        settled by a later call, even if another batch has adopted the version by then.
        """
        with self._lock:
            if not self._decider.adopt(snapshot) and snapshot.version <= self._settled_version:
                return 0
            records = self._check_after_edit()
            self._settled_version = snapshot.version
            return records

    def next_due_ms(self) -> int | None:
        """A lower bound, on the steady clock, of when `tick` has something to do; None: not before a batch."""
        return self._ledger.next_due_ms()

    def close(self) -> None:
        """Leave the topic. Running throttles stay stored; they lapse at consumers when they end."""
        with self._lock:
            self._publisher.close()

    def _check_after_edit(self) -> int:
        now = self._clock.now()
        self._publisher.catch_up(now)
        held = self._ledger.held()
        if not held.num_rows:
            return 0
        touched = held.filter(pa.array(self._decider.standing(held).is_changed(held)))
        return self._check(touched, check_after_edit, now)

    def _still_valid(self, violations: pa.Table, evaluation: Evaluation) -> pa.Table:
        """Without those whose bound, mode or level an edit has changed since the batch pinned its quotas.

        They stay recorded as decisions. The edit has checked whom it touches, or will; a throttle under the quotas of
        before would hold a client that has just been let go.
        """
        if not violations.num_rows or evaluation.quota_version >= self._decider.last.quota_version:
            return violations
        return violations.filter(pa.array(~self._decider.standing(violations).is_changed(violations)))

    def _check(
        self, checked: pa.Table, judged: Callable[[pa.Table, pa.Table, int, Slicing], CheckResult], now: Moment
    ) -> int:
        if not checked.num_rows:
            return 0
        evaluation, reasons = self._decider.check(checked, now)
        verdict = judged(checked, reasons, now.steady_ms, self._slicing)
        self._ledger.wait_for_end(int64s(checked, "client")[verdict.waiting])
        if verdict.publications.num_rows:
            failpoint("look.decided")
        return int(self._publish(verdict.publications, evaluation, now, None).num_rows)

    def _publish(
        self, publications: pa.Table, evaluation: Evaluation, now: Moment, batch_versions: dict[str, int] | None
    ) -> pa.Table:
        written = self._publisher.write(publications, evaluation, now, batch_versions)
        if not written.num_rows:
            return written
        is_release = pc.equal(written["action"], "release")
        self._ledger.drop(written.filter(is_release))
        self._ledger.hold(self._held(written.filter(pc.invert(is_release)), now))
        self._announce(written, evaluation.quota_version)
        self._lead.observe(self._clock.now().steady_ms - now.steady_ms)
        return written

    @property
    def _slicing(self) -> Slicing:
        return replace(self._base_slicing, lead_ms=self._lead.lead_ms)

    def _held(self, written: pa.Table, now: Moment) -> pa.Table:
        return _held_until(written, now.steady_ms + int64s(written, "throttle_time_ms"), now, self._slicing.lead_ms)


def held_from(rows: pa.Table, now: Moment, lead_ms: int) -> pa.Table:
    """The running throttles that stored rows stand for, after a restart; of `HELD`.

    Their ends on the steady clock are as far away as their wall-clock ends are from the wall clock now, but never
    farther than the whole throttle is long: then the clock was set back, no client waits longer than its record gave.
    One whose end has passed, or is nearer than the lead, is due at once.
    """
    left_ms = np.minimum(int64s(rows, "throttled_until_ms") - now.wall_ms, int64s(rows, "throttle_time_ms"))
    return _held_until(rows, now.steady_ms + np.maximum(left_ms, 0), now, lead_ms)


def _held_until(rows: pa.Table, end_ms: Ints, now: Moment, lead_ms: int) -> pa.Table:
    due_ms = np.maximum(end_ms - lead_ms, now.steady_ms)
    times = {"end_ms": pa.array(end_ms), "due_ms": pa.array(due_ms)}
    return table_of(HELD, rows.num_rows, columns_of(rows, HELD) | times)
