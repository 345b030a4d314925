"""Throttles: the record of the throttle topic, the row of `throttle_events` that stores it first, and the roll-up.

A record says that a client, or all client-ids of a user but some, must wait until an instant, or may go on.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, Self
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import to_json

from schemas import columns as c
from schemas.names import UnreadableRecord

Action = Annotated[Literal["throttle", "release"], c.Unit("action")]
Cause = Annotated[
    Literal["violation", "debt", "extended", "renewed", "expired", "quota_changed", "forgiven", "recovered"],
    c.Unit("cause"),
]

Verb = Literal["throttle", "extend", "renew", "release"]

SCHEMA_VERSION: Final = 2

JOB_HEADER: Final = "ce_kquotajob"

SENSOR_FIELD: Final = "sensor"
"""The one field of a record that is two columns of `throttle_events`: `SENSOR`."""
SENSOR: Final = ("sensor_user", "sensor_client_id")
_KEY: Final = ("cluster", "broker_id", "user", "client_id")

_CLIENT_ID: Final = "The client-id. Null: the throttle holds all client-ids of the user but `except_client_ids`."
_EXCEPT: Final = "The client-ids that a throttle of all client-ids does not hold; null for the throttle of one client."


class Target(NamedTuple):
    """Whom a throttle holds.

    It is a client, for whichever quota type asks for the longest wait; then `quota_type` is None. Or it is a user, with
    all its client-ids but those that the record excepts; then `client_id` is None, and each quota type has a hold.
    """

    broker_id: str
    user: str
    client_id: str | None
    quota_type: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Target":
        """The target of a record or a row with these columns."""
        of_user = row["client_id"] is None
        return cls(row["broker_id"], row["user"], row["client_id"], row["quota_type"] if of_user else None)

    def __str__(self) -> str:
        """Its name for people."""
        return f"{self.user}/*" if self.client_id is None else f"{self.user}/{self.client_id}"


class ThrottleRecord(BaseModel):
    """A value of `quota.throttle.v1`.

    `throttled_until_ms` is wall-clock time, computed once, when the record was stored. A consumer stops throttling at
    that instant, whatever happens to the pipeline. The last record of a key on the topic is the one that is in force.
    What each cause means is in docs/design.md, "Topics".
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    action: Action = c.field("`throttle`: wait. `release`: go on, at the end that was set or before it.")
    cluster: c.Name = c.CLUSTER
    broker_id: c.Name = c.field('The broker to which the throttle applies; "" for the whole cluster.')
    user: c.Name = c.field("The user, as authenticated.", min_length=1)
    client_id: c.Name | None = c.field(f'{_CLIENT_ID} "" is a client without a client-id.')
    except_client_ids: c.Names | None = c.field(_EXCEPT, default=None)
    throttle_time_ms: c.DurationMs = c.field(
        "How long to wait, from the instant at which the record was stored; 0 for a release.", ge=0
    )
    throttled_until_ms: c.EpochMs = c.field(
        "The end of the throttle, exclusive, as wall-clock time; for a release when it was stored.", ge=0
    )
    quota_type: c.QuotaTypeName = c.field(
        "Which quota is violated. A client is held for the one that asks for the longest wait, a user for each of them."
    )
    sensor: Annotated[tuple[str, str], c.Unit("names")] = c.field(
        'User and client-id part of the sensor that the rate belongs to; "" for a part it does not have.'
    )
    observed: c.Rate = c.field("O, the rate over the window.", ge=0)
    bound: c.Rate | None = c.field("T, the quota; null if no bound is left (a release).", gt=0)
    window_ms: c.DurationMs = c.field("W, the span the rate was measured over.", ge=0)
    tokens: c.Tokens | None = c.field("Level of the sensor's bucket; below 0 it is a debt; null for no bucket.")
    owed_ms: c.DurationMs = c.field("How much longer the client must wait, as seen when it was decided.", ge=0)
    cause: Cause = c.field("Why the record was published. `recovered` is reserved: no job writes it.")
    decision_id: c.Name = c.field("The decision that began the throttle; renewals and release keep it.", min_length=1)
    publish_seq: c.Number = c.field("Position among all records of the job; no gaps.", ge=0)
    batch_id: c.Number = c.field("The last micro-batch whose usage the record is based on.")
    quota_version: c.Number = c.field("Version of the quota table the record is based on.", ge=0)
    schema_version: Annotated[Literal[2], c.Unit("ordinal number")] = c.field(
        "Version of this schema.", default=SCHEMA_VERSION
    )

    @classmethod
    def from_value(cls, value: bytes) -> Self:
        """Read a record value.

        Unknown fields are dropped, because a consumer may be older than the pipeline.

        Raises:
            UnreadableRecord: it is not a JSON object, a field is missing or has the wrong type or range, or it is of
                another version of the schema: its reader leaves the client alone.
        """
        try:
            parsed: Any = json.loads(value)
            if isinstance(parsed, dict):
                parsed = {name: parsed[name] for name in cls.model_fields if name in parsed}
            return cls.model_validate(parsed)
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UnreadableRecord(cls.__name__, f"{where}: {first['msg']}".removeprefix(": "), value) from exc
        except ValueError as exc:
            raise UnreadableRecord(cls.__name__, f"it is not JSON: {exc}", value) from exc

    @model_validator(mode="after")
    def _excepts_only_of_a_user(self) -> Self:
        if (self.client_id is None) != (self.except_client_ids is not None):
            message = "except_client_ids is for a throttle without client_id"
            raise ValueError(message)
        return self

    @property
    def target(self) -> Target:
        """Whom it throttles."""
        return Target.of(self.__dict__)

    def holds(self, user: str, client_id: str) -> bool:
        """Whether it names this client: see `holds`."""
        return holds(self.__dict__, user, client_id)

    @property
    def written_ms(self) -> int:
        """When the job stored the record, by its wall clock."""
        return self.throttled_until_ms - self.throttle_time_ms


