"""A row of `batches`: the facts of one micro-batch."""

from pydantic import Field

from schemas.columns import TIME_EPOCH, Count, Day, EpochMs, Instant, Number, PipelineRow, Text


class BatchRow(PipelineRow):
    """What a batch read and when, its quotas and settings, and how many of its elements were used or refused."""

    batch_id: Number = Field(description="The micro-batch.")
    time_epoch: Number | None = TIME_EPOCH
    evaluated_at_ms: EpochMs = Field(description="The instant it was evaluated at, in event time.")
    evaluated_at: Instant = Field(description="`evaluated_at_ms` as a timestamp.")
    processed_at_ms: EpochMs = Field(description="When it was collected, by the driver's wall clock.")
    start_offsets: Text = Field(description="First offset of each partition, inclusive: JSON as Spark prints it.")
    end_offsets: Text = Field(description="End offset of each partition, exclusive: JSON as Spark prints it.")
    quota_version: Number = Field(description="Version of the quota table it was decided with.")
    engine_settings: Text = Field(description="The engine's settings, as a JSON object.")
    good_count: Count = Field(description="Events that were used, late and clamped ones included.")
    late_count: Count = Field(description="Events older than the windows of the rate: in `usage` and bucket only.")
    clamped_count: Count = Field(
        description="Events whose time was set back to their append time or to the driver's clock."
    )
    ignored_count: Count = Field(description="Records without events: null values and empty arrays.")
    dead_count: Count = Field(
        description="Elements and records that were refused, including those without a row in `dead_letters`."
    )
    date: Day = Field(description="UTC day of `evaluated_at_ms`; the partition.")
