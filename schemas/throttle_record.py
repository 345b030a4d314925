"""A record of the throttle topic: a client must wait until an instant, or may go on."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.columns import (
    DurationMs,
    EpochMs,
    Name,
    Number,
    QuotaTypeName,
    Rate,
    Tokens,
    Unit,
)
from schemas.errors import UnreadableRecord

Action = Annotated[Literal["throttle", "release"], Unit("action")]
Cause = Annotated[Literal["violation", "renewed", "expired", "quota_changed", "recovered"], Unit("cause")]

Verb = Literal["throttle", "extend", "renew", "release"]

SCHEMA_VERSION: Final = 1

JOB_HEADER: Final = "ce_kquotajob"

SENSOR_FIELD: Final = "sensor"
"""The one field of a record that is two columns of `throttle_events`."""


class ThrottleRecord(BaseModel):
    """A value of `quota.throttle.v1`.

    `throttled_until_ms` is wall-clock time, computed once, when the record was stored. A consumer stops throttling at
    that instant, whatever happens to the pipeline. The last record of a key on the topic is the one that is in force.
    What each cause means is in docs/design.md, "Topics".
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    action: Action = Field(description="`throttle`: wait. `release`: go on, at the end that was set or before it.")
    cluster: Name = Field(min_length=1, description="The Kafka cluster: its id, or the name that was set for it.")
    broker_id: Name = Field(description='The broker to which the throttle applies; "" for the whole cluster.')
    user: Name = Field(min_length=1, description="The user, as authenticated.")
    client_id: Name = Field(description='The client-id; "" if the client has none.')
    throttle_time_ms: DurationMs = Field(
        ge=0, description="How long to wait, from the instant at which the record was stored; 0 for a release."
    )
    throttled_until_ms: EpochMs = Field(
        ge=0,
        description="The end of the throttle, exclusive, as wall-clock time; for a release when it was stored.",
    )
    quota_type: QuotaTypeName = Field(description="Which quota is violated; if several are, the one that applies.")
    sensor: Annotated[tuple[str, str], Unit("names")] = Field(
        description='User and client-id part of the sensor that the rate belongs to; "" for a part it does not have.'
    )
    observed: Rate = Field(ge=0, description="O, the rate over the window.")
    bound: Rate | None = Field(gt=0, description="T, the quota; null if no bound is left (a release).")
    window_ms: DurationMs = Field(ge=0, description="W, the span the rate was measured over.")
    tokens: Tokens | None = Field(description="Level of the sensor's bucket; below 0 it is a debt; null for no bucket.")
    owed_ms: DurationMs = Field(ge=0, description="How much longer the client must wait, as seen when it was decided.")
    cause: Cause = Field(
        description="Why the record was published. `recovered` is reserved: readers accept it, no job writes it."
    )
    decision_id: Name = Field(
        min_length=1, description="The decision that began the throttle; renewals and release keep it."
    )
    publish_seq: Number = Field(ge=0, description="Position among all records of the job; no gaps.")
    batch_id: Number = Field(description="The last micro-batch whose usage the record is based on.")
    quota_version: Number = Field(ge=0, description="Version of the quota table the record is based on.")
    schema_version: Number = Field(default=SCHEMA_VERSION, ge=1, description="Version of this schema.")

    def key(self) -> bytes:
        """The record key: the JSON array `[cluster, broker_id, user, client_id]`, compact, in UTF-8.

        Equal parts give equal keys, so that compaction keeps the last record of each throttled client.
        """
        return _json([self.cluster, self.broker_id, self.user, self.client_id])

    def to_value(self) -> bytes:
        """The record value: all fields as one compact JSON object in UTF-8, including those that are null."""
        return self.model_dump_json().encode()

    @classmethod
    def from_value(cls, value: bytes) -> Self:
        """Read a record value.

        Unknown fields are dropped, because a consumer may be older than the pipeline.

        Raises:
            UnreadableRecord: it is not a JSON object, or a field is missing or has the wrong type or range.
        """
        try:
            parsed: Any = json.loads(value)
            if isinstance(parsed, dict):
                parsed = {name: parsed[name] for name in cls.model_fields if name in parsed}
            return cls.model_validate(parsed)
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UnreadableRecord(cls.__name__, f"{where}: {first['msg']}", value) from exc
        except ValueError as exc:
            raise UnreadableRecord(cls.__name__, f"no JSON: {exc}", value) from exc

    @property
    def written_ms(self) -> int:
        """When the job stored the record, by its wall clock."""
        return self.throttled_until_ms - self.throttle_time_ms

    def headers(self, job: str) -> list[tuple[str, bytes]]:
        """The CloudEvents 1.0 attributes in Kafka's binary content mode.

        `ce_id` is the decision and the publish sequence, so a record published twice has one id; `ce_time` is
        the instant the record was stored.

        Args:
            job: The job that publishes it, the extension attribute `kquotajob`: a topic belongs to one job.
        """
        version, kquota_job, content_type = unchanging_headers(job)
        return [
            version,
            ("ce_id", f"{self.decision_id}/{self.publish_seq}".encode()),
            type_header(self.action, self.schema_version),
            source_header(self.cluster),
            kquota_job,
            time_header(self.written_ms),
            content_type,
        ]


def verb_of(action: str, cause: str, extends: bool) -> Verb:
    """What a record does to its client, in one word.

    Args:
        action: Of the record.
        cause: Of the record.
        extends: Whether a violation makes a running throttle longer.
    """
    if action == "release":
        return "release"
    if cause != "violation":
        return "renew"
    return "extend" if extends else "throttle"


def unchanging_headers(job: str) -> tuple[tuple[str, bytes], tuple[str, bytes], tuple[str, bytes]]:
    """The headers that all records of a job share: version of CloudEvents, job, type of the content."""
    return ("ce_specversion", b"1.0"), (JOB_HEADER, job.encode()), ("content-type", b"application/json")


def type_header(action: str, schema_version: int | str) -> tuple[str, bytes]:
    """The CloudEvents type of a record."""
    return "ce_type", f"kquota.{action}.v{schema_version}".encode()


def source_header(cluster: str) -> tuple[str, bytes]:
    """The CloudEvents source of a record."""
    return "ce_source", f"/kquota/{quote(cluster, safe='')}".encode()


def time_header(stored_ms: int) -> tuple[str, bytes]:
    """The CloudEvents time of a record: when it was stored, by wall clock."""
    return "ce_time", _rfc3339(stored_ms).encode()


def _rfc3339(epoch_ms: int) -> str:
    instant = datetime.fromtimestamp(epoch_ms // 1000, UTC).replace(microsecond=epoch_ms % 1000 * 1000)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
