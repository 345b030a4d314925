"""What a micro-batch is told of the settings."""

import json
from dataclasses import dataclass
from typing import Self

from pipeline.settings.model import Settings


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What of the settings a batch needs.

    Attributes:
        cluster: Written to every row.
        ring_ms: Span of the rate's sample windows, N · w; older events are late.
        max_decision_age_ms: A batch whose time lies further back publishes nothing.
        engine_settings: The engine's settings as a JSON object, for the record.
    """

    cluster: str
    ring_ms: int
    max_decision_age_ms: int
    engine_settings: str

    @classmethod
    def from_settings(cls, settings: Settings, cluster: str) -> Self:
        """The rules of a job's batches in one cluster."""
        return cls(
            cluster=cluster,
            ring_ms=settings.engine.num_samples * settings.engine.sample_window_ms,
            max_decision_age_ms=settings.stream.max_decision_age_ms,
            engine_settings=json.dumps(settings.engine.model_dump(mode="json"), separators=(",", ":")),
        )
