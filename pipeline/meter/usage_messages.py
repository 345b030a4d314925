"""What one request used, its usage event as JSON, and the messages of a transaction.

A meter makes tens of thousands of events a second. So names are checked and encoded once for each client, and the JSON
is joined from them; it equals that of `UsageEvent`.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import to_json

from quota.arrays import Ints
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


Element = tuple[int, bytes]
"""One event: a number made of user and client-id, as all events of a client go to one partition; and its JSON."""


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


def _measure(name: str, value: int, largest: int = LARGEST_MEASURE) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        msg = f"'{name}' is not an integer from 0 to {largest}: {value!r}"
        raise ValueError(msg)
    return value


# The events of one transaction, by partition.

MAX_MESSAGE_BYTES: Final = 512 * 1024
"""The most bytes of a message with several events. A message with one event may have more."""
_MAX_EVENTS: Final = 100


class Message(NamedTuple):
    """One message of the usage topic: some events."""

    partition: int
    value: bytes


@dataclass(slots=True)
class _Open:
    elements: list[bytes]
    size_bytes: int = 0


class UsageBatch:
    """Collects events until they are sent. One thread."""

    def __init__(
        self, partition_count: int, max_events: int = _MAX_EVENTS, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self._open = [_Open([]) for _ in range(partition_count)]
        self._max_events = max_events
        self._largest_bytes = max_message_bytes - 1  # the opening bracket; each event adds a comma, or the closing one
        self._closed: list[Message] = []
        self._events = 0

    def __len__(self) -> int:
        """The number of events that are collected."""
        return self._events

    def add(self, elements: Iterable[Element]) -> None:
        """Add events."""
        partitions, most, largest = self._open, self._max_events, self._largest_bytes
        count = len(partitions)
        for client, value in elements:
            partition = client % count
            message = partitions[partition]
            added_bytes = len(value) + 1
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
        self._closed.append(Message(partition, b"[%b]" % b",".join(message.elements)))
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


def messages_of(usage: pa.Table, partition_count: int) -> list[Message]:
    """The messages that `UsageBatch` would make of the same events, without a request each.

    Args:
        usage: columns of `client_columns`; event_time_ms, int64; `COLUMN_MEASURES`, int64, null = not used.
    """
    partitions = usage["number"].to_numpy() % partition_count
    order = np.argsort(partitions, kind="stable")
    sizes, message = _json_columns(usage.take(pa.array(order)).combine_chunks())
    found, begin = [], 0
    for partition, end in enumerate(np.cumsum(np.bincount(partitions, minlength=partition_count)).tolist()):
        cuts = _cuts(sizes[begin:end], MAX_MESSAGE_BYTES - 1)
        found += [Message(partition, message(begin + first, begin + last)) for first, last in cuts]
        begin = end
    return found


def _json_columns(usage: pa.Table) -> tuple[Ints, Callable[[int, int], bytes]]:
    """The bytes that each event adds to a message, and what makes a message of the events from begin to end."""
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

    return np.diff(all_ends), message


def _joined(*parts: Any) -> pa.ChunkedArray:
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in (*parts, "")]
    return pc.binary_join_element_wise(*texts)


def _cuts(sizes_bytes: Ints, largest_bytes: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each message: as many events as it may have, at least one."""
    until, begin = np.cumsum(sizes_bytes), 0
    while begin < len(until):
        before = int(until[begin - 1]) if begin else 0
        fits = int(np.searchsorted(until, before + largest_bytes, "right"))
        end = max(min(fits, begin + _MOST_ROWS), begin + 1)
        yield begin, end
        begin = end
