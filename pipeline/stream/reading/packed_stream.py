"""Reads the value of one packed message: an Arrow IPC stream of one record batch.

Its columns are fields of `UsageEvent`: STRING as `string`, BIGINT as `int64`, BOOLEAN as `bool`. A field that may be
missing may have no column, and other columns are ignored. What is in a message is not trusted. Nothing is computed with
it before Arrow has checked all of its offsets and texts, and nothing is unpacked that takes more memory than the
message has bytes: compressed buffers and dictionaries are refused. Kafka compresses messages itself.
"""

import struct
from typing import Final

import pyarrow as pa

from pipeline.stream.reading.decode import PACKED_BEGIN
from pipeline.stream.reading.event_columns import EVENT_SCHEMA
from pipeline.stream.reading.field_rules import FIELD_RULES, FieldRule, must_be_present

NO_STREAM: Final = "value must be an Arrow IPC stream of one record batch"
COMPRESSED: Final = "value must be an Arrow IPC stream without compression of its own"

_END_OF_STREAM: Final = frozenset((b"", PACKED_BEGIN + bytes(4)))
_HEADER, _COMPRESSION = 2, 3  # numbers of fields of the tables Message and RecordBatch in Arrow's Message.fbs
_FAULTS: Final = (
    pa.ArrowException,
    ArithmeticError,
    EOFError,
    IndexError,
    MemoryError,
    OSError,
    ValueError,
    struct.error,
)


def must_be_column(rule: FieldRule) -> str:
    """The cause of a column of another type."""
    return f"'{rule.name}' must be one column of Arrow's type {EVENT_SCHEMA.field(rule.name).type}"


class PackedRefused(Exception):
    """The message as a whole is a dead letter; the text is its cause."""


class PackedReader:
    """Reads one message after the other. Messages of one sender begin with the same schema, which is read once."""

    def __init__(self) -> None:
        self._opening: bytes | None = None
        self._schema = EVENT_SCHEMA
        self._is_exact = True

    def read(self, value: bytes) -> pa.RecordBatch:
        """The events of a message, of `EVENT_SCHEMA`, checked by Arrow; not by `FIELD_RULES`.

        Raises:
            PackedRefused: It is not what it must be.
        """
        try:
            return self._read(value)
        except _FAULTS as exc:
            raise PackedRefused(NO_STREAM) from exc

    def _read(self, value: bytes) -> pa.RecordBatch:
        source = pa.BufferReader(value)
        if self._opening is not None and value.startswith(self._opening):
            source.seek(len(self._opening))
        else:
            opening = pa.ipc.read_message(source)
            if opening.type != "schema":  # pyarrow would read it as one, and crash
                raise PackedRefused(NO_STREAM)
            self._schema = _event_columns(pa.ipc.read_schema(opening))
            self._is_exact = self._schema.equals(EVENT_SCHEMA)
            self._opening = value[: source.tell()]
        message = pa.ipc.read_message(source)
        if message.type != "record batch" or value[source.tell() :] not in _END_OF_STREAM:
            raise PackedRefused(NO_STREAM)
        if _is_compressed(message.metadata.to_pybytes()):
            raise PackedRefused(COMPRESSED)
        batch = pa.ipc.read_record_batch(message, self._schema)
        if not self._is_exact:
            batch = batch.select([name for name in EVENT_SCHEMA.names if name in self._schema.names])
        batch.validate(full=True)
        return batch if self._is_exact else _completed(batch)


def _completed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with all columns of `EVENT_SCHEMA`. Arrow must have checked its length before."""
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in EVENT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _event_columns(schema: pa.Schema) -> pa.Schema:
    """The same schema, if its columns can be events; columns that are no fields are ignored, as in JSON."""
    for rule in FIELD_RULES:
        found = schema.get_all_field_indices(rule.name)
        if not found and rule.required:
            raise PackedRefused(must_be_present(rule))
        if len(found) > 1 or (found and schema.field(found[0]).type != EVENT_SCHEMA.field(rule.name).type):
            raise PackedRefused(must_be_column(rule))
    return schema


def _is_compressed(metadata: bytes) -> bool:
    """Whether the buffers of a record batch are compressed; pyarrow tells it only by unpacking them."""
    (root,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, root, _HEADER)
    if header is None:
        return False
    (to_batch,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + to_batch, _COMPRESSION) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """The position of a field of a flatbuffers table; None if the table does not have it."""
    (to_fields,) = struct.unpack_from("<i", metadata, table)
    fields, place = table - to_fields, 4 + 2 * number
    (size_bytes,) = struct.unpack_from("<H", metadata, fields)
    if place + 2 > size_bytes:
        return None
    (to_field,) = struct.unpack_from("<H", metadata, fields + place)
    return table + to_field if to_field else None
