"""Rows of the other tables: quotas, batches, buckets that are not full, dead letters, and quotas of the brokers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas import columns as c


class QuotaRow(c.Row):
    """The quota of one entity: a user, a client-id, or a pair of them; each is a name or the default."""

    user: c.Name = Field(description='The user; "" if it is not part of the entity; `<default>` for the default user.')
    client_id: c.Name = Field(
        description='The client-id; "" if it is not part of the entity; `<default>` for the default client-id.'
    )
    producer_byte_rate: c.ByteRate | None = Field(
        default=None, gt=0, description="Bound on produced bytes; null for none at this level."
    )
    consumer_byte_rate: c.ByteRate | None = Field(
        default=None, gt=0, description="Bound on fetched bytes; null for none at this level."
    )
    request_percentage: c.Percentage | None = Field(
        default=None,
        gt=0,
        description="Bound on request time, io and network threads together; null for none at this level.",
    )
    mode: Annotated[Literal["enforce", "shadow", "exempt"], c.Unit("mode")] = Field(
        default="enforce",
        description="`enforce`: throttle. `shadow`: only record whom it would throttle. `exempt`: match, no bounds.",
    )
    owner: c.Text | None = Field(default=None, description="Who is responsible for the quota.")
    note: c.Text | None = Field(default=None, description="Why the quota is what it is.")

    @model_validator(mode="after")
    def _names_an_entity(self) -> Self:
        if not self.user and not self.client_id:
            message = "neither a user nor a client-id is given"
            raise ValueError(message)
        return self


class BatchRow(c.PipelineRow):
    """What a batch read and when, its quotas and settings, and how many of its elements were used or refused."""

    batch_id: c.Number = Field(description="The micro-batch.")
    time_epoch: c.Number | None = c.TIME_EPOCH
    evaluated_at_ms: c.EpochMs = Field(description="The instant it was evaluated at, in event time.")
    evaluated_at: c.Instant = Field(description="`evaluated_at_ms` as a timestamp.")
    processed_at_ms: c.EpochMs = Field(description="When it was collected, by the driver's wall clock.")
    start_offsets: c.Text = Field(description="First offset of each partition, inclusive: JSON as Spark prints it.")
    end_offsets: c.Text = Field(description="End offset of each partition, exclusive: JSON as Spark prints it.")
    quota_version: c.Number = Field(description="Version of the quota table it was decided with.")
    engine_settings: c.Text = Field(description="The engine's settings, as a JSON object.")
    good_count: c.Count = Field(description="Events that were used, late and clamped ones included.")
    late_count: c.Count = Field(description="Events older than the windows of the rate: in `usage` and bucket only.")
    clamped_count: c.Count = Field(
        description="Events whose time was set back to their append time or to the driver's clock."
    )
    ignored_count: c.Count = Field(description="Records without events: null values and empty arrays.")
    dead_count: c.Count = Field(
        description="Elements and records that were refused, including those without a row in `dead_letters`."
    )
    date: c.Day = Field(description="UTC day of `evaluated_at_ms`; the partition.")


class SensorStateRow(c.PipelineRow):
    """The level of one bucket after a batch. The bucket of a sensor without a row in the newest snapshot is full."""

    batch_id: c.Number = Field(description="The last micro-batch that the level includes.")
    time_epoch: c.Number | None = c.TIME_EPOCH
    evaluated_at_ms: c.EpochMs = Field(description="The instant that batch was evaluated at.")
    evaluated_at: c.Instant = Field(description="`evaluated_at_ms` as a timestamp.")
    broker_id: c.Name = Field(description='The broker in broker scope; "" in cluster scope.')
    sensor_user: c.Name = Field(description='User part of the sensor; "" if it is not part of it.')
    sensor_client_id: c.Name = Field(description='Client-id part of the sensor; "" if it is not part of it.')
    quota_type: c.QuotaTypeName = Field(description="The quota the bucket belongs to.")
    tokens: c.Tokens = Field(description="The level at `refilled_at_ms`; below 0 it is a debt.")
    refilled_at_ms: c.EpochMs = Field(description="When the bucket was last refilled.")
    date: c.Day = Field(description="UTC day of `evaluated_at_ms`; the partition.")


class DeadLetterRow(c.PipelineRow):
    """A record that was refused, or one element of its array, with the cause and its place.

    At most `stream.dead_letters_per_message` elements of one record have a row. The cause of the last one says how many
    more were refused. `batches.dead_count` counts all of them.
    """

    batch_id: c.Number = Field(description="The micro-batch that read it.")
    appended_at_ms: c.EpochMs = Field(description="When the broker appended the record.")
    appended_at: c.Instant = Field(description="`appended_at_ms` as a timestamp.")
    topic: c.Name = Field(description="Topic of the record.")
    partition: c.Number = Field(description="Partition of the record.")
    offset: c.Number = Field(description="Offset of the record.")
    element_index: c.Number | None = Field(description="Position in the array, from 0; null for the whole record.")
    cause: c.Text = Field(description="What is wrong: the field, and the rule that it breaks.")
    value: c.Raw = Field(description="The value of the record, unchanged; for an element its own text.")
    date: c.Day = Field(description="UTC day of `appended_at_ms`; the partition.")


class BrokerQuotaRow(c.Row):
    """One step of one change of one value that all brokers hold.

    A change has two rows: `pending` before the brokers are asked, and then what they answered. The newest one that was
    applied says what kquota owns at an entity and quota type, so a sync that was killed finds everything here.
    """

    cluster: c.Name = c.CLUSTER
    sync_epoch: c.Number = Field(description="Which start of the sync wrote the row, counted up.")
    seq: c.Number = Field(description="Position among all rows of the table, counted up.")
    at_ms: c.EpochMs = Field(description="When it was written, by the sync's wall clock.")
    at: c.Instant = Field(description="`at_ms` as a timestamp.")
    user: c.Name = Field(description='User of the entity, `<default>`, or "" if it is not part of it.')
    client_id: c.Name = Field(description='Client-id of the entity, `<default>`, or "" if it is not part of it.')
    quota_type: c.QuotaTypeName = Field(description="The quota that is changed.")
    old: c.Rate | None = Field(description="The value until then; null for none.")
    new: c.Rate | None = Field(description="The value from then on; null for none.")
    bound: c.Rate | None = Field(description="T, the quota of the entity; null if it has none any more.")
    demand: c.RateByName = Field(
        description="Broker-id to what was wanted there; null where it counted as unbounded. Empty without a level."
    )
    cause: c.Text = Field(
        description="Why: the cause of a level, or added, edited, removed, given_back, adopted, restored, metering."
    )
    result: c.Text = Field(description="`pending`, `applied`, `not applied`, or `refused: ` and why.")
    before: c.Rate | None = Field(description="What stood there before kquota's first change; null for none.")
    kind: c.Text | None = Field(
        description="What the value is: `level`, `own`, `bound`, `unbounded` or `metering`; null if it goes and is "
        "kquota's no longer."
    )
    over_at_ms: c.EpochMs | None = Field(
        description="When the brokers were last asked for more than T together; null for never, or not known."
    )
    date: c.Day = Field(description="UTC day of `at_ms`; the partition.")
