"""A row of `usage_by_second`: what a client used of a broker in one second, summed over all batches."""

from pydantic import Field

from schemas.columns import Bytes, Count, Day, DurationNs, EpochMs, Instant, Name, Row


class UsageBySecondRow(Row):
    """The roll-up of `usage`: one row per second, broker and client. What-if replays it."""

    second_start_ms: EpochMs = Field(description="Start of the second, inclusive.")
    second_start: Instant = Field(description="`second_start_ms` as a timestamp.")
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
    last_event_ms: EpochMs = Field(description="The newest event time of the second.")
    date: Day = Field(description="UTC day of `second_start_ms`; the partition.")
