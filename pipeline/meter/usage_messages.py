"""What a client used, as the messages of the usage topic that tell it in JSON, which equals that of `UsageEvent`.

Names are checked and encoded once for each client.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from pydantic_core import to_json

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


_MOST_EVENTS: Final = 1_000
_MEASURES: Final = (b"produced_bytes", b"fetched_bytes", b"io_time_ns")


class Used(NamedTuple):
    """What a client used until an instant, by measure: bytes, bytes and ns; 0 = nothing of it."""

    client: Client
    event_time_ms: int
    amounts: Sequence[int]


def messages_of(usage: Iterable[Used], partition_count: int) -> list[Message]:
    """The messages of some usage; the events of a client keep their order."""
    events: dict[int, list[bytes]] = {}
    for one in usage:
        used = b"".join(b',"%b":%d' % pair for pair in zip(_MEASURES, one.amounts, strict=True) if pair[1])
        event = b'{"event_time_ms":%d%b%b,"request_count":0}' % (one.event_time_ms, one.client.names, used)
        events.setdefault(one.client.number % partition_count, []).append(event)
    return [
        Message(partition, b"[%b]" % b",".join(part))
        for partition in sorted(events)
        for part in _parts(events[partition])
    ]


def _parts(events: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The events of each message: as many as it may have, at least one."""
    begin, size_bytes = 0, 2
    for at, event in enumerate(events):
        size_bytes += len(event) + 1
        if at > begin and (at - begin == _MOST_EVENTS or size_bytes > MAX_MESSAGE_BYTES):
            yield events[begin:at]
            begin, size_bytes = at, len(event) + 3
    yield events[begin:]
