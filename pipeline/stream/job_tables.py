"""The tables of one job, opened once, in the order in which a batch writes them; and the facts of a batch.

The facts are in the same commit as the batch's usage, and are a row of `batches`.

**Gaps.** A client that was not asked to wait in time shall not wait for an outage of the job. Usage of a gap leads to
no larger debt than one burst. It is usage that is older than `max_decision_age_ms` when its batch is collected, and
that happened after the batch before was collected. So usage of one broker that is always late is of no gap. The next
batches may still have usage of that time: it is of the gap, too, until the first batch without any. A job without a
batch before could answer nothing.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pipeline.clock import Clock, Moment
from pipeline.errors import PipelineError, first_line
from pipeline.failpoints import failpoint
from pipeline.settings.model import EngineSettings, TablesSettings
from pipeline.tables.port import TableWriter, checked_epoch, is_local, table_uri
from pipeline.tables.queries import newest_rows
from pipeline.tables.quotas.history import owners_in
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.roll_ups import BY_MINUTE, BY_SECOND, ThrottleByMinute, UsageRoller
from pipeline.tables.upkeep import clean, log_failures
from pipeline.throttle.decider import Decided, Decider
from pipeline.throttle.publisher import Outbox
from quota.arrays import Flags, Ints
from quota.current_rates import COLUMNS, TOTALS, CurrentRates
from quota.decisions import Evaluation
from quota.sensors import of_sensors_with_parts
from schemas.arrow import conform
from schemas.rows import BatchRow, DecisionRow, RatesRow, SensorStateRow

METADATA_KEY: Final = "kquota.batch"


class Gap(NamedTuple):
    """A span of time, by the driver's clock, in which usage could not be answered; both ends exclusive."""

    since_ms: int
    until_ms: int

    def has(self, event_ms: Ints) -> Flags:
        """Which instants are in it."""
        return (event_ms > self.since_ms) & (event_ms < self.until_ms)


