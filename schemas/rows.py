"""Rows of the other tables: quotas, decisions, batches, buckets, rates, dead letters, and quotas of the brokers."""

from typing import Annotated, Literal, Self

from pydantic import model_validator

from schemas import columns as c


class QuotaRow(c.Row):
    """The quota of one entity: a user, a client-id, or a pair of them; each is a name or the default."""

    user: c.Name = c.field('The user; "" if it is not part of the entity; `<default>` for the default user.')
    client_id: c.Name = c.field(
        'The client-id; "" if it is not part of the entity; `<default>` for the default client-id.'
    )
    producer_byte_rate: c.ByteRate | None = c.field(
        "Bound on produced bytes; null for none at this level.", default=None, gt=0
    )
    consumer_byte_rate: c.ByteRate | None = c.field(
        "Bound on fetched bytes; null for none at this level.", default=None, gt=0
    )
    request_percentage: c.Percentage | None = c.field(
        "Bound on request time, io and network threads together; null for none at this level.", default=None, gt=0
    )
    mode: Annotated[Literal["enforce", "shadow", "exempt"], c.Unit("mode")] = c.field(
        "`enforce`: throttle. `shadow`: only record whom it would throttle. `exempt`: match, no bounds.",
        default="enforce",
    )
    owner: c.Text | None = c.field("Who is responsible for the quota.", default=None)
    note: c.Text | None = c.field("Why the quota is what it is.", default=None)
    forgiven_until_ms: c.EpochMs | None = c.field(
        "When an operator has forgiven the debts of the sensor with these two names as its tags; with the client-id "
        "`<default>` those of each client-id of the user. Null = not lately.",
        default=None,
    )

    @model_validator(mode="after")
    def _names_an_entity(self) -> Self:
        if not self.user and not self.client_id:
            message = "neither a user nor a client-id is given"
            raise ValueError(message)
        return self


class TenantRow(c.Row):
    """A tenant: a team of clients with a bound of its own, and what they may lend one another inside it."""

    tenant: c.Name = c.field("The name of the tenant.", min_length=1)
    user_patterns: c.Names = c.field(
        "Its users: names, or the beginning of names with `*` at the end. The most specific pattern of all tenants "
        "wins: user before client-id, a name before the beginning of one, the longer before the shorter.",
        default=(),
    )
    client_id_patterns: c.Names = c.field("Its client-ids: patterns as of `user_patterns`.", default=())
    producer_byte_rate: c.ByteRate | None = c.field(
        "C, the bound on what its members produce together; null for none.", default=None, gt=0
    )
    consumer_byte_rate: c.ByteRate | None = c.field(
        "C, the bound on what its members fetch together; null for none.", default=None, gt=0
    )
    request_percentage: c.Percentage | None = c.field(
        "C, the bound on the request time of its members together; null for none.", default=None, gt=0
    )
    member_producer_byte_rate: c.ByteRate | None = c.field(
        "T of those clients of one user that have no quota of their own, together; null for a tenth of C.",
        default=None,
        gt=0,
    )
    member_consumer_byte_rate: c.ByteRate | None = c.field("The same for what they fetch.", default=None, gt=0)
    member_request_percentage: c.Percentage | None = c.field("The same for request time.", default=None, gt=0)
    lend: c.Flag = c.field("Whether a member may use more than its own bound while others use less.", default=False)
    ceiling: c.Times | None = c.field(
        "How many times its own bound a member may use at most; null for no limit but C.", default=None, ge=1
    )
    mode: Annotated[Literal["enforce", "shadow"], c.Unit("mode")] = c.field(
        "`enforce`: throttle. `shadow`: only record whom it would throttle.", default="enforce"
    )
    owner: c.Text | None = c.field("Who is responsible for the tenant.", default=None)
    note: c.Text | None = c.field("Why the tenant is what it is.", default=None)


