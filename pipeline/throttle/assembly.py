"""The one place that wires engine, decider, purgatory and ledger to each other, and to a publisher.

The job, replays, the closed-loop benchmark and the tests of faults all call it, so what is proven of one
holds for the others. Assembling changes nothing outside: `ThrottlePurgatory.take_over` is the step that takes up
stored throttles and fences an earlier publisher.
"""

from typing import Final

import pyarrow as pa

from pipeline.clock import Clock, Moment
from pipeline.settings.model import EngineSettings, Settings
from pipeline.throttle.decider import Decided, Decider
from pipeline.throttle.publisher import NO_ROWS, Hear, HeardPublisher, Publisher
from pipeline.throttle.purgatory import RenewLead, ThrottlePurgatory
from quota.decisions import Evaluation
from quota.engine import QuotaEngine, Scope
from quota.snapshot import QuotaSnapshot
from quota.throttle_time import Slicing
from quota.usage import Usage


def assemble(
    settings: Settings, scope: Scope, cluster: str, publisher: Publisher | HeardPublisher, clock: Clock
) -> ThrottlePurgatory:
    """Build the graph; nothing is read, written or started.

    * `scope`: Of the quotas: sums over all brokers, or one per broker.
    """
    rules = settings.purgatory
    slicing = Slicing(
        lead_ms=rules.min_renew_lead_ms,
        min_hold_ms=rules.min_hold_ms,
        caps=settings.engine.throttle_caps(),
        sample_window_ms=settings.engine.sample_window_ms,
    )
    return ThrottlePurgatory(
        decider=Decider(new_engine(settings.engine, scope), cluster),
        publisher=publisher,
        slicing=slicing,
        lead=RenewLead(settings.stream.trigger_ms, rules.client_lag_ms, rules.min_renew_lead_ms),
        clock=clock,
    )


def new_engine(settings: EngineSettings, scope: Scope) -> QuotaEngine:
    """An engine that has recorded nothing."""
    return QuotaEngine(
        num_samples=settings.num_samples,
        sample_window_ms=settings.sample_window_ms,
        max_throttle_time=settings.throttle_caps(),
        scope=scope,
        carry_debt=settings.carry_debt,
    )


# The job's own decider and purgatory on a clock that is set by hand, without Kafka, Spark and tables.
#
# `kquota what-if`, `kquota simulate` and the shadow of `observe` run it, so they say what the job would do.


class HandSetClock:
    """`pipeline.clock.Clock`, set by hand by `now_ms`. Wall time and steady time are the same."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def now(self) -> Moment:
        """The instant it was set to."""
        return Moment(self.now_ms, self.now_ms)


_NAME: Final = "rehearsal"


class Rehearsal:
    """Decides batches at given instants; between them, checks and ends of throttles happen at their exact millisecond.

    * `hear`: Hears the records. Those of one call are of one wait or batch; those of a client come in order.
    """

    def __init__(
        self,
        settings: Settings,
        scope: Scope,
        hear: Hear = lambda _publications, _at_ms: None,
        cluster: str = _NAME,
    ) -> None:
        self._clock, self._records = HandSetClock(0), HeardPublisher(hear)
        self.purgatory = assemble(settings, scope, cluster, self._records, self._clock)
        self.decider = self.purgatory.decider
        self.snapshot = QuotaSnapshot(-1, ())

    @property
    def now_ms(self) -> int:
        """The instant to which time has come."""
        return self._clock.now_ms

    def begin(self, at_ms: int, running: pa.Table = NO_ROWS, buckets: pa.Table | None = None) -> None:
        """Begin to hold clients at an instant.

        * `running`: The last row of `throttle_events` of each client that is held then.
        * `buckets`: As `QuotaEngine.buckets` returns them; None: as they are.
        """
        self._clock.now_ms = at_ms
        if buckets is not None:
            self.decider.restore_buckets(buckets)
        self._records.running = running
        self.purgatory.take_over(quotas_at=lambda _version, _tenants: self.snapshot)
        if self.snapshot.version >= 0:
            self.purgatory.quotas_changed(self.snapshot)

    def put_in_force(self, snapshot: QuotaSnapshot) -> None:
        """The quotas from now on. Throttles that they change are checked at once."""
        if snapshot is not self.snapshot:
            self.snapshot = snapshot
            self.purgatory.quotas_changed(snapshot)

    def decide(self, usage: pa.Table | Usage, evaluation: Evaluation, holds: bool = True) -> Decided:
        """Decide a batch by the quotas in force, and hold whom it asks to hold.

        * `evaluation`: Facts of the batch; its quota version is set to that of the quotas in force.
        * `holds`: False: nothing is published for the batch, as for one that is too old.
        """
        evaluation = evaluation.under(*self.snapshot.versions)
        decided = self.decider.decide(self.snapshot, usage, evaluation, self._clock.now())
        if holds and len(decided.violations):
            self.purgatory.violated(decided.violations, evaluation, {})
        return decided

    def wait_until(self, until_ms: int) -> None:
        """Move the clock on to an instant; checks and ends up to it, inclusive, happen when they are due."""
        self._clock.now_ms = max(until_ms, self._clock.now_ms)
        while self.purgatory.pop_due():
            self.purgatory.tick(is_on_time=True)
