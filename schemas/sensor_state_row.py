"""A row of `sensor_state`: a token bucket that is not full."""

from pydantic import Field

from schemas.columns import TIME_EPOCH, Day, EpochMs, Instant, Name, Number, PipelineRow, QuotaTypeName, Tokens


class SensorStateRow(PipelineRow):
    """The level of one bucket after a batch. The bucket of a sensor without a row in the newest snapshot is full."""

    batch_id: Number = Field(description="The last micro-batch that the level includes.")
    time_epoch: Number | None = TIME_EPOCH
    evaluated_at_ms: EpochMs = Field(description="The instant that batch was evaluated at.")
    evaluated_at: Instant = Field(description="`evaluated_at_ms` as a timestamp.")
    broker_id: Name = Field(description='The broker in broker scope; "" in cluster scope.')
    sensor_user: Name = Field(description='User part of the sensor; "" if it is not part of it.')
    sensor_client_id: Name = Field(description='Client-id part of the sensor; "" if it is not part of it.')
    quota_type: QuotaTypeName = Field(description="The quota the bucket belongs to.")
    tokens: Tokens = Field(description="The level at `refilled_at_ms`; below 0 it is a debt.")
    refilled_at_ms: EpochMs = Field(description="When the bucket was last refilled.")
    date: Day = Field(description="UTC day of `evaluated_at_ms`; the partition.")
