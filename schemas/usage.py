"""Usage: the event that meters report on the usage topic, the rows of `usage`, and those of its roll-ups."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticKnownError
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from schemas import columns as c

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
        try:
            size_bytes = len(value.encode())
        except UnicodeEncodeError as exc:
            kind: Final = "string_unicode"
            raise PydanticKnownError(kind) from exc
        if size_bytes > self.max_utf8_bytes:
            message = f"must be at most {self.max_utf8_bytes} bytes of UTF-8"
            raise ValueError(message)
        return value


def _unless_null(default: object) -> BeforeValidator:
    # A null and a missing field both mean the default.
    return BeforeValidator(lambda value: default if value is None else value)


_MEASURE: Final[dict[str, Any]] = {"default": None, "ge": 0, "le": LARGEST_MEASURE}
_ReportedName = Annotated[c.Name, MaxUtf8Bytes(LARGEST_NAME_BYTES)]


class UsageEvent(BaseModel):
    """A value of `quota.usage.v1`: one object, or one element of an array of objects.

    A measure that is null or missing means "no request of this type": its sensor is not touched. 0 means a request of
    size 0: the sensor is touched and the client can be throttled. Unknown fields are ignored, because a meter may be
    newer than the pipeline. Numbers must be JSON integers: `5.0` and `"5"` are refused. A name has at most
    `LARGEST_NAME_BYTES` bytes of UTF-8.

    The reader accepts more than the JSON Schema in one point: null in place of a field with a default is the default.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    event_time_ms: c.EpochMs = c.field("When the usage happened, by the meter's clock.", ge=0, lt=2**63)
    user: _ReportedName = c.field("The authenticated user (principal name). Never empty.", min_length=1)
    client_id: _ReportedName = c.field('The client-id of the requests; "" if they had none.')
    broker_id: Annotated[_ReportedName, _unless_null("")] = c.field(
        'The broker to which the requests went; "" if it is not known.', default=""
    )
    produced_bytes: c.Bytes | None = c.field("Bytes of produce requests; null if there were none.", **_MEASURE)
    fetched_bytes: c.Bytes | None = c.field("Bytes of fetch responses; null if there were none.", **_MEASURE)
    io_time_ns: c.DurationNs | None = c.field(
        "Time of request handler threads; null if it was not measured.", **_MEASURE
    )
    network_time_ns: c.DurationNs | None = c.field("Time of network threads; null if it was not measured.", **_MEASURE)
    request_count: Annotated[c.Count, _unless_null(1)] = c.field(
        "How many requests the event stands for.", default=1, ge=0, le=LARGEST_MEASURE
    )
    throttle_exempt: Annotated[c.Flag, _unless_null(False)] = c.field(
        "True exempts the request time of the event. Its bytes count in any case.", default=False
    )
    broker_throttle_ms: c.DurationMs | None = c.field(
        "How long the broker itself has made the client wait; null if it is not known. It is in no rate.", **_MEASURE
    )
    schema_version: Annotated[c.Number, _unless_null(1)] = c.field(
        "Version of this schema. New versions only add fields; no field changes its meaning.", default=1, ge=1, lt=2**63
    )

    def to_value(self) -> bytes:
        """The event as a record value: compact JSON, without the measures that are null."""
        return self.model_dump_json(exclude_none=True).encode()


class UsageSums(c.Row):
    """A client, and the sums over its requests. Named first among a row's bases, it follows the columns of the next."""

    broker_id: c.Name = c.field('The broker; "" if not known.')
    user: c.Name = c.field("The user.")
    client_id: c.Name = c.field('The client-id; "" if the client has none.')
    produced_bytes: c.Bytes | None = c.field("Sum of produced bytes; null if there was no produce request.")
    fetched_bytes: c.Bytes | None = c.field("Sum of fetched bytes; null if there was no fetch request.")
    io_time_ns: c.DurationNs | None = c.field("Sum of request handler time; null if it was not measured.")
    network_time_ns: c.DurationNs | None = c.field("Sum of network thread time; null if it was not measured.")
    exempt_time_ns: c.DurationNs | None = c.field("Sum of the time of exempt requests. It is in no rate.")
    request_count: c.Count = c.field("Sum of requests.")
    broker_throttle_ms: c.DurationMs | None = c.field(
        "Sum of how long the broker itself made the client wait; null if it is not known. It is in no rate.",
        default=None,
    )


class _Sample(c.PipelineRow):
    batch_id: c.Number = c.field("The micro-batch that wrote the row.")
    sample_start_ms: c.EpochMs = c.field("Start of the sample window, inclusive.")
    sample_start: c.Instant = c.field("`sample_start_ms` as a timestamp.")


class UsageRow(UsageSums, _Sample):
    """The sums of a batch per sample window and client. This table is the write-ahead log of the rates."""

    last_event_ms: c.EpochMs = c.field("The newest event time of the row.")
    in_gap: c.Flag = c.field(
        "True for usage of a time in which no throttle could be published: it leads to no larger debt than one burst.",
        default=False,
    )
    time_epoch: c.Number = c.TIME_EPOCH
    evaluated_at_ms: c.EpochMs = c.field("The instant at which the batch is evaluated, in event time.")
    quota_version: c.Number = c.field("Version of the quota table with which the batch is decided.")
    tenants_version: c.Number = c.TENANTS_VERSION
    date: c.Day = c.field("UTC day of `evaluated_at_ms`; the partition. Older rows may have that of `sample_start_ms`.")


class _Second(c.Row):
    second_start_ms: c.EpochMs = c.field("Start of the second, inclusive.")
    second_start: c.Instant = c.field("`second_start_ms` as a timestamp.")
    cluster: c.Name = c.CLUSTER


class UsageBySecondRow(UsageSums, _Second):
    """The roll-up of `usage`: one row per time epoch, second, broker and client. What-if replays it."""

    last_event_ms: c.EpochMs = c.field("The newest event time of the second.")
    time_epoch: c.Number = c.TIME_EPOCH
    date: c.Day = c.field("UTC day of `second_start_ms`; the partition.")


class _Minute(c.Row):
    minute_start_ms: c.EpochMs = c.field("Start of the minute, inclusive.")
    minute_start: c.Instant = c.field("`minute_start_ms` as a timestamp.")
    cluster: c.Name = c.CLUSTER


class UsageByMinuteRow(UsageSums, _Minute):
    """The roll-up of `usage` for dashboards and reports. Usage that came late is a row of its own: sum the rows."""

    last_event_ms: c.EpochMs = c.field("The newest event time among them.")
    date: c.Day = c.field("UTC day of `minute_start_ms`; the partition.")
