"""A row of `throttle_events`: a record of the throttle topic, stored before it is published."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from schemas.columns import (
    TIME_EPOCH,
    Day,
    DurationMs,
    EpochMs,
    Instant,
    Name,
    Number,
    PipelineRow,
    QuotaTypeName,
    Rate,
    Tokens,
)
from schemas.decision_id import decision_id
from schemas.throttle_record import SCHEMA_VERSION, Action, Cause, ThrottleRecord, Verb, verb_of


class ThrottleEventRow(PipelineRow):
    """The outbox: every record that is published, by a batch or by a look, in the order of `publish_seq`."""

    batch_id: Number = Field(description="The last micro-batch whose usage the record is based on.")
    time_epoch: Number | None = TIME_EPOCH
    evaluated_at_ms: EpochMs = Field(description="The instant the batch or the look was evaluated at.")
    evaluated_at: Instant = Field(description="`evaluated_at_ms` as a timestamp.")
    publish_seq: Number = Field(description="Position among all records of the job; no gaps.")
    action: Action = Field(description="`throttle` or `release`.")
    cause: Cause = Field(description="Why the record was published.")
    broker_id: Name = Field(description='The broker to which the throttle applies; "" for the whole cluster.')
    user: Name = Field(description="The user.")
    client_id: Name = Field(description="The client-id.")
    quota_type: QuotaTypeName = Field(description="The quota that applies.")
    throttle_time_ms: DurationMs = Field(description="How long to wait, from the instant at which the row was written.")
    throttled_until_ms: EpochMs = Field(description="The end of the throttle, exclusive, as wall-clock time.")
    throttled_until: Instant = Field(description="`throttled_until_ms` as a timestamp.")
    sensor_user: Name = Field(description='User part of the sensor; "" if it is not part of it.')
    sensor_client_id: Name = Field(description='Client-id part of the sensor; "" if it is not part of it.')
    observed: Rate = Field(description="O, the rate over the window.")
    bound: Rate | None = Field(description="T, the quota; null if no bound is left.")
    window_ms: DurationMs = Field(description="W, the span the rate was measured over.")
    tokens: Tokens | None = Field(description="Level of the sensor's bucket; below 0 it is a debt; null for no bucket.")
    owed_ms: DurationMs = Field(description="How much longer the client must wait, as seen when it was decided.")
    decision_id: Name = Field(description="The decision that began the throttle.")
    quota_version: Number = Field(description="Version of the quota table.")
    schema_version: Number = Field(default=SCHEMA_VERSION, description="Version of the record's schema.")
    due_ms: EpochMs | None = Field(description="When the look was due; null for a record of a batch.")
    lateness_ms: DurationMs | None = Field(
        description="How long after `due_ms` the purgatory handed it out; null for a record of a batch."
    )
    date: Day = Field(description="UTC day of `evaluated_at_ms`; the partition.")

    def to_record(self) -> ThrottleRecord:
        """The topic record that this row stores."""
        return stored_record(self.__dict__)


def stored_record(row: Mapping[str, Any]) -> ThrottleRecord:
    """The topic record of a stored row. It is built from stored values alone, so a second run publishes the same bytes.

    Args:
        row: the columns of `ThrottleEventRow`, as `pa.Table.to_pylist` returns them. They were validated when the row
            was written. They are not validated again, because this is on the path from decision to record.
    """
    values = {name: row[name] for name in ThrottleRecord.model_fields if name != "sensor"}
    return ThrottleRecord.model_construct(sensor=(row["sensor_user"], row["sensor_client_id"]), **values)


def written_ms(row: Mapping[str, Any]) -> int:
    """When a stored record was written, by the driver's wall clock: where its slice begins.

    Args:
        row: of the columns of `ThrottleEventRow` at least `throttled_until_ms` and `throttle_time_ms`.
    """
    return int(row["throttled_until_ms"] - row["throttle_time_ms"])


def verb(row: Mapping[str, Any]) -> Verb:
    """What a stored record does: see `verb_of`.

    Args:
        row: the columns of `ThrottleEventRow`.
    """
    return verb_of(row["action"], row["cause"], is_extension(row))


def is_extension(row: Mapping[str, Any]) -> bool:
    """Whether a stored record makes a running throttle longer: a violation under the id of an earlier decision.

    Args:
        row: the columns of `ThrottleEventRow`.
    """
    if row["cause"] != "violation":
        return False
    own_id = decision_id(
        **{
            name: row[name]
            for name in ("cluster", "query_id", "batch_id", "broker_id", "user", "client_id", "quota_type")
        }
    )
    return bool(row["decision_id"] != own_id)
