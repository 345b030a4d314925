"""The facts of a micro-batch: in the same commit as its usage, and as a row of `batches`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

import pyarrow as pa

from pipeline.settings.model import EngineSettings
from quota.replay import Evaluation
from schemas.arrow import conform
from schemas.rows import BatchRow

METADATA_KEY: Final = "kquota.batch"


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

    @property
    def versions(self) -> dict[str, int]:
        """The version that guards each of its commits: a batch that is run again writes nothing twice."""
        return {self.evaluation.query_id: self.evaluation.batch_id}

    @property
    def age_ms(self) -> int:
        """How old the usage was when it was collected, by stored times: publishing and debts go by it, and replays."""
        return self.processed_at_ms - self.evaluation.evaluated_at_ms

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