class BatchRow(c.PipelineRow):
    """What a batch read and when, its quotas and settings, and how many of its elements were used or refused."""

    batch_id: c.Number = c.field("The micro-batch.")
    time_epoch: c.Number = c.TIME_EPOCH
    evaluated_at_ms: c.EpochMs = c.field("The instant it was evaluated at, in event time.")
    evaluated_at: c.Instant = c.field("`evaluated_at_ms` as a timestamp.")
    processed_at_ms: c.EpochMs = c.field("When it was collected, by the driver's wall clock.")
    start_offsets: c.Text = c.field("First offset of each partition, inclusive: JSON as Spark prints it.")
    end_offsets: c.Text = c.field("End offset of each partition, exclusive: JSON as Spark prints it.")
    topic_ids: c.Text | None = c.field(
        "Id of each topic of the job (KIP-516), as kafka-topics prints it: JSON. The offsets are those of that usage "
        "topic. Null = not known.",
        default=None,
    )
    quota_version: c.Number = c.field("Version of the quota table it was decided with.")
    tenants_version: c.Number = c.TENANTS_VERSION
    engine_settings: c.Text = c.field("The engine's settings, as a JSON object.")
    good_count: c.Count = c.field("Events that were used, late and clamped ones included.")
    late_count: c.Count = c.field("Events older than the windows of the rate: in `usage` and bucket only.")
    clamped_count: c.Count = c.field("Events whose time was set back to their append time or to the driver's clock.")
    ignored_count: c.Count = c.field("Records without events: null values and empty arrays.")
    dead_count: c.Count = c.field(
        "Elements and records that were refused, including those without a row in `dead_letters`."
    )
    folded_count: c.Count = c.field(
        "Events of client-ids beyond the first 1 000 new ones of their user in an hour; they count as client-id "
        "`<other>`."
    )
    gap_since_ms: c.EpochMs | None = c.field(
        "If the batch has usage of a gap, in which no throttle could be published: since when, by the driver's clock, "
        "in the first batches of a job 0. Null = it has none; a batch that is too old as a whole may have none either.",
        default=None,
    )
    gap_until_ms: c.EpochMs | None = c.field("Until when that gap lasts.", default=None)
    date: c.Day = c.field("UTC day of `evaluated_at_ms`; the partition.")


class SensorStateRow(c.PipelineRow):
    """The level of one bucket after a batch, or of one tenant.

    The bucket of a sensor without a row in the newest snapshot is full, and a tenant without one is at rest.
    """

    batch_id: c.Number = c.field("The last micro-batch that the level includes.")
    time_epoch: c.Number = c.TIME_EPOCH
    evaluated_at_ms: c.EpochMs = c.field("The instant that batch was evaluated at.")
    evaluated_at: c.Instant = c.field("`evaluated_at_ms` as a timestamp.")
    broker_id: c.Name = c.field('The broker in broker scope; "" in cluster scope.')
    sensor_user: c.Name = c.field('User part of the sensor; "" if it is not part of it.')
    sensor_client_id: c.Name = c.field('Client-id part of the sensor; "" if it is not part of it.')
    quota_type: c.QuotaTypeName = c.field("The quota the bucket belongs to.")
    tokens: c.Tokens | None = c.field(
        "The level at `refilled_at_ms`; below 0 it is a debt. Null in the row of a tenant.", default=None
    )
    refilled_at_ms: c.EpochMs = c.field("When the bucket was last refilled; of a tenant when its level was last moved.")
    demanded_at_ms: c.EpochMs | None = c.field(
        "When a member of a tenant last was at its bound, or until when it owes; null for not lately.", default=None
    )
    tenant: c.Name | None = c.field(
        "The row of a tenant has no parts of a sensor. A row with a user is of those clients of the user that have no "
        "quota of their own and that a pattern of client-ids puts into this tenant. Null in all other rows.",
        default=None,
    )
    tenant_level: c.Times | None = c.field(
        "λ of the tenant: how many times its own bound a member may use. Null in the row of a bucket.", default=None
    )
    mode: Annotated[Literal["enforce", "shadow"], c.Unit("mode")] = c.field(
        "The side it is of. Shadow rows are of tenants and their members only: they have no buckets.", default="enforce"
    )
    date: c.Day = c.field("UTC day of `evaluated_at_ms`; the partition.")


