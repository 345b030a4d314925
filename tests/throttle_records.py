"""Records of the throttle topic as the rows they are stored as, as messages, and back."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from schemas.arrow import arrow_schema
from schemas.throttle_record import MESSAGE_COLUMNS, SENSOR, Message, ThrottleEventRow, ThrottleRecord, message_of

_SCHEMA = arrow_schema(ThrottleEventRow)


def row_of(record: ThrottleRecord) -> dict[str, Any]:
    return {**dict(record), **dict(zip(SENSOR, record.sensor, strict=True))}


def rows_of(*records: ThrottleRecord) -> pa.Table:
    schema = pa.schema([_SCHEMA.field(name) for name in MESSAGE_COLUMNS])
    return pa.Table.from_pylist([row_of(one) for one in records], schema)


def message(record: ThrottleRecord, job: str = "kquota") -> Message:
    return message_of(row_of(record), job)


def stored_record(row: Mapping[str, Any]) -> ThrottleRecord:
    """The record of a stored row; it is not validated."""
    values = {name: row[name] for name in ThrottleRecord.model_fields if name != "sensor"}
    return ThrottleRecord.model_construct(sensor=(row["sensor_user"], row["sensor_client_id"]), **values)
