"""Lines of a broker's request log, turned into usage events.

Kafka 4.3.1 writes `[time] DEBUG Completed request:{json} (kafka.request.logger)` for every request when
`kafka.request.logger` is at DEBUG. The line carries the principal, the client-id, both bodies with
`recordsSizeInBytes` in place of records, and the time the request handler worked.

Only a line of exactly this layout is a request: other loggers write client-ids as they come, and a client-id may hold a
whole request that nobody sent. So the file must be one to which no other logger writes.

The log does not contain the time of the network threads, so `network_time_ns` is null in all events of this meter.
(`sendTimeMs` includes the wait for the client, so it is not that time.)
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from pipeline.meter.long_line import Line, LongLine
from pipeline.meter.own_traffic import OwnTraffic
from pipeline.meter.usage_codec import JSON, UsageCodec
from pipeline.meter.usage_element import Client, RequestUsage, new_client
from pipeline.meter.wire_size import UnsupportedVersion, fetch_response_size, produce_request_size
from schemas.usage import UsageEvent

_Made = TypeVar("_Made")

LAYOUT: Final = "[%d] %p %m (%c)%n"
"""The log4j pattern that Kafka's own configuration has."""

_MARK: Final = b"Completed request:"
_BEGIN: Final = re.compile(rb"\[(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3})\] DEBUG Completed request:")
_END: Final = b" (kafka.request.logger)"
_OF_ANOTHER: Final = re.compile(
    rb"\[\d[^\]]*\] [A-Z]+ +(?!Completed request:).* \((?!kafka\.request\.logger\))[\w.$-]+\)", re.DOTALL
)
_NOT_ITS_LAYOUT: Final = (
    f"must be '[time] DEBUG Completed request:{{…}} (kafka.request.logger)'. Fix: give the appender of "
    f"kafka.request.logger the pattern {LAYOUT}, and a file to which no other logger writes"
)
_MOST_CLIENTS: Final = 20_000

# Kafka charges these requests to no client (KIP-124's exempt requests).
EXEMPT_APIS: Final = frozenset({
    "LEADER_AND_ISR", "STOP_REPLICA", "UPDATE_METADATA", "CONTROLLED_SHUTDOWN", "ALTER_PARTITION",
    "VOTE", "BEGIN_QUORUM_EPOCH", "END_QUORUM_EPOCH", "FETCH_SNAPSHOT",
})  # fmt: skip
# A broker charges these to the client that sent them. The controller, to which it forwards them, charges no client.
EXEMPT_APIS_WHEN_FORWARDED: Final = frozenset({
    "DESCRIBE_QUORUM", "ADD_RAFT_VOTER", "REMOVE_RAFT_VOTER", "UPDATE_RAFT_VOTER",
})  # fmt: skip