class RatesRow(c.PipelineRow):
    """How near a sensor is to its bound now, or what a client uses of it: what the engine that decides sees.

    The table is replaced every second or two. A row of a sensor has `clients`, a row that names a client has
    `own_rate`; a sensor of one `<user, client-id>` alone has both in one row.
    """

    batch_id: c.Number = c.field("The newest micro-batch that the rates include.")
    time_epoch: c.Number = c.TIME_EPOCH
    as_of_ms: c.EpochMs = c.field("The instant that batch was evaluated at: that of the rates.")
    as_of: c.Instant = c.field("`as_of_ms` as a timestamp.")
    broker_id: c.Name = c.field('The broker in broker scope; "" in cluster scope.')
    user: c.Name | None = c.field("The user; null for a sensor of all users.")
    client_id: c.Name | None = c.field("The client-id; null for a sensor of all client-ids.")
    quota_type: c.QuotaTypeName = c.field("The quota.")
    observed: c.Rate = c.field("O, the rate of the sensor; of a client without a bound its own.")
    bound: c.Rate | None = c.field("T, the bound in force; null for none.")
    share: c.Share | None = c.field("O / T; above 1 the quota is violated. Null without a bound.")
    own_rate: c.Rate | None = c.field("What the client itself uses; null for a sensor of several clients.")
    window_ms: c.DurationMs = c.field("W, the span the rates were measured over.")
    clients: c.Count | None = c.field("How many clients with usage share the sensor; null in the row of a client.")
    level: c.Number | None = c.field(
        "The level of the quota, 1 to 8; 9 for a member of a tenant without a quota of its own. Null without a bound."
    )
    sensor_user: c.Name | None = c.field('User part of the sensor; "" if it is not part of it. Null without a bound.')
    sensor_client_id: c.Name | None = c.field(
        'Client-id part of the sensor; "" if it is not part of it. Null without a bound.'
    )
    mode: Annotated[Literal["enforce", "shadow"] | None, c.Unit("mode")] = c.field(
        "The mode of the quota; a shadow quota is seen as if it and every other one were enforced. Null for none."
    )
    tenant: c.Name | None = c.TENANT
    tenant_level: c.Times | None = c.TENANT_LEVEL
    own_bound: c.Rate | None = c.OWN_BOUND
    held_until_ms: c.EpochMs | None = c.field(
        "Until when it is held for this quota, by wall clock; of a sensor the last end of its clients. Null = not held."
    )
    broker_held_share: c.Share | None = c.field(
        "For which part of the last minute the brokers themselves held the client, for all quota types together: that "
        "of the broker that held it longest, 1 at most; of a sensor the largest of its clients. Null = not known.",
        default=None,
    )


class DeadLetterRow(c.PipelineRow):
    """A record that was refused, or one element of its array, with the cause and its place.

    At most 100 elements of one record have a row. The cause of the last one says how many more were refused.
    `batches.dead_count` counts all of them.
    """

    batch_id: c.Number = c.field("The micro-batch that read it.")
    appended_at_ms: c.EpochMs = c.field("When the broker appended the record.")
    appended_at: c.Instant = c.field("`appended_at_ms` as a timestamp.")
    topic: c.Name = c.field("Topic of the record.")
    partition: c.Number = c.field("Partition of the record.")
    offset: c.Number = c.field("Offset of the record.")
    element_index: c.Number | None = c.field("Position in the array, from 0; null for the whole record.")
    cause: c.Text = c.field("What is wrong: the field, and the rule that it breaks.")
    value: c.Raw = c.field("The value of the record, unchanged; for an element its own text.")
    date: c.Day = c.field("UTC day of `appended_at_ms`; the partition.")


class BrokerQuotaRow(c.Row):
    """One step of one change of one value that all brokers hold.

    A change has two rows: `pending` before the brokers are asked, and then what they answered. The newest one that was
    applied says what kquota owns at an entity and quota type, so a sync that was killed finds everything here.
    """

    cluster: c.Name = c.CLUSTER
    sync_epoch: c.Number = c.field("Which start of the sync wrote the row, counted up.")
    seq: c.Number = c.field("Position among all rows of the table, counted up.")
    at_ms: c.EpochMs = c.field("When it was written, by the sync's wall clock.")
    at: c.Instant = c.field("`at_ms` as a timestamp.")
    user: c.Name = c.field('User of the entity, `<default>`, or "" if it is not part of it.')
    client_id: c.Name = c.field('Client-id of the entity, `<default>`, or "" if it is not part of it.')
    quota_type: c.QuotaTypeName = c.field("The quota that is changed.")
    old: c.Rate | None = c.field("The value until then; null for none.")
    new: c.Rate | None = c.field("The value from then on; null for none.")
    bound: c.Rate | None = c.field("T, the quota of the entity; null if it has none any more.")
    demand: c.RateByName = c.field(
        "Broker-id to what was wanted there; null where it counted as unbounded. Empty without a level."
    )
    cause: c.Text = c.field(
        "Why: the cause of a level, or added, edited, removed, given_back, adopted, restored, metering, member."
    )
    result: c.Text = c.field("`pending`, `applied`, `not applied`, or `refused: ` and why.")
    before: c.Rate | None = c.field("What stood there before kquota's first change; null for none.")
    kind: c.Text | None = c.field(
        "What the value is: `level`, `own`, `bound`, `unbounded` or `metering`; null if it goes and is kquota's no "
        "longer."
    )
    over_at_ms: c.EpochMs | None = c.field(
        "When the brokers were last asked for more than T together; null for never, or not known."
    )
    date: c.Day = c.field("UTC day of `at_ms`; the partition.")


