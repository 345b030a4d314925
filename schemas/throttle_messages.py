"""Records of the throttle topic by columns: from stored rows to the bytes of many messages at once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from schemas.arrow import arrow_schema
from schemas.errors import UnsupportedFieldType
from schemas.throttle_record import (
    SENSOR_FIELD,
    ThrottleEventRow,
    ThrottleRecord,
    source_header,
    stored_record,
    time_header,
    type_header,
    unchanging_headers,
)

if TYPE_CHECKING:  # pyarrow's classes are generic to its stubs only
    from typing import TypeAlias

    Texts: TypeAlias = pa.Array[Any]

_STRINGS: Final[TypeAdapter[str | None]] = TypeAdapter(str | None)
_FLOATS: Final[TypeAdapter[list[float | None]]] = TypeAdapter(list[float | None])
_IS_ESCAPED: Final = np.isin(np.arange(256), [*range(0x20), ord('"'), ord("\\")])


def json_texts(record: str, name: str, column: "Texts") -> "Texts":
    """The JSON text of each string, integer or float of a column; `null` for null. Or `UnsupportedFieldType`.

    Text beyond ASCII stays as it is; what JSON escapes is escaped in the shortest way.
    """
    if pa.types.is_string(column.type):
        texts = _quoted(column)
    elif pa.types.is_integer(column.type):
        texts = column.cast(pa.string())
    elif pa.types.is_floating(column.type):
        return _floats(column)
    else:
        raise UnsupportedFieldType(record, name, column.type)
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _quoted(names: "Texts") -> "Texts":
    if not _is_plain(names):
        return pa.array([_STRINGS.dump_json(name).decode() for name in names.to_pylist()], pa.string())
    quote = pa.scalar('"')
    quoted: Texts = pc.binary_join_element_wise(quote, names, quote, "")
    return quoted


def _is_plain(names: "Texts") -> bool:
    """Whether no name has a character that JSON escapes. In UTF-8 these are single bytes, and part of no other."""
    _, offsets, data = names.buffers()
    if not len(names) or data is None:
        return True
    ends = np.frombuffer(offsets, np.int32, len(names) + 1, names.offset * np.dtype(np.int32).itemsize)
    return not _IS_ESCAPED[np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]].any()


def _floats(numbers: "Texts") -> "Texts":
    # No other library writes a float exactly as pydantic does: which digits, and where an exponent begins.
    if not len(numbers):
        return pa.array([], pa.string())
    written = _FLOATS.dump_json(numbers.to_pylist())
    return pa.array(written[1:-1].split(b","), pa.binary()).cast(pa.string())


Header = tuple[str, bytes]


class Message(NamedTuple):
    """A record as a producer sends it."""

    key: bytes
    value: bytes
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Keys, values and headers of many messages, all binary; a header has a value for each, or one for all."""

    keys: "Texts"
    values: "Texts"
    headers: "tuple[tuple[str, Texts | bytes], ...]"

    def __len__(self) -> int:
        return len(self.keys)

    def messages(self) -> list[Message]:
        """The same one by one."""
        headers = [_repeated(name, values, len(self)) for name, values in self.headers]
        each = map(list, zip(*headers, strict=True)) if headers else ([] for _ in range(len(self)))
        return list(map(Message, self.keys.to_pylist(), self.values.to_pylist(), each))


def _repeated(name: str, values: "Texts | bytes", times: int) -> list[Header]:
    if isinstance(values, bytes):
        return [(name, values)] * times
    return [(name, value) for value in values.to_pylist()]


_SENSOR: Final = ("sensor_user", "sensor_client_id")
_COLUMNS: Final = tuple(
    column for name in ThrottleRecord.model_fields for column in (_SENSOR if name == SENSOR_FIELD else (name,))
)
_MANY: Final = 24  # from here on columns are quicker
_KEY: Final = ("cluster", "broker_id", "user", "client_id")