def gap_of(
    last_event_ms: Ints, processed_at_ms: int, before: "BatchFacts | None", max_decision_age_ms: int
) -> Gap | None:
    """The gap that rows of a batch are of, by the times of their last events; None if no row is of one.

    Args:
        processed_at_ms: When the batch was collected.
        before: The batch before; None for the first of a job.
    """
    old_ms = processed_at_ms - max_decision_age_ms
    is_old = last_event_ms < old_ms
    new = Gap(0 if before is None else before.processed_at_ms, old_ms)
    known = None if before is None else before.gap
    if (is_old & new.has(last_event_ms)).any():
        return new if known is None else Gap(known.since_ms, old_ms)
    return known if known is not None and (is_old & known.has(last_event_ms)).any() else None


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What a batch read, when it was worked on, and what became of its elements.

    Attributes:
        processed_at_ms: Driver's wall clock when the batch was collected. Event times are limited by it.
        start_offsets: First offset of each partition, inclusive, as Spark prints it; "" for the first batch.
        end_offsets: End offset of each partition, exclusive, as Spark prints it.
        topic_ids: Id of each topic when the batch was collected, as JSON; None = not known.
        good_count: Events that were accepted, including late and clamped ones.
        clamped_count: Events whose time was set back to their append time or to the driver's clock.
        ignored_count: Null values and empty arrays.
        dead_count: Elements and records that were refused, including those that `dead_letters` only counts.
        folded_count: Events of client-ids beyond the limit of new ones: see `pipeline.stream.usage_columns`.
        gap_since_ms: The begin of the gap that the batch has usage of; see `gap_of`. None if it has none.
        gap_until_ms: The end of that gap.
    """

    evaluation: Evaluation
    processed_at_ms: int
    start_offsets: str
    end_offsets: str
    engine_settings: str
    good_count: int
    late_count: int
    clamped_count: int
    ignored_count: int
    dead_count: int
    topic_ids: str | None = None
    folded_count: int = 0
    gap_since_ms: int | None = None
    gap_until_ms: int | None = None

    @property
    def versions(self) -> dict[str, int]:
        """The version that guards each of its commits: a batch that is run again writes nothing twice."""
        return {self.evaluation.query_id: self.evaluation.batch_id}

    @property
    def age_ms(self) -> int:
        """How old the usage was when it was collected, by stored times: publishing goes by it, and replays."""
        return self.processed_at_ms - self.evaluation.evaluated_at_ms

    @property
    def gap(self) -> Gap | None:
        """The gap that it has usage of."""
        since_ms, until_ms = self.gap_since_ms, self.gap_until_ms
        return None if since_ms is None or until_ms is None else Gap(since_ms, until_ms)

    @property
    def ids_of_topics(self) -> dict[str, str]:
        """The ids of the topics by their names; empty if they are not known."""
        ids: dict[str, str] = json.loads(self.topic_ids or "{}")
        return ids

    @property
    def settings(self) -> EngineSettings:
        """The engine's settings that the batch was decided with."""
        return EngineSettings.model_validate_json(self.engine_settings)

    def to_metadata(self) -> dict[str, str]:
        """Return the facts as commit metadata."""
        return {METADATA_KEY: json.dumps(asdict(self), separators=(",", ":"))}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Self | None:
        """Read the facts from commit metadata; None if the commit carries no batch."""
        text = metadata.get(METADATA_KEY)
        if text is None:
            return None
        facts = json.loads(text)
        return cls(**{**facts, "evaluation": Evaluation(**facts["evaluation"])})

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read the facts from a row of `batches`."""
        evaluation = Evaluation(**{field.name: row[field.name] for field in fields(Evaluation)})
        return cls(evaluation, **{field.name: row[field.name] for field in fields(cls) if field.name != "evaluation"})

    def to_row(self, cluster: str) -> pa.Table:
        """Return the facts as a table of one row, with the columns of `batches`."""
        facts = {name: value for name, value in asdict(self).items() if name != "evaluation"}
        row = pa.Table.from_pylist([{**asdict(self.evaluation), **facts}])
        return conform(row, BatchRow, cluster=cluster)


log = logging.getLogger(__name__)

WRITTEN_BY_THE_JOB: Final = (
    "dead_letters",
    "usage",
    "decisions",
    "batches",
    "throttle_events",
    "sensor_state",
    "rates",
    "usage_by_second",
    "usage_by_minute",
    "throttle_by_minute",
)
# A snapshot without any bucket needs a row too, or an older snapshot would be taken for the newest. This row is for the
# sensor without parts: it stands for clients without a quota, so it never has a bucket.
_PLACEHOLDER = {
    "broker_id": "",
    "sensor_user": "",
    "sensor_client_id": "",
    "quota_type": "producer_byte_rate",
    "tokens": 0.0,
    "mode": "enforce",
}


_VERSIONS: Final = ("quota_version", "tenants_version")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch. Any step after the one that stored its usage may still have to be done."""

    facts: BatchFacts
    decided: Decided


