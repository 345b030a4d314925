"""A row of `throttle_by_minute`: how long a client was held in one minute, or a later addition to that."""

from pydantic import Field

from schemas.columns import Count, Day, DurationMs, EpochMs, Instant, Name, QuotaTypeName, Row, Text


class ThrottleByMinuteRow(Row):
    """The roll-up of `throttle_events` for dashboards and reports. A minute may have several rows: sum them."""

    minute_start_ms: EpochMs = Field(description="Start of the minute, inclusive, as wall-clock time.")
    minute_start: Instant = Field(description="`minute_start_ms` as a timestamp.")
    cluster: Name = Field(min_length=1, description="The Kafka cluster: its id, or the name that was set for it.")
    broker_id: Name = Field(description='The broker to which the throttle applies; "" for the whole cluster.')
    user: Name = Field(description="The user.")
    client_id: Name = Field(description='The client-id; "" if the client has none.')
    quota_type: QuotaTypeName = Field(description="The quota for which the client was held.")
    owner: Text | None = Field(
        description="Who was responsible: the owner of the most specific quota row that covers the client and names "
        "one, in the version of the quota table behind the record; null if none does."
    )
    held_ms: DurationMs = Field(
        ge=0, description="How long the client was held within the minute: at most 60 000, summed over the rows."
    )
    throttle_count: Count = Field(ge=0, description="Throttles that began in the minute.")
    renewal_count: Count = Field(
        ge=0, description="Records of the minute that gave a running throttle another end: extended, renewed, edited."
    )
    date: Day = Field(description="UTC day of `minute_start_ms`; the partition.")