_FIELDS: Final = tuple(ThrottleRecord.model_fields)
MESSAGE_COLUMNS: Final = (*(name for name in _FIELDS if name != SENSOR_FIELD), *SENSOR)
"""The columns of `throttle_events` that a record is made of."""
_VERBS: Final[Mapping[str, Verb]] = {"violation": "throttle", "debt": "throttle", "extended": "extend"}

BATCH_CAUSES: Final = frozenset(_VERBS)
"""The causes of records that a batch asks for; the others are those of checks."""


def holds(row: Mapping[str, Any], user: str, client_id: str | None) -> bool:
    """Whether a record, or its row, names a client: it, or its user without it among the exceptions.

    * `client_id`: None = all client-ids of the user; only a record without a client-id names them.
    """
    if row["client_id"] is None:
        return bool(row["user"] == user and client_id not in (row["except_client_ids"] or ()))
    return (row["user"], row["client_id"]) == (user, client_id)


def verb_of(action: str, cause: str) -> Verb:
    """What a record does to its client, in one word."""
    if action == "release":
        return "release"
    return _VERBS.get(cause, "renew")


class ThrottleEventRow(c.PipelineRow):
    """The outbox: every record that is published, by a batch or by a check, in the order of `publish_seq`."""

    batch_id: c.Number = c.field("The last micro-batch whose usage the record is based on.")
    time_epoch: c.Number = c.TIME_EPOCH
    evaluated_at_ms: c.EpochMs = c.field("The instant the batch or the check was evaluated at.")
    evaluated_at: c.Instant = c.field("`evaluated_at_ms` as a timestamp.")
    publish_seq: c.Number = c.field("Position among all records of the job; no gaps.")
    action: Action = c.field("`throttle` or `release`.")
    cause: Cause = c.field("Why the record was published.")
    broker_id: c.Name = c.field('The broker to which the throttle applies; "" for the whole cluster.')
    user: c.Name = c.field("The user.")
    client_id: c.Name | None = c.field(_CLIENT_ID)
    except_client_ids: c.Names | None = c.field(_EXCEPT)
    quota_type: c.QuotaTypeName = c.field("The quota that applies.")
    throttle_time_ms: c.DurationMs = c.field("How long to wait, from the instant at which the row was written.")
    throttled_until_ms: c.EpochMs = c.field("The end of the throttle, exclusive, as wall-clock time.")
    throttled_until: c.Instant = c.field("`throttled_until_ms` as a timestamp.")
    sensor_user: c.Name = c.field('User part of the sensor; "" if it is not part of it.')
    sensor_client_id: c.Name = c.field('Client-id part of the sensor; "" if it is not part of it.')
    observed: c.Rate = c.field("O, the rate over the window.")
    bound: c.Rate | None = c.field("T, the quota; of a tenant's member the bound in force. Null if no bound is left.")
    window_ms: c.DurationMs = c.field("W, the span the rate was measured over.")
    tokens: c.Tokens | None = c.field("Level of the sensor's bucket; below 0 it is a debt; null for no bucket.")
    owed_ms: c.DurationMs = c.field("How much longer the client must wait, as seen when it was decided.")
    decision_id: c.Name = c.field("The decision that began the throttle.")
    quota_version: c.Number = c.field("Version of the quota table.")
    tenants_version: c.Number = c.TENANTS_VERSION
    tenant: c.Name | None = c.TENANT
    own_bound: c.Rate | None = c.OWN_BOUND
    schema_version: c.Number = c.field("Version of the record's schema.", default=SCHEMA_VERSION)
    due_ms: c.EpochMs | None = c.field("When the check was due; null for a record of a batch.")
    lateness_ms: c.DurationMs | None = c.field(
        "How long after `due_ms` the purgatory handed it out; null for a record of a batch."
    )
    date: c.Day = c.field("UTC day of `evaluated_at_ms`; the partition.")


