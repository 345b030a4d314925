"""A row of `broker_quotas`: what kquota was about to change in the brokers' own quotas, or what became of it."""

from pydantic import Field

from schemas.columns import Day, EpochMs, Instant, Name, Number, QuotaTypeName, Rate, RateByName, Row, Text


class BrokerQuotaRow(Row):
    """One step of one change of one value that all brokers hold.

    A change has two rows: `pending` before the brokers are asked, and then what they answered. The newest one that was
    applied says what kquota owns at an entity and quota type, so a sync that was killed finds everything here.
    """

    cluster: Name = Field(min_length=1, description="The Kafka cluster: its id, or the name that was set for it.")
    sync_epoch: Number = Field(description="Which start of the sync wrote the row, counted up.")
    seq: Number = Field(description="Position among all rows of the table, counted up.")
    at_ms: EpochMs = Field(description="When it was written, by the sync's wall clock.")
    at: Instant = Field(description="`at_ms` as a timestamp.")
    user: Name = Field(description='User of the entity, `<default>`, or "" if it is not part of it.')
    client_id: Name = Field(description='Client-id of the entity, `<default>`, or "" if it is not part of it.')
    quota_type: QuotaTypeName = Field(description="The quota that is changed.")
    old: Rate | None = Field(description="The value until then; null for none.")
    new: Rate | None = Field(description="The value from then on; null for none.")
    bound: Rate | None = Field(description="T, the quota of the entity; null if it has none any more.")
    demand: RateByName = Field(
        description="Broker-id to what was wanted there; null where it counted as unbounded. Empty without a level."
    )
    cause: Text = Field(
        description="Why: the cause of a level, or added, edited, removed, given_back, adopted, restored."
    )
    result: Text = Field(description="`pending`, `applied`, `not applied`, or `refused: ` and why.")
    before: Rate | None = Field(description="What stood there before kquota's first change; null for none.")
    kind: Text | None = Field(
        description="What the value is: `level`, `bound` or `unbounded`; null if it goes and is kquota's no longer."
    )
    over_at_ms: EpochMs | None = Field(
        description="When the brokers were last asked for more than T together; null for never, or not known."
    )
    date: Day = Field(description="UTC day of `at_ms`; the partition.")
