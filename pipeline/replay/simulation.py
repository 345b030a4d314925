"""A simulated job: the job's own engine, lifecycle and purgatory, without Kafka, Spark and tables."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from pipeline.settings.model import Settings
from pipeline.throttle.assembly import Rehearsal
from pipeline.throttle.explain import Row
from pipeline.throttle.shapes import Ints, Publications
from quota.engine import Scope
from quota.replay import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey
from schemas.throttle_record import BATCH_CAUSES, Target, holds, written_ms
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


_LONGEST_AFTERMATH_MS: Final = 3_600_000


@dataclass(slots=True)
class ClientStory:
    """What happened to one client, by its own throttles and by those of its user.

    Attributes:
        violations: How often a batch began a throttle or made it longer; `renewals`: how often a check did.
        shadowed: Batches in which a shadow quota would have throttled it.
        throttle_ms: How long it was held, all throttles together.
        holding: The targets that hold it.
    """

    violations: int = 0
    renewals: int = 0
    releases: int = 0
    shadowed: int = 0
    throttle_ms: int = 0
    held_since_ms: int = 0
    holding: set[Target] = field(default_factory=set)

    def hear(self, record: Row, now_ms: int) -> None:
        """Count a record."""
        target = Target.of(record)
        if record["action"] == "release":
            self.releases += 1
            self.holding.discard(target)
            if not self.holding:
                self.throttle_ms += now_ms - self.held_since_ms
            return
        if record["cause"] in BATCH_CAUSES:
            self.violations += 1
        else:
            self.renewals += 1
        if not self.holding:
            self.held_since_ms = now_ms
        self.holding.add(target)


class Simulation:
    """Decides batches, and does the checks and ends of throttles between and after them at their exact times.

    The clients ignore throttles: usage is what the events contain, whether a client is throttled or not. `show` gets
    every record, with the instant at which it is written.
    """

    def __init__(
        self,
        settings: Settings,
        trigger_ms: int,
        quotas: QuotaSnapshot,
        scope: Scope,
        show: Callable[[int, Row], None],
    ) -> None:
        self._quotas = quotas
        self._show = show
        self.clients: dict[ClientKey, ClientStory] = {}
        self._by_broker = scope == "broker"
        self._of_user: dict[str, list[ClientKey]] = defaultdict(list)
        self._heard: list[Row] = []
        stream = settings.stream.model_copy(update={"trigger_ms": trigger_ms})
        self._job = Rehearsal(settings.model_copy(update={"stream": stream}), scope, self._hear)

    def run(self, batches: Iterable[SimulatedBatch]) -> int:
        """Decide the batches, then wait until no client is held, at most an hour; returns the number of batches."""
        batches, job, batch_id = list(batches), self._job, -1
        self._meet(batches)
        for batch_id, batch in enumerate(batches):
            if batch_id == 0:
                job.begin(batch.trigger_ms)
                job.put_in_force(self._quotas)
            job.wait_until(batch.trigger_ms)
            self._tell()
            at_ms = max(batch.newest_event_ms, job.decider.last.evaluated_at_ms)
            decided = job.decide(batch.usage, Evaluation("", batch_id, at_ms, -1))
            self._count_shadows(decided.decisions)
            self._tell()
        job.wait_until(job.now_ms + _LONGEST_AFTERMATH_MS)
        self._tell()
        return batch_id + 1

    def _meet(self, batches: Iterable[SimulatedBatch]) -> None:
        """Begin the stories of all clients, those that a throttle of their user holds before they are seen, too."""
        for batch in batches:
            for row in batch.usage.select(ClientKey._fields).to_pylist():
                client = ClientKey.of(row if self._by_broker else {**row, "broker_id": ""})
                if client not in self.clients:
                    self.clients[client] = ClientStory()
                    self._of_user[client.user].append(client)

    def _count_shadows(self, decisions: pa.Table) -> None:
        of_clients = decisions.filter((pc.field("mode") == "shadow") & pc.field("client_id").is_valid())
        for key in {ClientKey(**row) for row in of_clients.select(ClientKey._fields).to_pylist()}:
            self.clients[key].shadowed += 1

    def _hear(self, publications: Publications, at_ms: Ints) -> None:
        self._heard += publications.written(0, at_ms).to_pylist()

    def _tell(self) -> None:
        """Show what was heard, in the order of time: targets are checked together, each at its own instant."""
        for record in sorted(self._heard, key=written_ms):
            at_ms, target = written_ms(record), Target.of(record)
            for client in self._of_user[target.user]:
                names = client.user, client.client_id
                if client.broker_id == target.broker_id and holds(record, *names):
                    self.clients[client].hear(record, at_ms)
            self._show(at_ms, record)
        self._heard = []
