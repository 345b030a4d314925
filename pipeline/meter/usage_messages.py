"""What one request used, its usage event as JSON or packed Arrow, and the messages of a transaction.

A meter makes tens of thousands of events a second. So names are checked and encoded once for each client, and the JSON
is joined from them; it equals that of `UsageEvent`.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import to_json

from quota.arrays import Ints
from schemas.columns import columns
from schemas.usage import LARGEST_MEASURE, UsageEvent

_LARGEST_TIME_MS: Final = 2**63 - 1


class Client(NamedTuple):
    """A client as its events name it. All names are valid.

    Attributes:
        client_id: "" if it has none.
        number: See `Element`.
        names: The members of an event's JSON that name client and broker.
    """

    user: str
    client_id: str
    broker_id: str
    number: int
    names: bytes


class RequestUsage(NamedTuple):
    """What one request, or several, used; fields as in `UsageEvent`. Measures are not checked yet."""

    client: Client
    event_time_ms: int
    produced_bytes: int | None
    fetched_bytes: int | None
    io_time_ns: int | None
    request_count: int
    throttle_exempt: bool


Element = tuple[int, Any]
"""One event: a number made of user and client-id, as all events of a client go to one partition; and its value."""


def new_client(principal: str, client_id: str | None, broker_id: str) -> Client:
    """A client by its principal, `Type:name`, and client-id; `ValueError` if a name cannot be in a usage event."""
    user = principal.partition(":")[2]
    valid = UsageEvent(event_time_ms=0, user=user, client_id=client_id or "", broker_id=broker_id)
    named = (valid.user, valid.client_id, valid.broker_id)
    entity = f"{valid.user}\0{valid.client_id}".encode()
    names = b',"user":%b,"client_id":%b,"broker_id":%b' % tuple(map(to_json, named))
    return Client(*named, zlib.crc32(entity), names)


def element_of(usage: RequestUsage) -> Element:
    """The event without members that have their default value; `ValueError` if a measure cannot be in one."""
    client, event_time_ms, produced_bytes, fetched_bytes, io_time_ns, request_count, throttle_exempt = usage
    used = b""
    if produced_bytes is not None:
        used = b',"produced_bytes":%d' % _measure("produced_bytes", produced_bytes)
    if fetched_bytes is not None:
        used += b',"fetched_bytes":%d' % _measure("fetched_bytes", fetched_bytes)
    if io_time_ns is not None:
        used += b',"io_time_ns":%d' % _measure("io_time_ns", io_time_ns)
    if request_count != 1:
        used += b',"request_count":%d' % request_count
    if throttle_exempt:
        used += b',"throttle_exempt":true'
    _measure("event_time_ms", event_time_ms, _LARGEST_TIME_MS)
    return client.number, b'{"event_time_ms":%d%b%b}' % (event_time_ms, client.names, used)


def check_measures(usage: RequestUsage) -> None:
    """Refuse what `element_of` refuses, with `ValueError`."""
    for name in ("produced_bytes", "fetched_bytes", "io_time_ns"):
        value = getattr(usage, name)
        if value is not None:
            _measure(name, value)
    _measure("event_time_ms", usage.event_time_ms, _LARGEST_TIME_MS)


def _measure(name: str, value: int, largest: int = LARGEST_MEASURE) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        msg = f"'{name}' is not an integer from 0 to {largest}: {value!r}"
        raise ValueError(msg)
    return value


# Codecs: arrays of JSON objects, or packed messages.


@dataclass(frozen=True, slots=True)
class UsageCodec:
    """One way to write events.

    Attributes:
        element: What is kept of a request until its message is made: the number of its client (see `Element`), and what
            `size_bytes` and `message` take. Raises ValueError if a measure cannot be in a usage event.
        size_bytes: The most that one event adds to a message.
        message: The value of a message with these events, in order.
        opening_bytes: The most that a message has around them.
    """

    element: Callable[[RequestUsage], Element]
    size_bytes: Callable[[Any], int]
    message: Callable[[Sequence[Any]], bytes]
    opening_bytes: int
    max_events: int
    is_packed: bool


def _array(elements: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"


def _with_comma(element: bytes) -> int:
    return len(element) + 1


JSON: Final = UsageCodec(element_of, _with_comma, _array, opening_bytes=1, max_events=100, is_packed=False)


# Packed: an Arrow IPC stream of one record batch, whose columns are the fields of `UsageEvent`. The job reads it
# several times as fast as JSON (docs/measured.md). A field that the log does not have is null, which means its
# default.

_SCHEMA: Final = pa.schema([(column.name, pa.type_for_alias(column.type.arrow)) for column in columns(UsageEvent)])
# Eight numbers, three ends of texts, and the bits of eleven columns.
_MEASURES_BYTES: Final = 8 * 8 + 3 * 4 + 3
# Names and types of the columns, and what fills each column up to a multiple of 8 bytes.
_OPENING_BYTES: Final = 4_096


def _element(usage: RequestUsage) -> Element:
    check_measures(usage)
    return usage.client.number, usage


def _size_bytes(usage: RequestUsage) -> int:
    # As JSON a text has at least as many bytes as it has as UTF-8.
    return _MEASURES_BYTES + len(usage.client.names)


def _message(usages: Sequence[RequestUsage]) -> bytes:
    clients, times_ms, produced_bytes, fetched_bytes, io_time_ns, request_counts, are_exempt = zip(*usages, strict=True)
    users, client_ids, broker_ids = zip(*[client[:3] for client in clients], strict=True)
    known = {
        "event_time_ms": times_ms,
        "user": users,
        "client_id": client_ids,
        "broker_id": broker_ids,
        "produced_bytes": produced_bytes,
        "fetched_bytes": fetched_bytes,
        "io_time_ns": io_time_ns,
        "request_count": request_counts,
        "throttle_exempt": are_exempt,
    }
    return _packed({name: pa.array(values, _SCHEMA.field(name).type) for name, values in known.items()}, len(usages))


def _packed(known: Mapping[str, pa.Array], count: int) -> bytes:
    arrays = [known[field.name] if field.name in known else pa.nulls(count, field.type) for field in _SCHEMA]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
    return bytes(sink.getvalue().to_pybytes())


PACKED: Final = UsageCodec(
    _element, _size_bytes, _message, opening_bytes=_OPENING_BYTES, max_events=1_000, is_packed=True
)


# The events of one transaction, by partition.

MAX_MESSAGE_BYTES: Final = 512 * 1024
"""The most bytes of a message with several events. A message with one event may have more."""


class Message(NamedTuple):
    """One message of the usage topic: some events."""

    partition: int
    value: bytes


@dataclass(slots=True)
class _Open:
    elements: list[Any]
    size_bytes: int = 0


class UsageBatch:
    """Collects events until they are sent. One thread. `max_events` None: as many as is good for the codec."""

    def __init__(
        self,
        partition_count: int,
        codec: UsageCodec = JSON,
        max_events: int | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._open = [_Open([]) for _ in range(partition_count)]
        self._codec = codec
        self._max_events = codec.max_events if max_events is None else max_events
        self._largest_bytes = max_message_bytes - codec.opening_bytes
        self._closed: list[Message] = []
        self._events = 0

    def __len__(self) -> int:
        """The number of events that are collected."""
        return self._events

    def add(self, elements: Iterable[Element]) -> None:
        """Add events."""
        partitions, most, largest, size_of = self._open, self._max_events, self._largest_bytes, self._codec.size_bytes
        count = len(partitions)
        for client, value in elements:
            partition = client % count
            message = partitions[partition]
            added_bytes = size_of(value)
            if message.size_bytes + added_bytes > largest and message.elements:
                self._close(partition)
            message.elements.append(value)
            message.size_bytes += added_bytes
            self._events += 1
            if len(message.elements) >= most:
                self._close(partition)

    def messages(self) -> list[Message]:
        """All that was added since `clear`, in the order of each partition."""
        for partition, message in enumerate(self._open):
            if message.elements:
                self._close(partition)
        return self._closed

    def clear(self) -> None:
        """Forget all events: they are stored."""
        self.messages()
        self._closed = []
        self._events = 0

    def _close(self, partition: int) -> None:
        message = self._open[partition]
        self._closed.append(Message(partition, self._codec.message(message.elements)))
        message.elements.clear()
        message.size_bytes = 0


# Usage that is known as columns, a row for each client and second, as scrapes give it. Nothing is done row by row.

COLUMN_MEASURES: Final = ("produced_bytes", "fetched_bytes", "io_time_ns")
_MOST_ROWS: Final = 1_000
_TEXT: Final = pa.large_string()


def client_columns(clients: Sequence[Client]) -> pa.Table:
    """Clients as a table with the fields of `Client`, in their order."""
    columns: list[Sequence[Any]] = list(zip(*clients, strict=True)) if clients else [()] * len(Client._fields)
    types = [pa.string(), pa.string(), pa.string(), pa.int64(), pa.binary()]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    names = arrays[-1].cast(pa.string()).cast(_TEXT)
    return pa.Table.from_arrays([*arrays[:-1], names], names=list(Client._fields))


def messages_of(usage: pa.Table, partition_count: int, codec: UsageCodec) -> list[Message]:
    """The messages that `UsageBatch` would make of the same events, without a request each.

    Args:
        usage: columns of `client_columns`; event_time_ms, int64; `COLUMN_MEASURES`, int64, null = not used.
    """
    partitions = usage["number"].to_numpy() % partition_count
    order = np.argsort(partitions, kind="stable")
    sizes, largest_bytes, message = (_packed_columns if codec.is_packed else _json_columns)(
        usage.take(pa.array(order)).combine_chunks()
    )
    found, begin = [], 0
    for partition, end in enumerate(np.cumsum(np.bincount(partitions, minlength=partition_count)).tolist()):
        cuts = _cuts(sizes[begin:end], largest_bytes)
        found += [Message(partition, message(begin + first, begin + last)) for first, last in cuts]
        begin = end
    return found


_Columns = tuple[Ints, int, Callable[[int, int], bytes]]
"""The bytes that each event adds to a message, how many the events of one may have, and what makes the message."""


def _json_columns(usage: pa.Table) -> _Columns:
    used = [
        pc.fill_null(_joined(f',"{name}":', usage[name].cast(_TEXT)), "")
        for name in COLUMN_MEASURES
        if usage[name].null_count < len(usage)
    ]
    times = usage["event_time_ms"].cast(_TEXT)
    texts = _joined('{"event_time_ms":', times, usage["names"], *used, ',"request_count":0},').combine_chunks()
    _, ends, data = texts.buffers()
    all_ends = np.frombuffer(ends, np.int64)[texts.offset : texts.offset + len(texts) + 1]

    def message(begin: int, end: int) -> bytes:
        return b"[%b]" % data[int(all_ends[begin]) : int(all_ends[end]) - 1].to_pybytes()

    return np.diff(all_ends), MAX_MESSAGE_BYTES - 1, message


def _joined(*parts: Any) -> pa.ChunkedArray:
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in (*parts, "")]
    return pc.binary_join_element_wise(*texts)


def _packed_columns(usage: pa.Table) -> _Columns:
    columns = {name: usage[name].chunk(0) for name in usage.column_names if name in _SCHEMA.names}
    columns["request_count"] = pa.array(np.zeros(len(usage), np.int64))
    columns["throttle_exempt"] = pa.array(np.zeros(len(usage), np.bool_))

    def message(begin: int, end: int) -> bytes:
        return _packed({name: column.slice(begin, end - begin) for name, column in columns.items()}, end - begin)

    sizes: Ints = pc.binary_length(usage["names"]).to_numpy() + _MEASURES_BYTES
    return sizes, MAX_MESSAGE_BYTES - _OPENING_BYTES, message


def _cuts(sizes_bytes: Ints, largest_bytes: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each message: as many events as it may have, at least one."""
    until, begin = np.cumsum(sizes_bytes), 0
    while begin < len(until):
        before = int(until[begin - 1]) if begin else 0
        fits = int(np.searchsorted(until, before + largest_bytes, "right"))
        end = max(min(fits, begin + _MOST_ROWS), begin + 1)
        yield begin, end
        begin = end