class ThrottleRecords(Sequence[ThrottleRecord]):
    """Records of the throttle topic as columns of `throttle_events`. An element becomes an object when asked for."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows.select(_COLUMNS)

    @classmethod
    def of(cls, records: Iterable[ThrottleRecord]) -> Self:
        """These records by columns. Those that are kept so already are returned as they are."""
        if isinstance(records, cls):
            return records
        schema = arrow_schema(ThrottleEventRow)
        rows = [{**dict(one), **dict(zip(_SENSOR, one.sensor, strict=True))} for one in records]
        return cls(pa.Table.from_pylist(rows, schema=pa.schema([schema.field(name) for name in _COLUMNS])))

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    @overload
    def __getitem__(self, place: int) -> ThrottleRecord: ...
    @overload
    def __getitem__(self, place: slice) -> "ThrottleRecords": ...
    def __getitem__(self, place: int | slice) -> "ThrottleRecord | ThrottleRecords":
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step == 1:
                return ThrottleRecords(self._rows.slice(start, max(stop - start, 0)))
            return ThrottleRecords(self._rows.take(pa.array(range(start, stop, step), pa.int64())))
        (row,) = self._rows.slice(range(len(self))[place], 1).to_pylist()
        return stored_record(row)

    def __iter__(self) -> Iterator[ThrottleRecord]:
        return map(stored_record, self._rows.to_pylist())

    def messages(self, job: str) -> list[Message]:
        """What a producer sends: of each record the same bytes as its own `key`, `to_value` and `headers`."""
        if len(self) < _MANY:
            return [Message(one.key(), one.to_value(), one.headers(job)) for one in self]
        return self.message_columns(job).messages()

    def message_columns(self, job: str) -> MessageColumns:
        """The same as `messages`, by columns; there must be records."""
        columns = {name: self._rows[name].combine_chunks() for name in _COLUMNS}
        texts = {name: _texts_of(name, column) for name, column in columns.items()}
        keys, values = (_joined(pieces, len(self)) for pieces in (_key_pieces(texts), _value_pieces(texts)))
        return MessageColumns(keys, values, _headers(columns, job))


def _texts_of(name: str, column: "Texts") -> "Texts | str":
    """The JSON text of each value; one text if all values are equal. Floats that are equal may differ in their sign."""
    is_float = pa.types.is_floating(column.type)
    if is_float or column.null_count or not pc.all(pc.equal(column, column[0])).as_py():
        return json_texts(ThrottleRecord.__name__, name, column)
    text: str = json_texts(ThrottleRecord.__name__, name, column.slice(0, 1))[0].as_py()
    return text


def _value_pieces(texts: "Mapping[str, Texts | str]") -> "list[Texts | str]":
    pieces: list[Texts | str] = []
    for name in ThrottleRecord.model_fields:
        begin = f'{"," if pieces else "{"}"{name}":'
        if name == SENSOR_FIELD:
            user, client_id = (texts[part] for part in _SENSOR)
            pieces += [f"{begin}[", user, ",", client_id, "]"]
        else:
            pieces += [begin, texts[name]]
    return [*pieces, "}"]


def _key_pieces(texts: "Mapping[str, Texts | str]") -> "list[Texts | str]":
    cluster, broker_id, user, client_id = (texts[name] for name in _KEY)
    return ["[", cluster, ",", broker_id, ",", user, ",", client_id, "]"]


def _joined(pieces: "Iterable[Texts | str]", num_records: int) -> "Texts":
    merged: list[Any] = [""]
    for piece in pieces:
        if isinstance(piece, str) and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if len(merged) == 1:
        return pa.repeat(merged[0].encode(), num_records)
    return pc.binary_join_element_wise(*merged, "").cast(pa.binary())


def _headers(columns: "dict[str, Texts]", job: str) -> "tuple[tuple[str, Texts | bytes], ...]":
    version, kquota_job, content_type = unchanging_headers(job)
    ids = pc.binary_join_element_wise(columns["decision_id"], columns["publish_seq"].cast(pa.string()), "/")
    types = pc.binary_join_element_wise(columns["action"], columns["schema_version"].cast(pa.string()), ".")
    stored_ms = pc.subtract(columns["throttled_until_ms"], columns["throttle_time_ms"])
    return (
        version,
        ("ce_id", ids.cast(pa.binary())),
        _each_value(types, lambda text: type_header(*text.rsplit(".", 1))),
        _each_value(columns["cluster"], source_header),
        kquota_job,
        _each_value(stored_ms, time_header),
        content_type,
    )


def _each_value(column: "Texts", header: Callable[[Any], Header]) -> "tuple[str, Texts | bytes]":
    """The header of each value; made once for equal ones."""
    encoded = column.dictionary_encode()
    made = [header(value) for value in encoded.dictionary.to_pylist()]
    if len(made) == 1:
        return made[0]
    return made[0][0], pa.array([value for _, value in made], pa.binary()).take(encoded.indices)
