"""The job's own decider and purgatory on a clock that is set by hand, without Kafka, Spark and tables.

`kquota simulate` and the shadow of `observe` run it: what they say of throttles is what the job would do.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from pipeline.clock import Moment
from pipeline.settings.model import Settings
from pipeline.throttle.assembly import Ports, assemble
from pipeline.throttle.decider import Decided
from pipeline.throttle.publisher import Marker, TopicEnd
from pipeline.throttle.purgatory import Announce
from quota.engine import Scope
from quota.replay import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.arrow import arrow_schema
from schemas.throttle_record import ThrottleEventRow, ThrottleRecord

_NO_ROWS: Final = pa.Table.from_batches([], arrow_schema(ThrottleEventRow))


class HandSetClock:
    """`pipeline.clock.Clock`, set by hand. Wall time and steady time are the same."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms

    def now(self) -> Moment:
        """The instant it was set to."""
        return Moment(self.now_ms, self.now_ms)


class NoOutbox:
    """`pipeline.throttle.publisher.Outbox` that stores nothing."""

    table_id = "none"

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Drop the rows."""
        return True

    def rows_from(self, publish_seq: int) -> pa.Table:
        """No rows: nothing is stored."""
        return _NO_ROWS

    def newest(self) -> tuple[int, pa.Table]:
        """No number and no throttles: nothing is stored."""
        return -1, _NO_ROWS

    def is_fenced(self) -> bool:
        """No other driver exists."""
        return False


class NoTopic:
    """`pipeline.throttle.publisher.ThrottleTopic` without readers."""

    def committed(self) -> Marker | None:
        """No marker."""
        return None

    open = committed

    def publish(self, records: Sequence[ThrottleRecord], marker: Marker) -> None:
        """Drop the records."""

    def end(self) -> TopicEnd:
        """No records."""
        return TopicEnd(-1, "")

    def close(self) -> None:
        """Nothing to close."""


_NAME: Final = "rehearsal"


def _announce_nothing(_written: pa.Table, _quota_version: int) -> None:
    """The records go nowhere."""


class Rehearsal:
    """Decides batches at given instants; between them, checks and ends of throttles happen at their exact millisecond.

    * `announce`: Hears the records, as in the job.
    """

    def __init__(
        self, settings: Settings, scope: Scope, announce: Announce = _announce_nothing, cluster: str = _NAME
    ) -> None:
        self._clock = HandSetClock(0)
        ports = Ports(NoOutbox(), NoTopic(), self._clock, announce)
        enforcement = assemble(settings.model_copy(update={"job": _NAME}), scope, cluster, ports)
        self.decider, self.purgatory = enforcement.decider, enforcement.purgatory
        self.snapshot = QuotaSnapshot(-1, ())

    @property
    def now_ms(self) -> int:
        """The instant to which time has come."""
        return self._clock.now_ms

    def begin(self, at_ms: int) -> None:
        """Set the clock to the first instant."""
        self._clock.now_ms = at_ms
        self.purgatory.take_over()

    def put_in_force(self, snapshot: QuotaSnapshot) -> None:
        """The quotas from now on, of a higher version. Throttles that they change are checked at once."""
        self.snapshot = snapshot
        self.purgatory.quotas_changed(snapshot)

    def decide(self, usage: pa.Table, batch_id: int, evaluated_at_ms: int) -> Decided:
        """Decide a batch by the quotas in force, and hold whom it asks to hold."""
        evaluation = Evaluation(_NAME, batch_id, evaluated_at_ms, self.snapshot.version)
        decided = self.decider.decide(self.snapshot, usage, evaluation, self._clock.now())
        self.purgatory.violated(decided.violations, evaluation, {})
        return decided

    def wait_until(self, until_ms: int, while_held: bool = False) -> None:
        """Move the clock on to an instant, or (`while_held`) at most to it, until no client is held."""
        clock, purgatory = self._clock, self.purgatory
        while not while_held or len(purgatory):
            due_ms = purgatory.next_due_ms()
            if due_ms is None or due_ms > until_ms:
                break
            clock.now_ms = max(due_ms, clock.now_ms)
            if purgatory.pop_due():
                purgatory.tick()
            elif clock.now_ms < until_ms:
                clock.now_ms += 1  # `due_ms` was only a lower bound
            else:
                break
        if not while_held:
            clock.now_ms = max(until_ms, clock.now_ms)
