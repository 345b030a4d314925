"""A simulated job: the job's own engine, lifecycle and purgatory, without Kafka, Spark and tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings.model import Settings
from pipeline.simulation.batches import SimulatedBatch
from pipeline.simulation.ports import NoOutbox, NoTopic, SimulatedClock
from pipeline.throttle.assembly import Ports, assemble
from pipeline.throttle.outbox import Written
from pipeline.throttle.purgatory import ThrottlePurgatory
from quota.evaluation import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey

_NAME: Final = "simulated"
_LONGEST_AFTERMATH_MS: Final = 3_600_000


@dataclass(slots=True)
class ClientStory:
    """What happened to one client.

    Attributes:
        violations: How often a batch began a throttle or made it longer.
        renewals: How often a look made a throttle longer.
        releases: How often it was released.
        shadowed: Batches in which a shadow quota would have throttled it.
        throttle_ms: How long it was held, all throttles together.
        held_since_ms: Begin of the running throttle; None while it is not throttled.
    """

    violations: int = 0
    renewals: int = 0
    releases: int = 0
    shadowed: int = 0
    throttle_ms: int = 0
    held_since_ms: int | None = None

    def hear(self, record: Written, now_ms: int) -> None:
        """Count a record."""
        if record.publication.action == "release":
            self.releases += 1
            self.throttle_ms += now_ms - (self.held_since_ms if self.held_since_ms is not None else now_ms)
            self.held_since_ms = None
            return
        if record.publication.cause == "violation":
            self.violations += 1
        else:
            self.renewals += 1
        if self.held_since_ms is None:
            self.held_since_ms = now_ms


class Simulation:
    """Decides batches, and does the looks and ends of throttles between and after them at their exact times.

    The clients ignore throttles: usage is what the events contain, whether a client is throttled or not.

    Args:
        settings: Engine and purgatory.
        trigger_ms: How often a batch starts; part of how long before its end a throttle is looked at.
        quotas: In force all the time.
        scope: `cluster` or `broker`.
        tell: Called for every record, with the instant at which it is written.
    """

    def __init__(
        self,
        settings: Settings,
        trigger_ms: int,
        quotas: QuotaSnapshot,
        scope: Literal["cluster", "broker"],
        tell: Callable[[int, Written], None],
    ) -> None:
        self._quotas = quotas
        self._tell = tell
        self.clients: dict[ClientKey, ClientStory] = {}
        self._clock = SimulatedClock(0)
        stream = settings.stream.model_copy(update={"trigger_ms": trigger_ms})
        self._enforcement = assemble(
            settings.model_copy(update={"job": _NAME, "stream": stream}),
            scope,
            _NAME,
            Ports(NoOutbox(), NoTopic(), self._clock, self._announce),
        )

    def run(self, batches: Iterable[SimulatedBatch]) -> int:
        """Decide the batches, then wait until nobody is held, at most an hour; returns the number of batches."""
        decider, purgatory = self._enforcement.decider, self._enforcement.purgatory
        batch_id = -1
        for batch_id, batch in enumerate(batches):
            if batch_id == 0:
                self._clock.now_ms = batch.trigger_ms
                purgatory.take_over()
            self._wait_until(purgatory, batch.trigger_ms)
            at_ms = max(batch.newest_event_ms, decider.last.evaluated_at_ms)
            evaluation = Evaluation(_NAME, batch_id, at_ms, self._quotas.version)
            decided = decider.decide(self._quotas, batch.usage, evaluation, self._clock.now())
            self._count_shadows(decided.decisions)
            purgatory.violated(decided.violations, evaluation, {_NAME: batch_id})
        self._wait_until(purgatory, self._clock.now_ms + _LONGEST_AFTERMATH_MS, while_held=True)
        return batch_id + 1

    def _wait_until(self, purgatory: ThrottlePurgatory, until_ms: int, while_held: bool = False) -> None:
        """Move the clock on. Looks and ends happen at their exact millisecond."""
        while not while_held or len(purgatory):
            due_ms = purgatory.next_due_ms()
            if due_ms is None or due_ms > until_ms:
                break
            self._clock.now_ms = max(due_ms, self._clock.now_ms)
            if purgatory.hand_out():
                purgatory.tick()
            elif self._clock.now_ms < until_ms:
                self._clock.now_ms += 1  # `due_ms` was only a lower bound
            else:
                break
        if not while_held:
            self._clock.now_ms = max(until_ms, self._clock.now_ms)

    def _count_shadows(self, decisions: pa.Table) -> None:
        rows = decisions.filter(pc.field("mode") == "shadow").select(ClientKey._fields).to_pylist()
        for key in {ClientKey(**row) for row in rows}:
            self.clients.setdefault(key, ClientStory()).shadowed += 1

    def _announce(self, records: Sequence[Written], _quota_version: int) -> None:
        now_ms = self._clock.now_ms
        for record in records:
            self.clients.setdefault(record.publication.key, ClientStory()).hear(record, now_ms)
            self._tell(now_ms, record)
