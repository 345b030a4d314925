"""What a verdict rests on and no table tells: the job's settings, and how exactly its clocks agree."""

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the job under test. The defaults are the job's defaults.

    Attributes:
        min_hold_ms: What is published holds its client at least so much longer. A throttle at its end is renewed if
            more than this is owed, else released.
        least_lead_ms: A look is due at least this long before the end.
        most_lead_ms: And at most this long; None: not known, for the lead grows with the measured publish lag.
        max_decision_age_ms: A batch that is older than this when it is published publishes nothing.
        sensor_state_interval_ms: A snapshot of the buckets is due when this much time has passed since the last one.
        clock_tolerance_ms: Event times are limited to the driver's clock at collection plus this.
        max_record_bytes: `max.message.bytes` of the throttle topic. A larger record is stored and passed over.
        clock_slack_ms: How far two readings of the driver's clocks may differ.
        longest_append_ms: How long a batch may take from its collection to its decision.
        longest_publish_ms: And from the check of its age until its records are written.
        longest_take_over_ms: How long a driver may take from its first reading of the clocks until it has taken over.
    """

    min_hold_ms: int = 1_000
    least_lead_ms: int = 1_000
    most_lead_ms: int | None = None
    max_decision_age_ms: int = 10_000
    sensor_state_interval_ms: int = 60_000
    clock_tolerance_ms: int = 2_000
    max_record_bytes: int = 1_048_588
    clock_slack_ms: int = 100
    longest_append_ms: int = 5_000
    longest_publish_ms: int = 30_000
    longest_take_over_ms: int = 30_000

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From a JSON object; what it does not name has its default."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """As a JSON object."""
        return json.dumps(asdict(self))
