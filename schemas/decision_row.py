"""One row of `decisions`: a client in violation of a quota, and the throttle time that follows."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.columns import (
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
    """A violated quota of one client in one batch, with all its throttle time is computed from."""

    batch_id: Number = Field(description="The micro-batch.")
    evaluated_at_ms: EpochMs = Field(description="The instant it was evaluated at, by its data.")
    evaluated_at: Instant = Field(description="`evaluated_at_ms` as a timestamp.")
    broker_id: Name = Field(description='The broker in broker scope; "" in cluster scope.')
    user: Name = Field(description="The user that sent the usage.")
    client_id: Name = Field(description="The client-id that sent the usage.")
    quota_type: QuotaTypeName = Field(description="The violated quota.")
    observed: Rate = Field(description="O, the rate over the window.")
    bound: Rate = Field(description="T, the quota.")
    window_ms: DurationMs = Field(description="W, the span the rate was measured over.")
    raw_throttle_time_ms: DurationMs = Field(description="X = (O − T) / T · W, rounded, before the cap.")
    max_throttle_time_ms: DurationMs | None = Field(description="The cap; null = none.")
    throttle_time_ms: DurationMs = Field(description="X, capped.")
    level: Number = Field(ge=1, le=8, description="Which of the 8 levels of quotas matched, 1 = most specific.")
    sensor_user: Name = Field(description='User part of the sensor; "" = not part of it.')
    sensor_client_id: Name = Field(description='Client-id part of the sensor; "" = not part of it.')
    mode: Annotated[Literal["enforce", "shadow"], Unit("mode")] = Field(
        description="`shadow`: recorded, never published."
    )
    applied: Flag = Field(description="True for the one quota whose throttle time holds for the client.")
    decision_id: Name = Field(description="The id that the throttle's records carry.")
    quota_version: Number = Field(description="Version of the quota table.")
    date: Day = Field(description="UTC day of `evaluated_at_ms`; the partition.")
