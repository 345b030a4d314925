"""Engine, purgatory and publisher on a hand-set clock, with the outbox and the topic in memory."""

from typing import Any, Literal

import pyarrow as pa

from pipeline.clock import Moment
from pipeline.settings.model import EngineSettings, PurgatorySettings, Settings, StreamSettings
from pipeline.throttle.assembly import assemble
from pipeline.throttle.publisher import Publisher
from quota.decisions import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.throttle_record import ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.fakes.outbox import MemoryOutbox
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.quota.factories import table, usage_row

LEAD_MS = 300
CAP_MS = 1_000

SETTINGS = Settings(
    job="test",
    engine=EngineSettings(producer_byte_rate_cap=CAP_MS, consumer_byte_rate_cap=CAP_MS, request_percentage_cap=CAP_MS),
    stream=StreamSettings(trigger_ms=50),
    purgatory=PurgatorySettings(client_lag_ms=0, min_renew_lead_ms=LEAD_MS),
)


class HandLoop:
    """A job without Spark: `batch` is a micro-batch, `advance` lets time pass and the wheel turn."""

    def __init__(self, *rows: dict[str, object]) -> None:
        self.clock = ManualClock()
        self.outbox = MemoryOutbox()
        self.broker = TopicBroker()
        self.version = 1
        self.batch_id = -1
        self.quotas = QuotaSnapshot.from_rows(rows, version=1)
        self.decisions = pa.table({})
        self.batches: list[tuple[pa.Table, Evaluation]] = []
        self.restart()

    def restart(self, keep_engine: bool = False) -> None:
        """A new process: nothing survives but outbox and topic. The engine starts empty, or as a rebuilt one."""
        self.topic = MemoryTopic(self.broker)
        publisher = Publisher(SETTINGS.job, "test", self.outbox, self.topic)
        self.purgatory = assemble(SETTINGS, "cluster", "test", publisher, self.clock)
        self.decider = self.purgatory.decider
        if keep_engine:
            for usage, evaluation in self.batches:
                self.decider.decide(self.quotas, usage, evaluation, Moment(0, evaluation.evaluated_at_ms))
        self.decider.adopt(self.quotas)
        self.purgatory.take_over(quotas_at=lambda _version, _tenants: self.quotas)

    def batch(self, **produced_bytes: int) -> int:
        """One micro-batch in which users (as keywords, client-id "c") produced bytes now; the records it led to."""
        return self.record(*(self.row(user, "c", amount) for user, amount in produced_bytes.items()))

    def row(self, user: str, client_id: str, produced_bytes: int, **columns: Any) -> dict[str, object]:
        """A row of usage of now."""
        columns |= {"user": user, "client_id": client_id, "produced_bytes": produced_bytes}
        return usage_row(self.clock.steady_ms, **columns)

    def record(self, *rows: dict[str, object]) -> int:
        """One micro-batch with these rows of usage; the records it led to."""
        self.batch_id += 1
        evaluation = Evaluation("query", self.batch_id, self.clock.steady_ms, 0).under(*self.quotas.versions)
        usage = table(rows)
        self.batches.append((usage, evaluation))
        decided = self.decider.decide(self.quotas, usage, evaluation, self.clock.now())
        self.decisions = decided.decisions
        return self.purgatory.violated(decided.violations, evaluation, {"query": self.batch_id})

    def edit(self, *rows: dict[str, object], mode: Literal["enforce", "shadow"] = "enforce") -> int:
        """A new quota version, adopted without traffic; the records it led to."""
        self.version += 1
        self.quotas = QuotaSnapshot.from_rows(rows, version=self.version, mode=mode)
        return self.purgatory.quotas_changed(self.quotas)

    def advance(self, by_ms: int, step_ms: int = 1) -> None:
        """Let time pass in steps, the reaper ticking at each."""
        for _ in range(by_ms // step_ms):
            self.clock.advance(step_ms)
            self.purgatory.tick()

    @property
    def records(self) -> list[ThrottleRecord]:
        """What is on the topic."""
        return self.broker.records

    def told(self) -> list[tuple[str, str, int]]:
        """(action, cause, throttle_time_ms) of every record."""
        return [(record.action, record.cause, record.throttle_time_ms) for record in self.records]


def quota(user: str, producer_byte_rate: float | None, client_id: str = "", mode: str = "enforce") -> dict[str, object]:
    """A row of `quotas`."""
    return {"user": user, "client_id": client_id, "producer_byte_rate": producer_byte_rate, "mode": mode}
