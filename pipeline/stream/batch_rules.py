"""The settings that a micro-batch needs."""

import json
from dataclasses import dataclass
from typing import Self

from pipeline.settings.model import Settings


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The settings that a micro-batch needs.

    Attributes:
        cluster: Written to every row.
        late_after_ms: An event that is this old (or older) when its batch is evaluated is late: see
            `EngineSettings.late_after_ms`.
        max_decision_age_ms: A batch whose time lies further back publishes nothing.
        engine_settings: The engine's settings as a JSON object, stored with every batch.
    """

    cluster: str
    late_after_ms: int
    max_decision_age_ms: int
    engine_settings: str

    @classmethod
    def from_settings(cls, settings: Settings, cluster: str) -> Self:
        """The rules of a job's batches in one cluster."""
        return cls(
            cluster=cluster,
            late_after_ms=settings.engine.late_after_ms,
            max_decision_age_ms=settings.stream.max_decision_age_ms,
            engine_settings=json.dumps(settings.engine.model_dump(mode="json"), separators=(",", ":")),
        )