class SensorStateTable:
    """Snapshots of the token buckets, so that a restart replays only seconds of usage before the sample windows."""

    def __init__(self, table: TableWriter, cluster: str, interval_ms: int) -> None:
        self._table = table
        self._cluster = cluster
        self._interval_ms = interval_ms
        self._written_at_ms: int | None = None

    def write_if_due(self, decider: Decider, now: Moment) -> bool:
        """Write the buckets as they are after the last batch, if the interval has passed. True if it wrote them.

        Call it at the start of a batch, before the batch changes any bucket. The id of the last batch guards the rows,
        so a snapshot that is stored already is skipped.

        The engine continues from what was written. A bucket that has become full again still has its last refill time.
        Because of that time, a lower bound or late usage changes it in another way than a new bucket. The snapshot does
        not have full buckets. So the engine forgets them here as well; otherwise it would decide differently from an
        engine after a restart. If the snapshot is skipped, the engine keeps its buckets: it has begun with the stored
        snapshot, and a bucket that is full now may not have been full under the bounds of that time.
        """
        last = decider.last
        if last.batch_id < 0:
            return False
        # The first batch of a driver writes a snapshot at once. Otherwise drivers that live for less than an interval
        # would leave more and more usage for the next one to read.
        if self._written_at_ms is not None and now.steady_ms - self._written_at_ms < self._interval_ms:
            return False
        self._written_at_ms = now.steady_ms
        buckets, quotas = decider.buckets()
        at = {name: value for name, value in asdict(last).items() if name not in _VERSIONS}
        placeholder = [{**_PLACEHOLDER, "refilled_at_ms": last.evaluated_at_ms}]
        stored = buckets if buckets.num_rows else pa.Table.from_pylist(placeholder)
        rows = conform(stored, SensorStateRow, cluster=self._cluster, **at)
        is_new = self._table.append(rows, {last.query_id: last.batch_id}, {})
        failpoint("sensor_state.appended")
        if is_new:
            decider.restore_buckets(buckets, quotas)
        return is_new

    def newest(self) -> tuple[Evaluation, pa.Table] | None:
        """The newest snapshot: the batch after which it was taken, and its buckets (columns of `engine.buckets`)."""
        rows = newest_rows(self._table)
        if not rows.num_rows:
            return None
        names = ["time_epoch", "evaluated_at_ms", "batch_id", "query_id"]
        evaluations = [Evaluation(quota_version=-1, **row) for row in rows.group_by(names).aggregate([]).to_pylist()]
        newest = max(evaluations, key=lambda one: one.order)
        own = (pc.field("batch_id") == newest.batch_id) & (pc.field("query_id") == newest.query_id)
        return newest, of_sensors_with_parts(rows.filter(own))


_EVERY_SECONDS: Final = 1.0
_IN_A_STORE_SECONDS: Final = 10.0  # each replacement is some requests there
_RESTS: Final = 19
"""The rest after a step is so much longer than the step: it takes a twentieth of the time of one core at most."""
_CLEANED_EVERY_MS: Final = 60_000


class RatesTable:
    """Replaces `rates`, how near every sensor is to its bound, again and again; for one thread.

    Nothing waits for it, and it decides nothing.

    A replacement that fails is logged and counted; the next one has newer rates. A driver that was fenced replaces
    nothing. Replaced files go two minutes later, by the same thread: no other commits race with the replacements.

    * `held`: Gives `ThrottlePurgatory.held_until`.
    """

    def __init__(
        self, writer: TableWriter, uri: str, cluster: str, decider: Decider, held: Callable[[], pa.Table], clock: Clock
    ) -> None:
        self._writer = writer
        self._uri = uri
        self._cluster = cluster
        self._decider = decider
        self._held = held
        self._clock = clock
        self._written: tuple[Evaluation, pa.Table] | None = None
        self._cleaned_at_ms = clock.now().steady_ms
        self.rows = pa.Table.from_batches([], COLUMNS)
        """The newest rows, of `quota.current_rates.COLUMNS`. For any thread."""
        self.failures = 0
        """How many replacements have failed."""

    def step(self) -> float:
        """Replace the rows if anything is new; returns for how many seconds to rest."""
        began, held, last = self._clock.now(), self._held(), self._decider.last
        if last.batch_id >= 0 and self._written != (last, held):
            seen, found = self._decider.current_rates(held)
            self.rows = found.rows
            self._replace(seen, found)
            self._written = seen, held
        if began.steady_ms - self._cleaned_at_ms >= _CLEANED_EVERY_MS:
            self._cleaned_at_ms = began.steady_ms
            with log_failures(log, "upkeep of rates"):
                clean(self._uri)
        took_seconds = (self._clock.now().steady_ms - began.steady_ms) / 1000
        return max(_EVERY_SECONDS if is_local(self._uri) else _IN_A_STORE_SECONDS, _RESTS * took_seconds)

    def _replace(self, seen: Evaluation, found: CurrentRates) -> None:
        facts: dict[str, str | int] = {
            "query_id": seen.query_id,
            "batch_id": seen.batch_id,
            "time_epoch": seen.time_epoch,
            "as_of_ms": seen.evaluated_at_ms,
        }
        totals = {name: getattr(found, name) for name in TOTALS}
        try:
            rows = conform(found.rows, RatesRow, cluster=self._cluster, **facts)
            self._writer.replace(rows, {name: str(value) for name, value in (facts | totals).items()})
        except (PipelineError, DeltaError, OSError) as exc:
            self.failures += 1
            log.warning("rates were not replaced, the next ones will be newer: %s", first_line(exc))