class Message(NamedTuple):
    """A record as a producer sends it."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def message_of(row: Mapping[str, Any], job: str) -> Message:
    """The message of a stored row, of which it needs `MESSAGE_COLUMNS`.

    * key: The JSON array `[cluster, broker_id, user, client_id]`, compact, in UTF-8; of all client-ids of a user it is
      `[cluster, broker_id, user, null, quota_type]`. Equal parts give equal keys, so that compaction keeps the last
      record of each target.
    * value: The fields of `ThrottleRecord` as one compact JSON object in UTF-8, including those that are null.
    * headers: The CloudEvents 1.0 attributes in Kafka's binary content mode. `ce_id` is the decision and the publish
      sequence, so a record that is published twice has one id; `ce_time` is when the record was stored. `kquotajob` is
      an extension attribute: a topic belongs to one job.
    """
    fields = {name: row[name] if name != SENSOR_FIELD else [row[part] for part in SENSOR] for name in _FIELDS}
    stored_ms = written_ms(row)
    stored_at = datetime.fromtimestamp(stored_ms // 1000, UTC).replace(microsecond=stored_ms % 1000 * 1000)
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", f"{row['decision_id']}/{row['publish_seq']}".encode()),
        ("ce_type", f"kquota.{row['action']}.v{row['schema_version']}".encode()),
        ("ce_source", f"/kquota/{quote(row['cluster'], safe='')}".encode()),
        (JOB_HEADER, job.encode()),
        ("ce_time", stored_at.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()),
        ("content-type", b"application/json"),
    ]
    key = [row[name] for name in _KEY] + ([row["quota_type"]] if row["client_id"] is None else [])
    return Message(to_json(key), to_json(fields), headers)


def written_ms(row: Mapping[str, Any]) -> int:
    """When a stored record was written, by the driver's wall clock: where its slice begins."""
    return int(row["throttled_until_ms"] - row["throttle_time_ms"])


def counts(since_ms: int, until_ms: int, min_hold_ms: int) -> bool:
    """Whether a throttle counts as a hold: one shorter than `purgatory.min_hold_ms` is not worth a client's attention.

    >>> counts(0, 1_000, 1_000), counts(0, 999, 1_000)
    (True, False)
    """
    return until_ms - since_ms >= min_hold_ms


def verb(row: Mapping[str, Any]) -> Verb:
    """What a stored record does: see `verb_of`."""
    return verb_of(row["action"], row["cause"])


class ThrottleByMinuteRow(c.Row):
    """The roll-up of `throttle_events` for dashboards and reports. A minute may have several rows: sum them."""

    minute_start_ms: c.EpochMs = c.field("Start of the minute, inclusive, as wall-clock time.")
    minute_start: c.Instant = c.field("`minute_start_ms` as a timestamp.")
    cluster: c.Name = c.CLUSTER
    broker_id: c.Name = c.field('The broker to which the throttle applies; "" for the whole cluster.')
    user: c.Name = c.field("The user.")
    client_id: c.Name | None = c.field('The client-id; "" if the client has none; null for all client-ids of the user.')
    quota_type: c.QuotaTypeName = c.field("The quota for which the client was held.")
    owner: c.Text | None = c.field(
        "Who was responsible: the owner of the most specific quota row that covers the client and names "
        "one, in the version of the quota table behind the record; null if none does."
    )
    held_ms: c.DurationMs = c.field(
        "How long the client was held within the minute: at most 60 000, summed over the rows.", ge=0
    )
    throttle_count: c.Count = c.field("Throttles that began in the minute.", ge=0)
    renewal_count: c.Count = c.field(
        "Records of the minute that gave a running throttle another end: extended, renewed, edited.", ge=0
    )
    date: c.Day = c.field("UTC day of `minute_start_ms`; the partition.")