class MalformedLine(ValueError):
    """A line has `Completed request:` but cannot be read, or is not in Kafka's layout.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(slots=True)
class LineCounts:
    """What the lines so far were. `events + own + malformed + other = lines`.

    Attributes:
        lines: Lines read.
        events: Usage events made.
        own: Lines left out: the cluster's own requests, follower fetches, what meters send to the usage topic.
        malformed: Request lines that could not be read.
        other: Lines of another logger.
        unsized: Events without bytes although the request moved some. The layout of the version or API is not known,
            or the response was never sent. Their io time is counted.
        estimated: Events whose bytes are the most that their line allows: it was too long to be kept whole, or has been
            cut off.
        uncharged_bytes: The length of the malformed lines. No client is charged for them.
    """

    lines: int = 0
    events: int = 0
    own: int = 0
    malformed: int = 0
    other: int = 0
    unsized: int = 0
    estimated: int = 0
    uncharged_bytes: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, column.name):,} {column.name}" for column in fields(self))


class RequestLogParser:
    """Reads request lines of one broker. One thread.

    Args:
        broker_id: Written to every event.
        own_traffic: Requests that are left out.
        time_zone: Zone of the line times; None: the zone of this machine. Log4j writes local time without an
            offset. So in the hour that is repeated when summer time ends, events may be dated an hour early.
        codec: In which `elements` are.
    """

    def __init__(
        self,
        broker_id: str,
        own_traffic: OwnTraffic | None = None,
        time_zone: tzinfo | None = None,
        codec: UsageCodec = JSON,
    ) -> None:
        self.counts = LineCounts()
        self.codec = codec
        self._broker_id = broker_id
        self._own_traffic = own_traffic or OwnTraffic()
        self._time_zone = time_zone
        self._clients: dict[tuple[str, str | None], Client] = {}

    def parse(self, line: Line) -> UsageEvent | None:
        """The usage of one line; None if it is not a request line, or not a client's request.

        Event time is the line's time less `responseQueueTimeMs` and `sendTimeMs`, rounded down to the
        millisecond. That is about the time at which the broker checked the quota. `io_time_ns` is `localTimeMs`.
        A produce request has `produced_bytes`, a fetch has `fetched_bytes`, all other requests have neither. A
        produce request with acks=0 is exempt from request time, as in Kafka. A request that a broker forwarded is
        charged to its user a second time for the controller's work, with `request_count` 0.

        Of a long line the bytes are `LongLine.moved_bytes`, which is never too little. Its bodies are not read.

        Raises:
            MalformedLine: The line cannot be read, whatever is wrong with it. It is already counted.
        """
        return self._read(line, self._event)

    def elements(
        self, lines: Iterable[Line], report: Callable[[MalformedLine, bytes], None]
    ) -> Iterator[tuple[int, Any]]:
        """The events of many lines in the codec, each with the number of its client, as `Element`.

        They are those of `parse`; in JSON without the members that have their default value.

        Args:
            lines: As they are in the log, without line ends.
            report: Called with each line that can not be read, or its beginning.
        """
        make = self.codec.element
        for line in lines:
            try:
                element = self._read(line, make)
            except MalformedLine as exc:
                report(exc, line.shortened if isinstance(line, LongLine) else line)
            else:
                if element is not None:
                    yield element

    def _read(self, line: Line, make: Callable[[RequestUsage], _Made]) -> _Made | None:
        self.counts.lines += 1
        long = line if isinstance(line, LongLine) else None
        text = (line.shortened if isinstance(line, LongLine) else line).removesuffix(b"\r")
        begin = _BEGIN.match(text) if text.endswith(_END) else None
        if begin is None and (_MARK not in text or _OF_ANOTHER.fullmatch(text)):
            self.counts.other += 1
            return None
        try:
            usage = self._usage(*_parts(text, begin), long)
            made = None if usage is None else make(usage)
        except Exception as exc:  # whatever one line is, the others are read
            self.counts.malformed += 1
            self.counts.uncharged_bytes += len(text) if long is None else long.size_bytes
            reason = f"field {exc} is missing" if isinstance(exc, KeyError) else " ".join(str(exc).split())
            raise MalformedLine(reason) from exc
        if made is None:
            self.counts.own += 1
        else:
            self.counts.events += 1
        return made

    def _usage(
        self, time: tuple[bytes, bytes, bytes], logged: dict[str, Any], long: LongLine | None
    ) -> RequestUsage | None:
        header = logged["requestHeader"]
        if self._own_traffic.covers(logged):
            return None
        api = header["requestApiKeyName"]
        produced_bytes = fetched_bytes = None
        throttle_exempt = False
        forwarded = logged["isForwarded"]
        if api == "PRODUCE":
            request = logged["request"]
            produced_bytes = self._produced_bytes(header, request) if long is None else self._estimated_bytes(long)
            throttle_exempt = (bool(request) and request["acks"] if long is None else long.acks) == 0
        elif api in {"FETCH", "SHARE_FETCH"}:
            response = logged["response"]
            fetched_bytes = self._fetched_bytes(header, response) if long is None else self._estimated_bytes(long)
        else:
            throttle_exempt = api in EXEMPT_APIS or bool(forwarded and api in EXEMPT_APIS_WHEN_FORWARDED)
        day, second, fraction = time
        line_time_ms = _epoch_ms(day, second, self._time_zone) + int(fraction)
        return RequestUsage(
            self._client(logged["principal"], header["clientId"]),
            math.floor(line_time_ms - logged["responseQueueTimeMs"] - logged["sendTimeMs"]),
            produced_bytes,
            fetched_bytes,
            # The log has whole microseconds.
            round(logged["localTimeMs"] * 1000) * 1000,
            0 if forwarded else 1,
            throttle_exempt,
        )

    def _client(self, principal: str, client_id: str | None) -> Client:
        known = self._clients.get((principal, client_id))
        if known is None:
            if len(self._clients) >= _MOST_CLIENTS:
                self._clients.clear()
            known = self._clients[principal, client_id] = new_client(principal, client_id, self._broker_id)
        return known

    def _event(self, usage: RequestUsage) -> UsageEvent:
        return UsageEvent(
            event_time_ms=usage.event_time_ms,
            user=usage.client.user,
            client_id=usage.client.client_id,
            broker_id=self._broker_id,
            produced_bytes=usage.produced_bytes,
            fetched_bytes=usage.fetched_bytes,
            io_time_ns=usage.io_time_ns,
            request_count=usage.request_count,
            throttle_exempt=usage.throttle_exempt,
        )

    def _estimated_bytes(self, line: LongLine) -> int:
        self.counts.estimated += 1
        return line.moved_bytes

    def _produced_bytes(self, header: dict[str, Any], request: Any) -> int | None:
        # The body is "" if DEBUG was switched on in the middle of the request.
        try:
            if request:
                return produce_request_size(header["requestApiVersion"], header["clientId"], request)
        except UnsupportedVersion:
            pass
        self.counts.unsized += 1
        return None

    def _fetched_bytes(self, header: dict[str, Any], response: Any) -> int | None:
        # The body is "" if the connection was closed before the response was sent. A share fetch has another layout.
        try:
            if response and header["requestApiKeyName"] == "FETCH":
                return fetch_response_size(header["requestApiVersion"], response)
        except UnsupportedVersion:
            pass
        self.counts.unsized += 1
        return None


def _parts(line: bytes, begin: re.Match[bytes] | None) -> tuple[tuple[bytes, bytes, bytes], dict[str, Any]]:
    """The time of a line, and its JSON as what it should be."""
    if begin is None:
        raise ValueError(_NOT_ITS_LAYOUT)
    day, second, fraction = begin.groups()
    text = line[begin.end() : -len(_END)]
    logged: dict[str, Any]
    try:
        logged = from_json(text, cache_strings="keys", allow_inf_nan=False)
    except ValueError:
        # Bytes that are no UTF-8 are read as question marks.
        logged = from_json(text.decode("utf-8", "replace"), cache_strings="keys", allow_inf_nan=False)
    return (day, second, fraction), logged


@lru_cache(maxsize=64)
def _epoch_ms(day: bytes, second: bytes, zone: tzinfo | None) -> int:
    local = datetime.fromisoformat((day + b"T" + second).decode())
    return int((local.astimezone() if zone is None else local.replace(tzinfo=zone)).timestamp()) * 1000
