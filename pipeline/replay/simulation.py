"""A simulated job: the job's own engine, lifecycle and purgatory, without Kafka, Spark and tables."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from pipeline.clock import Moment
from pipeline.settings.model import Settings
from pipeline.throttle.assembly import Ports, assemble
from pipeline.throttle.publisher import Marker, TopicEnd
from pipeline.throttle.purgatory import ThrottlePurgatory
from pipeline.throttle.shapes import Written, records_of
from quota.engine import Scope
from quota.replay import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.arrow import arrow_schema
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleEventRow, ThrottleRecord
from schemas.usage import UsageEvent

_BYTES: Final = ("produced_bytes", "fetched_bytes")
_TIMES: Final = ("io_time_ns", "network_time_ns")
_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ClientKey._fields),
        *((name, pa.int64()) for name in ("sample_start_ms", "last_event_ms", *_BYTES, *_TIMES)),
    ]
)


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """One micro-batch, whose trigger is the first one after its newest event.

    `usage` has the columns of `QuotaEngine.record`, one row per sample window and client.
    """

    trigger_ms: int
    newest_event_ms: int
    usage: pa.Table


def batches_of_events(events: Iterable[UsageEvent], trigger_ms: int, sample_window_ms: int) -> Iterator[SimulatedBatch]:
    """Events in order of time, cut at multiples of the trigger. An event at a multiple is in the later batch."""
    ordered = sorted(events, key=lambda event: event.event_time_ms)
    for number, together in groupby(ordered, lambda event: event.event_time_ms // trigger_ms):
        yield _batch(list(together), (number + 1) * trigger_ms, sample_window_ms)


def _batch(events: list[UsageEvent], trigger_ms: int, sample_window_ms: int) -> SimulatedBatch:
    rows: dict[tuple[int, ClientKey], dict[str, Any]] = {}
    for event in events:
        start_ms = event.event_time_ms // sample_window_ms * sample_window_ms
        client = ClientKey(event.broker_id, event.user, event.client_id)
        row = rows.setdefault((start_ms, client), {**client._asdict(), "sample_start_ms": start_ms})
        row["last_event_ms"] = event.event_time_ms
        # The time of an exempt request counts in no rate, but its bytes do.
        for name in _BYTES if event.throttle_exempt else (*_BYTES, *_TIMES):
            amount = getattr(event, name)
            if amount is not None:
                row[name] = row.get(name, 0) + amount
    return SimulatedBatch(trigger_ms, events[-1].event_time_ms, pa.Table.from_pylist(list(rows.values()), _SCHEMA))


def holds_events(text: str) -> bool:
    """Whether a file holds events (one JSON value per line) and not quotas. Its first line decides."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    try:
        value = json.loads(first)
    except ValueError:
        return False
    elements = value if isinstance(value, list) else [value]
    return any(isinstance(element, dict) and "event_time_ms" in element for element in elements)


def read_events(text: str) -> tuple[list[UsageEvent], list[str]]:
    """The events of a text, and a sentence for each line or element that is not a valid event.

    Each line is a value as on the usage topic: an object, or an array of objects. As in the stream, each element that
    is not a valid event is refused alone; null values and empty arrays are ignored.
    """
    events: list[UsageEvent] = []
    refused: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as exc:
            refused.append(f"line {number}: not JSON: {exc}")
            continue
        for where, element in _elements(value, number):
            try:
                events.append(UsageEvent.model_validate_json(json.dumps(element)))
            except ValidationError as exc:
                refused.append(f"{where}: {_mistakes(exc.errors(include_url=False))}")
    return events, refused


def _elements(value: Any, number: int) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if not isinstance(value, list):
        yield f"line {number}", value
        return
    for index, element in enumerate(value):
        yield f"line {number}, element {index}", element


def _mistakes(errors: Sequence[Any]) -> str:
    return "; ".join(
        f"'{'.'.join(map(str, error['loc']))}': {error['msg']}, not {error['input']!r}" for error in errors
    )


class SimulatedClock:
    """`pipeline.clock.Clock` on event time, set by hand. Wall time and steady time are the same."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms

    def now(self) -> Moment:
        """The instant it was set to."""
        return Moment(self.now_ms, self.now_ms)


class NoOutbox:
    """`pipeline.throttle.publisher.Outbox` of a job that has never run before. It stores nothing."""

    table_id = "none"

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Drop the rows."""
        return True

    def rows_from(self, publish_seq: int) -> pa.Table:
        """No rows: nothing is stored."""
        return arrow_schema(ThrottleEventRow).empty_table()

    def newest(self) -> tuple[int, pa.Table]:
        """No number and no throttles: nothing is stored."""
        return -1, self.rows_from(0)

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


_NAME: Final = "simulated"
_LONGEST_AFTERMATH_MS: Final = 3_600_000


@dataclass(slots=True)
class ClientStory:
    """What happened to one client.

    Attributes:
        violations: How often a batch began a throttle or made it longer; `renewals`: how often a look did.
        shadowed: Batches in which a shadow quota would have throttled it.
        throttle_ms: How long it was held, all throttles together.
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

    The clients ignore throttles: usage is what the events contain, whether a client is throttled or not. `show` gets
    every record, with the instant at which it is written.
    """

    def __init__(
        self,
        settings: Settings,
        trigger_ms: int,
        quotas: QuotaSnapshot,
        scope: Scope,
        show: Callable[[int, Written], None],
    ) -> None:
        self._quotas = quotas
        self._show = show
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
        """Decide the batches, then wait until no client is held, at most an hour; returns the number of batches."""
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

    def _announce(self, written: pa.Table, _quota_version: int) -> None:
        now_ms = self._clock.now_ms
        for record in records_of(written):
            self.clients.setdefault(record.publication.key, ClientStory()).hear(record, now_ms)
            self._show(now_ms, record)
