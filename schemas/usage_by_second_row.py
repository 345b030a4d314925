"""One row of `usage_by_second`: what a client used of a broker in one second, however many batches saw it."""

from pydantic import Field

from schemas.columns import Bytes, Count, Day, DurationNs, EpochMs, Instant, Name, Row


class UsageBySecondRow(Row):
    """The roll-up of `usage`: one row a second, broker and client; what dashboards, what-if and chargeback read."""

    second_start_ms: EpochMs = Field(description="Start of the second, inclusive.")
    second_start: Instant = Field(description="`second_start_ms` as a timestamp.")
    cluster: Name = Field(min_length=1, description="The Kafka cluster, by its id or the name set for it.")
    broker_id: Name = Field(description='The broker; "" if not known.')
    user: Name = Field(description="The user.")
    client_id: Name = Field(description='The client-id; "" if the client has none.')
    produced_bytes: Bytes | None = Field(description="Sum of produced bytes; null = no produce request.")
    fetched_bytes: Bytes | None = Field(description="Sum of fetched bytes; null = no fetch request.")
    io_time_ns: DurationNs | None = Field(description="Sum of request handler time; null = not measured.")
    network_time_ns: DurationNs | None = Field(description="Sum of network thread time; null = not measured.")
    exempt_time_ns: DurationNs | None = Field(description="Sum of time of exempt requests; never in a rate.")
    request_count: Count = Field(description="Sum of requests.")
    last_event_ms: EpochMs = Field(description="The newest event time of the second.")
    date: Day = Field(description="UTC day of `second_start_ms`; the partition.")
