"""Reads packed messages: usage events as the columns of an Arrow IPC stream of one record batch.

The columns are fields of `UsageEvent`: STRING as `string`, BIGINT as `int64`, BOOLEAN as `bool`. A field that may be
missing may have no column, and other columns are ignored. What is in a message is not trusted. Nothing is computed with
it before Arrow has checked all of its offsets and texts, and nothing is unpacked that takes more memory than the
message has bytes: compressed buffers and dictionaries are refused. Kafka compresses messages itself.

Any other message is one dead letter. An event that breaks a rule of `FIELD_RULES` is one too, with the
same cause as in JSON.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stream.dead_letters import DeadLetter, Refused, letters_of_elements
from pipeline.stream.usage_columns import (
    COUNTED,
    EVENT_SCHEMA,
    FIELD_RULES,
    EventTimes,
    FieldRule,
    FoundEvents,
    ReadingRules,
    too_old,
)

PACKED_BEGIN: Final = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow IPC stream, and of no JSON: they are not UTF-8."""
NO_STREAM: Final = "value must be an Arrow IPC stream of one record batch"
COMPRESSED: Final = "value must be an Arrow IPC stream without compression of its own"

_NO_EVENTS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in EVENT_SCHEMA], schema=EVENT_SCHEMA)
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


def read_packed(messages: pa.Table, rules: ReadingRules) -> FoundEvents:
    """Read messages of `usage_reader.MESSAGE_SCHEMA`, each of which begins with `PACKED_BEGIN`."""
    reader, batches, places, letters = PackedReader(), [], [], []
    for place, value in enumerate(messages["value"].to_pylist()):
        try:
            batches.append(reader.read(value))
        except PackedRefused as exc:
            letters.append(DeadLetter(place, None, str(exc), value))
            continue
        places.append(place)
    lengths = np.array([batch.num_rows for batch in batches], np.int64)
    events = pa.concat_batches([_NO_EVENTS, *batches])
    times = EventTimes(
        events["event_time_ms"].fill_null(0).to_numpy(),
        np.repeat(messages["appended_at_ms"].to_numpy()[np.array(places, np.int64)], lengths),
    )
    broken = _broken(events, times, rules.max_event_age_ms)
    dead = broken > 0
    dead_count = len(letters) + int(dead.sum())
    if dead.any():
        letters += _letters_of(events, broken, places, lengths, rules)
        events, times = events.filter(pa.array(~dead)), times.where(~dead)
    return FoundEvents(
        columns={name: events[name] for name in COUNTED},
        times=times,
        letters=letters,
        dead_count=dead_count,
        ignored_count=int((lengths == 0).sum()),
        packed_count=len(dead),
    )


class PackedRefused(Exception):
    """The message as a whole is a dead letter; the text is its cause."""


class PackedReader:
    """Reads one message after the other. Messages of one sender begin with the same schema, which is read once."""

    def __init__(self) -> None:
        self._opening: bytes | None = None
        self._schema = EVENT_SCHEMA
        self._is_exact = True

    def read(self, value: bytes) -> pa.RecordBatch:
        """The events of a message, of `EVENT_SCHEMA`, checked by Arrow; not by `FIELD_RULES`."""
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
        if self._is_exact:
            batch.validate(full=True)
            return batch
        known = batch.select([name for name in EVENT_SCHEMA.names if name in self._schema.names])
        known.validate(full=True)  # its length, too, before nulls are made for it
        columns = [
            known.column(field.name) if field.name in known.schema.names else pa.nulls(known.num_rows, field.type)
            for field in EVENT_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _event_columns(schema: pa.Schema) -> pa.Schema:
    """The same schema, if its columns can be events; columns that are no fields are ignored, as in JSON."""
    for rule in FIELD_RULES:
        found = schema.get_all_field_indices(rule.name)
        kind = EVENT_SCHEMA.field(rule.name).type
        if not found and rule.required:
            raise PackedRefused(rule.missing)
        if len(found) > 1 or (found and schema.field(found[0]).type != kind):
            cause = f"'{rule.name}' must be one column of Arrow's type {kind}"
            raise PackedRefused(cause)
    return schema


def _is_compressed(metadata: bytes) -> bool:
    """Whether the buffers of a record batch are compressed; pyarrow shows it only by unpacking them."""
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


def _broken(events: pa.RecordBatch, times: EventTimes, max_event_age_ms: int) -> npt.NDArray[np.int64]:
    """For each event the number of the first rule that it breaks, from 1, its age's the last; 0 for none."""
    broken = np.zeros(events.num_rows, np.int64)
    masks = [mask for rule in FIELD_RULES for _, mask in _faults(rule, events[rule.name])]
    masks.append(pa.array(times.are_too_old(max_event_age_ms)))
    for number, mask in reversed(list(enumerate(masks, start=1))):
        if pc.any(mask).as_py():
            broken[mask.fill_null(False).to_numpy(zero_copy_only=False)] = number
    return broken


def _faults(rule: FieldRule, column: Any) -> Iterator[tuple[str, Any]]:
    """The rules of a field, in the order of `usage_reader`: cause, and where it is broken."""
    if rule.required:
        yield rule.missing, pc.is_null(column)
    if not rule.may_be_empty:
        yield rule.empty, pc.equal(pc.binary_length(column), 0)
    if rule.max_utf8_bytes is not None:
        yield rule.too_long, pc.greater(pc.binary_length(column), rule.max_utf8_bytes)
    if rule.at_least is not None:
        yield rule.too_small, pc.less(column, rule.at_least)
    if rule.at_most is not None:
        yield rule.too_large, pc.greater(column, rule.at_most)


def _letters_of(
    events: pa.RecordBatch,
    broken: npt.NDArray[np.int64],
    places: Sequence[int],
    lengths: npt.NDArray[np.int64],
    rules: ReadingRules,
) -> Iterator[DeadLetter]:
    causes = [cause for rule in FIELD_RULES for cause, _ in _faults(rule, _NO_EVENTS[rule.name])]
    causes.append(too_old(rules.max_event_age_ms))
    ends = np.cumsum(lengths)
    for place, begin, end in zip(places, (ends - lengths).tolist(), ends.tolist(), strict=True):
        dead = np.flatnonzero(broken[begin:end])
        if len(dead):
            found = zip(dead.tolist(), broken[begin:end][dead].tolist(), strict=True)
            refused = [Refused(index, causes[number - 1]) for index, number in found]
            texts_of = partial(_texts, events.slice(begin, end - begin))
            yield from letters_of_elements(place, refused, rules.letters_per_message, texts_of)


def _texts(message: pa.RecordBatch, wanted: Sequence[int]) -> Sequence[bytes]:
    rows = message.take(pa.array(wanted, pa.int64())).to_pylist()
    fields = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return [json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() for one in fields]
