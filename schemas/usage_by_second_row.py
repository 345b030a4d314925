"""A row of `usage_by_second`: what a client used of a broker in one second, summed over all batches."""

from pydantic import Field

from schemas.columns import Day, EpochMs, Instant, Name, Row
from schemas.usage_sums import UsageSums


class _Second(Row):
    second_start_ms: EpochMs = Field(description="Start of the second, inclusive.")
    second_start: Instant = Field(description="`second_start_ms` as a timestamp.")
    cluster: Name = Field(min_length=1, description="The Kafka cluster: its id, or the name that was set for it.")


class UsageBySecondRow(UsageSums, _Second):
    """The roll-up of `usage`: one row per second, broker and client. What-if replays it."""

    last_event_ms: EpochMs = Field(description="The newest event time of the second.")
    date: Day = Field(description="UTC day of `second_start_ms`; the partition.")
