"""The facts of a micro-batch: in the same commit as its usage, and as a row of `batches`.

**Gaps.** A client that was not asked to wait in time shall not wait for an outage of the job. Usage of a gap leads to
no larger debt than one burst. It is usage that is older than `max_decision_age_ms` when its batch is collected, and
that happened after the batch before was collected. So usage of one broker that is always late is of no gap. The next
batches may still have usage of that time: it is of the gap, too, until the first batch without any. A job without a
batch before could answer nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from pipeline.settings.model import EngineSettings
from quota.arrays import Flags, Ints
from quota.replay import Evaluation
from schemas.arrow import conform
from schemas.rows import BatchRow

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
