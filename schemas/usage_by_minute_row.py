"""A row of `usage_by_minute`: what a client used of a broker in one minute, or a later addition to that."""

from pydantic import Field

from schemas.columns import Bytes, Count, Day, DurationNs, EpochMs, Instant, Name, Row


class UsageByMinuteRow(Row):
    """The roll-up of `usage` for dashboards and reports. Usage that came late is a row of its own: sum the rows."""

    minute_start_ms: EpochMs = Field(description="Start of the minute, inclusive.")
    minute_start: Instant = Field(description="`minute_start_ms` as a timestamp.")
    cluster: Name = Field(min_length=1, description="The Kafka cluster: its id, or the name that was set for it.")
    broker_id: Name = Field(description='The broker; "" if not known.')
    user: Name = Field(description="The user.")
    client_id: Name = Field(description='The client-id; "" if the client has none.')
    produced_bytes: Bytes | None = Field(description="Sum of produced bytes; null if there was no produce request.")
    fetched_bytes: Bytes | None = Field(description="Sum of fetched bytes; null if there was no fetch request.")
    io_time_ns: DurationNs | None = Field(description="Sum of request handler time; null if it was not measured.")
    network_time_ns: DurationNs | None = Field(description="Sum of network thread time; null if it was not measured.")
    exempt_time_ns: DurationNs | None = Field(description="Sum of the time of exempt requests. It is in no rate.")
    request_count: Count = Field(description="Sum of requests.")
    last_event_ms: EpochMs = Field(description="The newest event time among them.")
    date: Day = Field(description="UTC day of `minute_start_ms`; the partition.")
