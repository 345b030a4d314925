"""A row of `usage`: what a client used in one sample window, as far as one batch saw it."""

from pydantic import Field

from schemas.columns import TIME_EPOCH, Day, EpochMs, Instant, Number, PipelineRow
from schemas.usage_sums import UsageSums


class _Sample(PipelineRow):
    batch_id: Number = Field(description="The micro-batch that wrote the row.")
    sample_start_ms: EpochMs = Field(description="Start of the sample window, inclusive.")
    sample_start: Instant = Field(description="`sample_start_ms` as a timestamp.")


class UsageRow(UsageSums, _Sample):
    """The sums of a batch per sample window and client. This table is the write-ahead log of the rates."""

    last_event_ms: EpochMs = Field(description="The newest event time of the row.")
    time_epoch: Number | None = TIME_EPOCH
    evaluated_at_ms: EpochMs = Field(description="The instant at which the batch is evaluated, in event time.")
    quota_version: Number = Field(description="Version of the quota table with which the batch is decided.")
    date: Day = Field(
        description="UTC day of `evaluated_at_ms`; the partition. Older rows may have that of `sample_start_ms`."
    )