class DriverEpoch:
    """The epoch that this process has raised last. With it a restart in this process differs from another driver.

    A driver that was fenced must not take over again by a restart in its process. Otherwise two drivers would fence
    each other for ever.
    """

    def __init__(self) -> None:
        self._raised: int | None = None

    def raise_in(self, writers: Mapping[str, TableWriter], job: str) -> None:
        """Take tables over: every one gets the new epoch before any is written.

        So a driver that still runs elsewhere is refused at its next commit, whichever table that is for.

        Raises:
            Conflict: another driver has raised the epoch after this process did.
        """
        recorded = {name: writer.recorded_version(job) or 0 for name, writer in writers.items()}
        table = max(recorded, key=lambda name: recorded[name])
        if self._raised is not None:
            checked_epoch(table, self._raised, recorded[table])
        self._raised = 1 + recorded[table]
        for writer in writers.values():
            writer.raise_epoch(self._raised)


class JobTables:
    """Guarded writers of all tables the job writes; it is their only writer.

    To open them writes nothing. `DriverEpoch.raise_in` comes before the first append.

    * `open_writer`: Opens the writer of a table by its name, epoch not yet raised.
    """

    def __init__(
        self, open_writer: Callable[[str], TableWriter], job: str, cluster: str, sensor_state_interval_ms: int
    ) -> None:
        self.job, self.cluster = job, cluster
        self.writers = writers = {name: open_writer(name) for name in WRITTEN_BY_THE_JOB}
        self.dead_letters, self.usage = writers["dead_letters"], writers["usage"]
        self.decisions, self.batches = writers["decisions"], writers["batches"]
        self.throttle_events = Outbox(writers["throttle_events"], job)
        self.sensor_state = SensorStateTable(writers["sensor_state"], cluster, sensor_state_interval_ms)

    def append_outcome(self, outcome: Outcome) -> None:
        """Append the decisions of a batch, then its facts: a batch with a row in `batches` has all of its decisions.

        It may be repeated after a failure or by a later start, and appends nothing twice.
        """
        facts = outcome.facts
        decisions = conform(outcome.decided.decisions, DecisionRow, cluster=self.cluster, **asdict(facts.evaluation))
        self.decisions.append(decisions, facts.versions, {})
        failpoint("decisions.appended")
        self.batches.append(facts.to_row(self.cluster), facts.versions, facts.to_metadata())
        failpoint("batches.appended")


class RollUps:
    """The roll-ups of one job, written one after the other; for one thread. Nothing is read before the first step."""

    def __init__(self, settings: TablesSettings, tables: JobTables, quotas: QuotaTable) -> None:
        usage, events = (table_uri(settings.root, name) for name in ("usage", "throttle_events"))
        job, writers = tables.job, tables.writers
        self._of_usage = [
            UsageRoller(BY_SECOND, usage, writers["usage_by_second"], job),
            UsageRoller(BY_MINUTE, usage, writers["usage_by_minute"], job),
        ]
        self._throttles = ThrottleByMinute(events, writers["throttle_by_minute"], job, owners_in(quotas))

    @property
    def written_until_ms(self) -> int:
        """All usage evaluated before this instant is in every roll-up of usage. 0 before the first step."""
        return min(roller.written_until_ms for roller in self._of_usage)

    def step(self) -> None:
        """Write what is complete. Raises nothing; what fails is tried again at the next step."""
        for roller in self._of_usage:
            roller.step()
        self._throttles.step()
