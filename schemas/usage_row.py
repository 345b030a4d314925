"""A row of `usage`: what a client used in one sample window, as far as one batch saw it."""

from pydantic import Field

from schemas.columns import (
    Bytes,
    Count,
    Day,
    DurationNs,
    EpochMs,
    Instant,
    Name,
    Number,
    PipelineRow,
)


class UsageRow(PipelineRow):
    """The sums of a batch per sample window and client. This table is the write-ahead log of the rates."""

    batch_id: Number = Field(description="The micro-batch that wrote the row.")
    sample_start_ms: EpochMs = Field(description="Start of the sample window, inclusive.")
    sample_start: Instant = Field(description="`sample_start_ms` as a timestamp.")
    broker_id: Name = Field(description='The broker; "" if not known.')
    user: Name = Field(description="The user.")
    client_id: Name = Field(description='The client-id; "" if the client has none.')
    produced_bytes: Bytes | None = Field(description="Sum of produced bytes; null if there was no produce request.")
    fetched_bytes: Bytes | None = Field(description="Sum of fetched bytes; null if there was no fetch request.")
    io_time_ns: DurationNs | None = Field(description="Sum of request handler time; null if it was not measured.")
    network_time_ns: DurationNs | None = Field(description="Sum of network thread time; null if it was not measured.")
    exempt_time_ns: DurationNs | None = Field(description="Sum of the time of exempt requests. It is in no rate.")
    request_count: Count = Field(description="Sum of requests.")
    last_event_ms: EpochMs = Field(description="The newest event time of the row.")
    evaluated_at_ms: EpochMs = Field(description="The instant at which the batch is evaluated, in event time.")
    quota_version: Number = Field(description="Version of the quota table with which the batch is decided.")
    date: Day = Field(
        description="UTC day of `evaluated_at_ms`; the partition. Older rows may have that of `sample_start_ms`."
    )
