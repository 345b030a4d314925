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
        sample_window_ms: Span of a sample window.
        clock_tolerance_ms: An event may be this far ahead of the driver's clock when its batch is collected; if it is
            further ahead, its time is set back.
        late_after_ms: An event that is this old (or older) when its batch is evaluated is late: see
            `EngineSettings.late_after_ms`.
        max_decision_age_ms: A batch whose time lies further back when it is collected publishes nothing, and charges
            a bucket at most down to what a whole window allows.
        engine_settings: The engine's settings as a JSON object, stored with every batch.
    """

    cluster: str
    sample_window_ms: int
    clock_tolerance_ms: int
    late_after_ms: int
    max_decision_age_ms: int
    engine_settings: str

    @classmethod
    def from_settings(cls, settings: Settings, cluster: str) -> Self:
        """The rules of a job's batches in one cluster."""
        return cls(
            cluster=cluster,
            sample_window_ms=settings.engine.sample_window_ms,
            clock_tolerance_ms=settings.stream.clock_tolerance_ms,
            late_after_ms=settings.engine.late_after_ms,
            max_decision_age_ms=settings.stream.max_decision_age_ms,
            engine_settings=json.dumps(settings.engine.model_dump(mode="json"), separators=(",", ":")),
        )
