"""The facts of a micro-batch: in the same commit as its usage, and as a row of `batches`.

**Gaps.** A client that was not asked to wait in time shall not wait for an outage of the job. Usage of a gap leads to
no larger debt than one burst. It is usage that is older than `max_decision_age_ms` when its batch is collected, and
newer than what the batch before could answer. So usage of one broker that is always late is no gap: the batch before
was collected after it. A gap goes on, over many batches, until the first batch without such usage. A job without a
batch before could answer nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

import pyarrow as pa

from pipeline.settings.model import EngineSettings
from quota.arrays import Flags, Ints
from quota.replay import Evaluation
from schemas.arrow import conform
from schemas.rows import BatchRow

METADATA_KEY: Final = "kquota.batch"


def in_gap(last_event_ms: Ints, processed_at_ms: int, answered_until_ms: int, max_decision_age_ms: int) -> Flags:
    """Which rows are usage of a gap, by the time of their last event; neither limit is one itself.

    Args:
        processed_at_ms: When the batch was collected.
        answered_until_ms: Of the batch before: see `BatchFacts`; 0 without one.
    """
    is_old = last_event_ms < processed_at_ms - max_decision_age_ms
    return is_old & (last_event_ms > answered_until_ms)


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
        gap_since_ms: Until when, by the driver's clock, usage could be answered before the gap that the batch has usage
            of; see `in_gap`. None if it has none.
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

    @property
    def versions(self) -> dict[str, int]:
        """The version that guards each of its commits: a batch that is run again writes nothing twice."""
        return {self.evaluation.query_id: self.evaluation.batch_id}

    @property
    def age_ms(self) -> int:
        """How old the usage was when it was collected, by stored times: publishing goes by it, and replays."""
        return self.processed_at_ms - self.evaluation.evaluated_at_ms

    @property
    def answered_until_ms(self) -> int:
        """Until when usage could be answered. In the next batch usage after it may be of a gap."""
        return self.processed_at_ms if self.gap_since_ms is None else self.gap_since_ms

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
