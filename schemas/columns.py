"""The type table: what a Python field type is in Arrow, and which unit its numbers have.

Arrow schemas and the units in the JSON Schemas are derived from it.
"""

from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from schemas.names import QuotaType, UnsupportedFieldType

# The names of Arrow. All integers have 64 bits, so a column never needs a wider type later. Plain Delta could not give
# it one.
TYPES: Final[dict[object, str]] = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool",
    bytes: "binary",
    datetime: "timestamp[us, tz=UTC]",
    date: "date32",
    tuple[str, str]: "list<string>",
    tuple[str, ...]: "list<string>",
    dict[str, float | None]: "map<string, double>",
}


@dataclass(frozen=True, slots=True)
class Unit:
    """Marks a field with the unit of its values. The schemas and the reference pages show it."""

    name: str


Name = Annotated[str, Unit("name")]
Names = Annotated[tuple[str, ...], Unit("names")]
Text = Annotated[str, Unit("text")]
EpochMs = Annotated[int, Unit("ms since 1970-01-01T00:00:00Z")]
DurationMs = Annotated[int, Unit("ms")]
DurationNs = Annotated[int, Unit("ns of thread time")]
Bytes = Annotated[int, Unit("bytes")]
Count = Annotated[int, Unit("count")]
Number = Annotated[int, Unit("ordinal number")]
Rate = Annotated[float, Unit("bytes per second, or percent of one thread for request_percentage")]
RateByName = Annotated[dict[str, float | None], Unit("rates as of `bound`, by name")]
ByteRate = Annotated[float, Unit("bytes per second")]
Percentage = Annotated[float, Unit("percent of one thread")]
Share = Annotated[float, Unit("part of the bound; 1 is all of it")]
Times = Annotated[float, Unit("factor; 1 is the own bound")]
Tokens = Annotated[float, Unit("bytes, or percent-seconds for request_percentage")]
Flag = Annotated[bool, Unit("true or false")]
Instant = Annotated[datetime, Unit("UTC instant, microsecond precision")]
Day = Annotated[date, Unit("UTC day")]
Raw = Annotated[bytes, Unit("raw bytes")]


def field(description: str, **rules: Any) -> Any:
    """A field of a model with its meaning, and what else `pydantic.Field` takes."""
    return Field(description=description, **rules)


TIME_EPOCH: Final = field(
    "How often event time has begun anew; `evaluated_at_ms` grows within an epoch only. 0 at first.",
    default=0,
)
"""The field `time_epoch` of every row that has `evaluated_at_ms`, and of the seconds of such rows."""

TENANTS_VERSION: Final = field("Version of the table of tenants; -1 without such a table.", default=-1)
TENANT: Final = field("The tenant of which the sensor is a member; null for none.", default=None)
TENANT_LEVEL: Final = field(
    "λ of the tenant: how many times its own bound a member may use now, up to the ceiling and the tenant's bound. "
    "Null without a tenant, and while all that is wanted fits.",
    default=None,
)
OWN_BOUND: Final = field("T of the member itself; null without a tenant.", default=None)

CLUSTER: Final = field("The Kafka cluster: its id, or the name that was set for it.", min_length=1)

QuotaTypeName = Annotated[QuotaType, Unit("quota type")]


class Row(BaseModel):
    """A row of a Delta table. Frozen; no unknown columns; bytes are base64 in its JSON form."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, ser_json_bytes="base64", val_json_bytes="base64"
    )


class PipelineRow(Row):
    """A row that the job writes: which cluster it is about, and which streaming query wrote it."""

    cluster: Name = CLUSTER
    query_id: Name = field("Id of the streaming query: one per checkpoint.", min_length=1)


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a model as a column: name, Arrow type, whether it may be null, and unit."""

    name: str
    type: str
    nullable: bool
    unit: str


@cache
def columns(model: type[BaseModel]) -> tuple[Column, ...]:
    """The columns of a model, nullable if a field takes `None`; or `UnsupportedFieldType`."""
    return tuple(_column(model, name) for name in model.model_fields)


def _column(model: type[BaseModel], name: str) -> Column:
    field = model.model_fields[name]
    annotation, nullable, metadata = field.annotation, False, field.metadata
    if get_origin(annotation) in {Union, UnionType}:
        rest = [part for part in get_args(annotation) if part is not NoneType]
        if len(rest) == 1:
            annotation, nullable = rest[0], True
    if get_origin(annotation) is Annotated:
        annotation, *inner = get_args(annotation)
        metadata = [*metadata, *inner]
    if get_origin(annotation) is Literal:
        annotation = type(get_args(annotation)[0])
    if annotation not in TYPES:
        raise UnsupportedFieldType(model.__name__, name, annotation)
    unit = next((one.name for one in metadata if isinstance(one, Unit)), "")
    return Column(name, TYPES[annotation], nullable, unit)


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema that a value of this model must satisfy when it is read: pydantic's, with `x-unit` per property.

    The generated titles of the fields, which only repeat the names, are left out.

    Raises:
        UnsupportedFieldType: the type table does not know the type of a field.
    """
    schema = model.model_json_schema()
    properties: dict[str, dict[str, Any]] = schema["properties"]
    for column in columns(model):
        properties[column.name].pop("title", None)
        properties[column.name]["x-unit"] = column.unit
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
