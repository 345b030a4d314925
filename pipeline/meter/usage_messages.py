"""Usage as columns, a row for each client and second, and the messages that tell it in JSON.

Names are checked and encoded once for each client, and the JSON is joined from them by columns; it equals that of
`UsageEvent`. Nothing is done row by row.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import to_json

from quota.arrays import Ints
from schemas.usage import UsageEvent


class Client(NamedTuple):
    """A client as its events name it. All names are valid.

    Attributes:
        client_id: "" if it has none.
        number: Made of user and client-id: all events of a client go to one partition.
        names: The members of an event's JSON that name client and broker.
    """

    user: str
    client_id: str
    broker_id: str
    number: int
    names: bytes


def new_client(user: str, client_id: str, broker_id: str) -> Client:
    """A client by its names; `ValueError` if one of them cannot be in a usage event."""
    valid = UsageEvent(event_time_ms=0, user=user, client_id=client_id, broker_id=broker_id)
    named = (valid.user, valid.client_id, valid.broker_id)
    entity = f"{valid.user}\0{valid.client_id}".encode()
    names = b',"user":%b,"client_id":%b,"broker_id":%b' % tuple(map(to_json, named))
    return Client(*named, zlib.crc32(entity), names)


MAX_MESSAGE_BYTES: Final = 512 * 1024
"""The most bytes of a message with several events. A message with one event may have more."""


class Message(NamedTuple):
    """One message of the usage topic: some events."""

    partition: int
    value: bytes


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
    """The messages of some usage; the events of a client keep their order.

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
