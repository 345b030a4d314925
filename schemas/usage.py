"""Usage: the event that meters report on the usage topic, the rows of `usage`, and those of its roll-ups."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from schemas.columns import (
    TIME_EPOCH,
    Bytes,
    Count,
    Day,
    DurationMs,
    DurationNs,
    EpochMs,
    Flag,
    Instant,
    Name,
    Number,
    PipelineRow,
    Row,
)

LARGEST_MEASURE: Final = 2**40
"""The largest value of a measure, inclusive. The sums of a second of such events stay within 64 bits."""

LARGEST_NAME_BYTES: Final = 32_767
"""The most bytes of UTF-8 a name may have, inclusive: the limit of a client-id in Kafka's protocol."""


@dataclass(frozen=True, slots=True)
class MaxUtf8Bytes:
    """Marks a text field with the most bytes of UTF-8 that it may have, inclusive."""

    max_utf8_bytes: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the text after all else."""
        return no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """JSON Schema knows only characters: a text of more characters than this has more bytes, too."""
        return {**handler(schema), "maxLength": self.max_utf8_bytes}

    def _checked(self, value: str) -> str:
        if len(value.encode()) > self.max_utf8_bytes:
            message = f"must be at most {self.max_utf8_bytes} bytes of UTF-8"
            raise ValueError(message)
        return value


def _unless_null(default: object) -> BeforeValidator:
    # A null and a missing field both mean the default.
    return BeforeValidator(lambda value: default if value is None else value)


_ReportedName = Annotated[Name, MaxUtf8Bytes(LARGEST_NAME_BYTES)]


class UsageEvent(BaseModel):
    """A value of `quota.usage.v1`: one object, or one element of an array of objects.

    A measure that is null or missing means "no request of this type": its sensor is not touched. 0 means a request of
    size 0: the sensor is touched and the client can be throttled. Unknown fields are ignored, because a meter may be
    newer than the pipeline. Numbers must be JSON integers: `5.0` and `"5"` are refused. A name has at most
    `LARGEST_NAME_BYTES` bytes of UTF-8.

    The reader accepts more than the JSON Schema in one point: null in place of a field with a default is the default.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    event_time_ms: EpochMs = Field(ge=0, lt=2**63, description="When the usage happened, by the meter's clock.")
    user: _ReportedName = Field(min_length=1, description="The authenticated user (principal name). Never empty.")
    client_id: _ReportedName = Field(description='The client-id of the requests; "" if they had none.')
    broker_id: Annotated[_ReportedName, _unless_null("")] = Field(
        default="", description='The broker to which the requests went; "" if it is not known.'
    )
    produced_bytes: Bytes | None = Field(
        default=None, ge=0, le=LARGEST_MEASURE, description="Bytes of produce requests; null if there were none."
    )
    fetched_bytes: Bytes | None = Field(
        default=None, ge=0, le=LARGEST_MEASURE, description="Bytes of fetch responses; null if there were none."
    )
    io_time_ns: DurationNs | None = Field(
        default=None,
        ge=0,
        le=LARGEST_MEASURE,
        description="Time of request handler threads; null if it was not measured.",
    )
    network_time_ns: DurationNs | None = Field(
        default=None, ge=0, le=LARGEST_MEASURE, description="Time of network threads; null if it was not measured."
    )
    request_count: Annotated[Count, _unless_null(1)] = Field(
        default=1, ge=0, le=LARGEST_MEASURE, description="How many requests the event stands for."
    )
    throttle_exempt: Annotated[Flag, _unless_null(False)] = Field(
        default=False, description="True exempts the request time of the event. Its bytes count in any case."
    )
    broker_throttle_ms: DurationMs | None = Field(
        default=None,
        ge=0,
        le=LARGEST_MEASURE,
        description="How long the broker itself has made the client wait; null if it is not known. It is in no rate.",
    )
    schema_version: Annotated[Number, _unless_null(1)] = Field(
        default=1,
        ge=1,
        lt=2**63,
        description="Version of this schema. New versions only add fields; no field changes its meaning.",
    )

    def to_value(self) -> bytes:
        """The event as a record value: compact JSON, without the measures that are null."""
        return self.model_dump_json(exclude_none=True).encode()


class UsageSums(Row):
    """A client, and the sums over its requests. Named first among a row's bases, it follows the columns of the next."""

    broker_id: Name = Field(description='The broker; "" if not known.')
    user: Name = Field(description="The user.")
    client_id: Name = Field(description='The client-id; "" if the client has none.')
    produced_bytes: Bytes | None = Field(description="Sum of produced bytes; null if there was no produce request.")
    fetched_bytes: Bytes | None = Field(description="Sum of fetched bytes; null if there was no fetch request.")
    io_time_ns: DurationNs | None = Field(description="Sum of request handler time; null if it was not measured.")
    network_time_ns: DurationNs | None = Field(description="Sum of network thread time; null if it was not measured.")
    exempt_time_ns: DurationNs | None = Field(description="Sum of the time of exempt requests. It is in no rate.")
    request_count: Count = Field(description="Sum of requests.")


class _Sample(PipelineRow):
    batch_id: Number = Field(description="The micro-batch that wrote the row.")
    sample_start_ms: EpochMs = Field(description="Start of the sample window, inclusive.")
    sample_start: Instant = Field(description="`sample_start_ms` as a timestamp.")


class UsageRow(UsageSums, _Sample):
    """The sums of a batch per sample window and client. This table is the write-ahead log of the rates."""

    last_event_ms: EpochMs = Field(description="The newest event time of the row.")
    time_epoch: Number | None = TIME_EPOCH
    evaluated_at_ms: EpochMs = Field(description="The instant at which the batch is evaluated, in event time.")
    quota_version: Number = Field(description="Version of the quota table with which the batch is decided.")
    date: Day = Field(
        description="UTC day of `evaluated_at_ms`; the partition. Older rows may have that of `sample_start_ms`."
    )


class _Second(Row):
    second_start_ms: EpochMs = Field(description="Start of the second, inclusive.")
    second_start: Instant = Field(description="`second_start_ms` as a timestamp.")
    cluster: Name = Field(min_length=1, description="The Kafka cluster: its id, or the name that was set for it.")


class UsageBySecondRow(UsageSums, _Second):
    """The roll-up of `usage`: one row per time epoch, second, broker and client. What-if replays it."""

    last_event_ms: EpochMs = Field(description="The newest event time of the second.")
    time_epoch: Number | None = TIME_EPOCH
    date: Day = Field(description="UTC day of `second_start_ms`; the partition.")


class _Minute(Row):
    minute_start_ms: EpochMs = Field(description="Start of the minute, inclusive.")
    minute_start: Instant = Field(description="`minute_start_ms` as a timestamp.")
    cluster: Name = Field(min_length=1, description="The Kafka cluster: its id, or the name that was set for it.")


class UsageByMinuteRow(UsageSums, _Minute):
    """The roll-up of `usage` for dashboards and reports. Usage that came late is a row of its own: sum the rows."""

    last_event_ms: EpochMs = Field(description="The newest event time among them.")
    date: Day = Field(description="UTC day of `minute_start_ms`; the partition.")