# Decisions: a client that violates a quota, and the throttle time that follows, as a row of `decisions`.


class DecisionRow(c.PipelineRow):
    """A violated quota of one client or user in one batch, with the figures from which its throttle time is computed.

    A sensor that is held as a whole has one row without a client-id, and rows of the clients that used it most.
    """

    batch_id: c.Number = c.field("The micro-batch.")
    time_epoch: c.Number = c.TIME_EPOCH
    evaluated_at_ms: c.EpochMs = c.field("The instant it was evaluated at, in event time.")
    evaluated_at: c.Instant = c.field("`evaluated_at_ms` as a timestamp.")
    broker_id: c.Name = c.field('The broker in broker scope; "" in cluster scope.')
    user: c.Name = c.field("The user that sent the usage.")
    client_id: c.Name | None = c.field(
        "The client-id that sent the usage; null in the row of a sensor that is held as a whole: all client-ids of "
        "the user that have no sensor of their own."
    )
    quota_type: c.QuotaTypeName = c.field("The violated quota.")
    observed: c.Rate = c.field("O, the rate over the window.")
    bound: c.Rate = c.field("T, the quota; of a tenant's member the bound in force.")
    window_ms: c.DurationMs = c.field("W, the span the rate was measured over.")
    raw_throttle_time_ms: c.DurationMs = c.field("X = (O − T) / T · W, rounded, before the cap.")
    max_throttle_time_ms: c.DurationMs | None = c.field("The cap; null for none.")
    throttle_time_ms: c.DurationMs = c.field("X, or of a `debt` what is owed, after the cap.")
    level: c.Number = c.field(
        "Which of the 8 levels of quotas matched; 1 is the most specific. 9: a member of a tenant without a quota of "
        "its own.",
        ge=1,
        le=9,
    )
    sensor_user: c.Name = c.field('User part of the sensor; "" if it is not part of it.')
    sensor_client_id: c.Name = c.field('Client-id part of the sensor; "" if it is not part of it.')
    mode: Annotated[Literal["enforce", "shadow"], c.Unit("mode")] = c.field(
        "Of the quota. `shadow`: recorded, never published."
    )
    asks_hold: c.Flag = c.field(
        "True if the row asks for a hold: the row of a sensor that is held as a whole, and of a client that is held on "
        "its own the quota with the longest wait."
    )
    cause: Annotated[Literal["violation", "debt"], c.Unit("cause")] = c.field(
        "`violation`: the rate is above the bound. `debt`: the batch has usage of the sensor that is behind, the rate "
        "gives no row, and the bucket needs longer than (N + 1) sample windows to come back to 0."
    )
    tokens: c.Tokens | None = c.field("What the bucket held; null in shadow mode and if no debt is carried.")
    owed_ms: c.DurationMs = c.field("The larger of X and of the time that the bucket needs to come back to 0.")
    more_clients: c.Count | None = c.field(
        "How many clients of the sensor have no row, because at most 100 do, those that used the most; null in rows of "
        "clients."
    )
    tenant: c.Name | None = c.TENANT
    tenant_level: c.Times | None = c.TENANT_LEVEL
    own_bound: c.Rate | None = c.OWN_BOUND
    decision_id: c.Name = c.field("The id in the throttle's records.")
    quota_version: c.Number = c.field("Version of the quota table.")
    tenants_version: c.Number = c.TENANTS_VERSION
    date: c.Day = c.field("UTC day of `evaluated_at_ms`; the partition.")
