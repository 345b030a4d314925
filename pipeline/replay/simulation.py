"""A simulated job: the job's own engine, lifecycle and purgatory, without Kafka, Spark and tables."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.replay.usage_batches import HeldSpans, HeldTimes
from pipeline.settings.model import Settings
from pipeline.stream.usage_columns import CollectedBatch, ReadingRules
from pipeline.stream.usage_reader import MESSAGE_SCHEMA, read_usage
from pipeline.throttle.assembly import Rehearsal
from pipeline.throttle.shapes import Publications, Row
from quota.arrays import Ints
from quota.decisions import Evaluation
from quota.engine import Scope
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey
from schemas.throttle_record import BATCH_CAUSES, Target, holds, written_ms

_EVER_MS: Final = 1 << 52


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """One micro-batch, whose trigger is the first one after its newest event.

    `usage` has the columns of `QuotaEngine.record`.
    """

    trigger_ms: int
    newest_event_ms: int
    usage: pa.Table


def read_events(text: str, slot_ms: int) -> CollectedBatch:
    """The usage of a file, in slots of `slot_ms` in place of sample windows: `sample_start_ms` is a slot's start.

    Each line is a value as on the usage topic, with the number of the line as its offset: read as the job does.
    """
    lines = [(number, line.encode()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    numbers, values = [number for number, _ in lines], [value for _, value in lines]
    columns = [values, [0] * len(lines), numbers, [_EVER_MS] * len(lines)]  # an event of any time was there by then
    arrays = [pa.array(column, field.type) for column, field in zip(columns, MESSAGE_SCHEMA, strict=True)]
    return read_usage(pa.Table.from_arrays(arrays, schema=MESSAGE_SCHEMA), ReadingRules(slot_ms, _EVER_MS))


def batches_of_usage(usage: pa.Table, trigger_ms: int, sample_window_ms: int) -> Iterator[SimulatedBatch]:
    """Usage cut at multiples of the trigger. An event at a multiple is in the later batch.

    * `usage`: In slots of which a trigger is a multiple, and a sample window, too.
    """
    usage = usage.sort_by("sample_start_ms")
    start_ms = usage["sample_start_ms"].to_numpy()
    usage = usage.set_column(0, "sample_start_ms", pa.array(start_ms // sample_window_ms * sample_window_ms))
    triggers = start_ms // trigger_ms
    first = np.flatnonzero(np.diff(triggers, prepend=-1))
    for begin, end in pairwise([*first.tolist(), len(triggers)]):
        rows = usage.slice(begin, end - begin)
        newest_event_ms = pc.max(rows["last_event_ms"]).as_py()
        yield SimulatedBatch((int(triggers[begin]) + 1) * trigger_ms, newest_event_ms, rows)


def holds_events(text: str) -> bool:
    """Whether a file holds events (one JSON value per line) and not quotas. Its first line decides."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    try:
        value = json.loads(first)
    except ValueError:
        return False
    elements = value if isinstance(value, list) else [value]
    return any(isinstance(element, dict) and "event_time_ms" in element for element in elements)


_LONGEST_AFTERMATH_MS: Final = 3_600_000


@dataclass(slots=True)
class ClientStory:
    """What happened to one client, by its own throttles and by those of its user.

    Attributes:
        violations: How often a batch began a throttle or made it longer; `renewals`: how often a check did.
        shadowed: Batches in which a shadow quota would have throttled it.
        throttle_ms: How long it was held, all throttles together.
    """

    violations: int = 0
    renewals: int = 0
    releases: int = 0
    shadowed: int = 0
    throttle_ms: int = 0

    def hear(self, record: Row) -> None:
        """Count a record."""
        if record["action"] == "release":
            self.releases += 1
        elif record["cause"] in BATCH_CAUSES:
            self.violations += 1
        else:
            self.renewals += 1


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
        self._holds = HeldSpans()
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
        times = HeldTimes(self._holds, 0, job.now_ms)
        for client, story in self.clients.items():
            story.throttle_ms = times.ms_of(client)
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
            self._holds.hear_row(record, at_ms)
            for client in self._of_user[target.user]:
                names = client.user, client.client_id
                if client.broker_id == target.broker_id and holds(record, *names):
                    self.clients[client].hear(record)
            self._show(at_ms, record)
        self._heard = []
