"""One row of `usage`: what a client used in one sample window, as one batch saw it."""

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
    """The aggregate of a batch per sample window and client: the write-ahead log of the rates."""

    batch_id: Number = Field(description="The micro-batch that wrote the row.")
    sample_start_ms: EpochMs = Field(description="Start of the sample window, inclusive.")
    sample_start: Instant = Field(description="`sample_start_ms` as a timestamp.")
    broker_id: Name = Field(description='The broker; "" if not known.')
    user: Name = Field(description="The user.")
    client_id: Name = Field(description='The client-id; "" if the client has none.')
    produced_bytes: Bytes | None = Field(description="Sum of produced bytes; null = no produce request.")
    fetched_bytes: Bytes | None = Field(description="Sum of fetched bytes; null = no fetch request.")
    io_time_ns: DurationNs | None = Field(description="Sum of request handler time; null = not measured.")
    network_time_ns: DurationNs | None = Field(description="Sum of network thread time; null = not measured.")
    exempt_time_ns: DurationNs | None = Field(description="Sum of time of exempt requests; never in a rate.")
    request_count: Count = Field(description="Sum of requests.")
    last_event_ms: EpochMs = Field(description="The newest event time of the row.")
    evaluated_at_ms: EpochMs = Field(description="The instant the batch is evaluated at, by its data.")
    quota_version: Number = Field(description="Version of the quota table the batch is decided with.")
    date: Day = Field(description="UTC day of `sample_start_ms`; the partition.")
