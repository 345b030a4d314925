"""A row of `usage_by_minute`: what a client used of a broker in one minute, or a later addition to that."""

from pydantic import Field

from schemas.columns import Day, EpochMs, Instant, Name, Row
from schemas.usage_sums import UsageSums


class _Minute(Row):
    minute_start_ms: EpochMs = Field(description="Start of the minute, inclusive.")
    minute_start: Instant = Field(description="`minute_start_ms` as a timestamp.")
    cluster: Name = Field(min_length=1, description="The Kafka cluster: its id, or the name that was set for it.")


class UsageByMinuteRow(UsageSums, _Minute):
    """The roll-up of `usage` for dashboards and reports. Usage that came late is a row of its own: sum the rows."""

    last_event_ms: EpochMs = Field(description="The newest event time among them.")
    date: Day = Field(description="UTC day of `minute_start_ms`; the partition.")
