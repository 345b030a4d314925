"""What one request used, and its usage event as JSON.

A meter makes tens of thousands of events a second. So names are checked and encoded once for each client, and the JSON
is put together from them; it says the same as `UsageEvent` would.
"""

import zlib
from typing import Final, NamedTuple

from pydantic_core import to_json

from schemas.usage import LARGEST_MEASURE, UsageEvent

_LARGEST_TIME_MS: Final = 2**63 - 1


class Client(NamedTuple):
    """A client as its events name it. All names are valid.

    Attributes:
        user: Name of its principal.
        client_id: "" if it has none.
        broker_id: Of the broker that logged its requests.
        number: See `Element.client`.
        names: The members of an event's JSON that name client and broker.
    """

    user: str
    client_id: str
    broker_id: str
    number: int
    names: bytes


class RequestUsage(NamedTuple):
    """What one request used; fields as in `UsageEvent`. Measures are not checked yet."""

    client: Client
    event_time_ms: int
    produced_bytes: int | None
    fetched_bytes: int | None
    io_time_ns: int
    request_count: int
    throttle_exempt: bool


def new_client(principal: str, client_id: str | None, broker_id: str) -> Client:
    """A client by its principal and client-id.

    Args:
        principal: `Type:name`.
        client_id: None if it has none.
        broker_id: Of the broker that logged it.

    Raises:
        ValueError: One of the names can not be in a usage event.
    """
    user = principal.partition(":")[2]
    valid = UsageEvent(event_time_ms=0, user=user, client_id=client_id or "", broker_id=broker_id)
    named = (valid.user, valid.client_id, valid.broker_id)
    entity = f"{valid.user}\0{valid.client_id}".encode()
    names = b',"user":%b,"client_id":%b,"broker_id":%b' % tuple(map(to_json, named))
    return Client(*named, zlib.crc32(entity), names)


def element_of(usage: RequestUsage) -> tuple[int, bytes]:
    """The event as an `Element`; members that have their default value are left out.

    Raises:
        ValueError: A measure can not be in a usage event.
    """
    client, event_time_ms, produced_bytes, fetched_bytes, io_time_ns, request_count, throttle_exempt = usage
    moved = b""
    if produced_bytes is not None:
        moved = b',"produced_bytes":%d' % _measure("produced_bytes", produced_bytes)
    elif fetched_bytes is not None:
        moved = b',"fetched_bytes":%d' % _measure("fetched_bytes", fetched_bytes)
    rest = b"" if request_count == 1 else b',"request_count":%d' % request_count
    if throttle_exempt:
        rest += b',"throttle_exempt":true'
    _measure("event_time_ms", event_time_ms, _LARGEST_TIME_MS)
    _measure("io_time_ns", io_time_ns)
    return client.number, b'{"event_time_ms":%d%b%b,"io_time_ns":%d%b}' % (
        event_time_ms, client.names, moved, io_time_ns, rest,
    )  # fmt: skip


def check_measures(usage: RequestUsage) -> None:
    """Refuse what `element_of` refuses.

    Raises:
        ValueError: A measure can not be in a usage event.
    """
    if usage.produced_bytes is not None:
        _measure("produced_bytes", usage.produced_bytes)
    elif usage.fetched_bytes is not None:
        _measure("fetched_bytes", usage.fetched_bytes)
    _measure("event_time_ms", usage.event_time_ms, _LARGEST_TIME_MS)
    _measure("io_time_ns", usage.io_time_ns)


def _measure(name: str, value: int, largest: int = LARGEST_MEASURE) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        msg = f"'{name}' must be an integer from 0 to {largest}; got {value!r}"
        raise ValueError(msg)
    return value
