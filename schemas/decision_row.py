"""A row of `decisions`: a client that violates a quota, and the throttle time that follows."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.columns import (
    TIME_EPOCH,
    Day,
    DurationMs,
    EpochMs,
    Flag,
    Instant,
    Name,
    Number,
    PipelineRow,
    QuotaTypeName,
    Rate,
    Unit,
)


class DecisionRow(PipelineRow):
    """A violated quota of one client in one batch, with all figures from which its throttle time is computed."""

    batch_id: Number = Field(description="The micro-batch.")
    time_epoch: Number | None = TIME_EPOCH
    evaluated_at_ms: EpochMs = Field(description="The instant it was evaluated at, in event time.")
    evaluated_at: Instant = Field(description="`evaluated_at_ms` as a timestamp.")
    broker_id: Name = Field(description='The broker in broker scope; "" in cluster scope.')
    user: Name = Field(description="The user that sent the usage.")
    client_id: Name = Field(description="The client-id that sent the usage.")
    quota_type: QuotaTypeName = Field(description="The violated quota.")
    observed: Rate = Field(description="O, the rate over the window.")
    bound: Rate = Field(description="T, the quota.")
    window_ms: DurationMs = Field(description="W, the span the rate was measured over.")
    raw_throttle_time_ms: DurationMs = Field(description="X = (O − T) / T · W, rounded, before the cap.")
    max_throttle_time_ms: DurationMs | None = Field(description="The cap; null for none.")
    throttle_time_ms: DurationMs = Field(description="X after the cap.")
    level: Number = Field(ge=1, le=8, description="Which of the 8 levels of quotas matched; 1 is the most specific.")
    sensor_user: Name = Field(description='User part of the sensor; "" if it is not part of it.')
    sensor_client_id: Name = Field(description='Client-id part of the sensor; "" if it is not part of it.')
    mode: Annotated[Literal["enforce", "shadow"], Unit("mode")] = Field(
        description="Of the quota. `shadow`: recorded, never published."
    )
    applied: Flag = Field(description="True for the one quota whose throttle time applies to the client.")
    decision_id: Name = Field(description="The id in the throttle's records.")
    quota_version: Number = Field(description="Version of the quota table.")
    date: Day = Field(description="UTC day of `evaluated_at_ms`; the partition.")
