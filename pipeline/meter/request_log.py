"""Lines of a broker's request log, turned into usage events: whose requests count, their sizes on the wire, the parser.

Kafka 4.3.1 writes `[time] DEBUG Completed request:{json} (kafka.request.logger)` for every request when
`kafka.request.logger` is at DEBUG. The line carries the principal, the client-id, both bodies with
`recordsSizeInBytes` in place of records, and the time the request handler worked.

Only a line of exactly this layout is a request: other loggers write client-ids as they come, and a client-id may hold a
whole request that was never sent. So the file must be one to which no other logger writes.

The log does not contain the time of the network threads, so `network_time_ns` is null in all events of this meter.
(`sendTimeMs` includes the wait for the client, so it is not that time.)
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json

from pipeline.cluster.acls import METER_IDENTITIES
from pipeline.meter.long_line import Line, LongLine
from pipeline.meter.usage_messages import Client, Element, RequestUsage, element_of, new_client
from pipeline.meter.usage_topic import UsageTopic

# Requests that are not usage of clients: those of the cluster itself, and what meters send.

_TRANSACTION_APIS: Final = frozenset({
    "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN", "TXN_OFFSET_COMMIT", "END_TXN",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnTraffic:
    """Requests that are not reported: those of the cluster itself, and what meters send.

    A request is the cluster's if its listener **and** its principal are named here. Both are needed: on a cluster
    without authentication every client is `User:ANONYMOUS`, and an authenticated client may reach an internal
    listener.

    A produce request that writes only to the usage topic is left out, whoever sends it. If meters reported such
    requests, each report would be the next usage to report: each meter's for itself, and the meters' for each other,
    without end. The topic identifies them, not their names: a meter sees the requests of all other meters, and does not
    know as whom they sign in. Only meters have the right to write to this topic. A meter writes in transactions, so
    the requests of transactions whose id is a meter's are left out too, and so are `WRITE_TXN_MARKERS`, which only
    brokers send. All other requests of a meter are reported like those of any client.

    `listeners` are those that brokers and controllers use among themselves, `principals` (`Type:name`) who they are
    there.
    """

    listeners: frozenset[str] = frozenset({"CONTROLLER"})
    principals: frozenset[str] = frozenset({"User:ANONYMOUS"})
    usage_topic: UsageTopic = field(default_factory=UsageTopic)

    def covers(self, logged: dict[str, Any]) -> bool:
        """Whether a request is left out; `KeyError`, `TypeError` or `AttributeError` if it lacks a part."""
        if logged["listener"] in self.listeners and logged["principal"] in self.principals:
            return True
        api, request = logged["requestHeader"]["requestApiKeyName"], logged["request"]
        if api == "PRODUCE":
            return self.usage_topic.is_all_of(request)
        if api == "FETCH":
            return _is_follower(request)
        if api in _TRANSACTION_APIS:
            return _is_of_meters(request)
        return bool(api == "WRITE_TXN_MARKERS")


def _is_follower(request: Any) -> bool:
    # Up to v14 the id is in the body, later in a tagged struct that consumers leave out. -1 means a consumer.
    if not request:
        return False
    replica_id: int = request.get("replicaId", (request.get("replicaState") or {}).get("replicaId", -1))
    return replica_id >= 0


def _is_of_meters(request: Any) -> bool:
    # Clients send one transaction. A broker sends several (v4 and later), before it lets their records in.
    if not request:
        return False
    several = request.get("transactions")
    ids: list[str | None] = (
        [each["transactionalId"] for each in several]
        if several
        else [request.get("v3AndBelowTransactionalId") or request.get("transactionalId")]
    )
    return all(each is not None and each.startswith(METER_IDENTITIES) for each in ids)


# Sizes of produce requests and fetch responses. Kafka charges a produce request with header and body, and a fetch with
# 4 bytes and the response body, both without the 4-byte frame length. The request log prints the bodies with
# `recordsSizeInBytes` in place of the records, so the exact sizes follow from the protocol's schemas. Produce v3 to v13
# and Fetch v4 to v18 are known here. Kafka 4 brokers accept no other versions.

Body = Mapping[str, Any]

PRODUCE_VERSIONS: Final = range(3, 14)
FETCH_VERSIONS: Final = range(4, 19)

_PRODUCE_FLEXIBLE: Final = 9
_PRODUCE_TOPIC_ID: Final = 13
_FETCH_FLEXIBLE: Final = 12
_FETCH_TOPIC_ID: Final = 13
_FETCH_SESSION: Final = 7
_FETCH_LOG_START: Final = 5
_FETCH_READ_REPLICA: Final = 11

_UUID_BYTES: Final = 16
# One byte each for tag number and length, then the struct. An epoch or a leader id has 4 bytes, an offset has 8, and
# each struct ends with an empty tag buffer of its own.
_FETCH_PARTITION_TAGS: Final = {
    "divergingEpoch": 2 + 4 + 8 + 1,
    "currentLeader": 2 + 4 + 4 + 1,
    "snapshotId": 2 + 8 + 4 + 1,
}


class UnsupportedVersion(ValueError):
    """The body's layout in this version is not known here."""

    def __init__(self, version: int, known: range, api: str) -> None:
        super().__init__(f"version {version} of {api} is unknown; known are {known[0]} to {known[-1]}")


def unsigned_varint_size(value: int) -> int:
    """Bytes of `value` as an unsigned varint: 7 bits per byte, at least one byte. 127 needs 1, 128 needs 2."""
    return ((value | 1).bit_length() + 6) // 7


def produce_request_size(version: int, client_id: str | None, request: Body) -> int:
    """Bytes Kafka charges to the producer byte rate for one produce request.

    Args:
        version: `requestApiVersion`, 3 to 13.
        client_id: From the header; null and "" have the same size.
        request: The logged body: `transactionalId`, `topicData[].partitionData[].recordsSizeInBytes`.

    Returns:
        Header and body, without the frame length. Tagged fields that a client adds are not in the log, so they do
        not count.

    Raises:
        UnsupportedVersion: Another version.
        KeyError, TypeError: A part of the body is missing.
    """
    if version not in PRODUCE_VERSIONS:
        raise UnsupportedVersion(version, PRODUCE_VERSIONS, api="PRODUCE")
    flexible = version >= _PRODUCE_FLEXIBLE
    # Header: api key 2, version 2, correlation id 4, client-id with a 2-byte length in every version.
    size = 2 + 2 + 4 + 2 + len((client_id or "").encode()) + flexible
    # acks 2, timeout 4; no partition has more than its index and its records.
    size += _string(request["transactionalId"] or "", flexible) + 2 + 4
    topics: Sequence[Body] = request["topicData"]
    size += _array(len(topics), flexible)
    for topic in topics:
        partitions: Sequence[Body] = topic["partitionData"]
        size += _UUID_BYTES if version >= _PRODUCE_TOPIC_ID else _string(topic["name"], flexible)
        size += _array(len(partitions), flexible) + flexible
        size += sum(4 + _records(partition, flexible) + flexible for partition in partitions)
    return size + flexible


def fetch_response_size(version: int, response: Body) -> int:
    """Bytes Kafka charges to the consumer byte rate for one fetch.

    Args:
        version: `requestApiVersion`, 4 to 18.
        response: The logged body: `responses[].partitions[]`, each with `recordsSizeInBytes` and
            `abortedTransactions`.

    Returns:
        4 + the body. A response without partitions (nothing new, or emptied by a throttle) still has a size: 16
        bytes from v12 on.

    Raises:
        UnsupportedVersion: Another version.
        KeyError, TypeError: A part of the body is missing.
    """
    if version not in FETCH_VERSIONS:
        raise UnsupportedVersion(version, FETCH_VERSIONS, api="FETCH")
    flexible = version >= _FETCH_FLEXIBLE
    topics: Sequence[Body] = response["responses"]
    size = 4 + 4 + _array(len(topics), flexible)
    size += (2 + 4) if version >= _FETCH_SESSION else 0
    for topic in topics:
        partitions: Sequence[Body] = topic["partitions"]
        size += _UUID_BYTES if version >= _FETCH_TOPIC_ID else _string(topic["topic"], flexible)
        size += _array(len(partitions), flexible) + flexible
        size += sum(_fetched_partition(version, partition) for partition in partitions)
    if flexible:
        size += 1 + _node_endpoints(response.get("nodeEndpoints") or ())
    return size


def _fetched_partition(version: int, partition: Body) -> int:
    flexible = version >= _FETCH_FLEXIBLE
    aborted: Sequence[Body] | None = partition["abortedTransactions"]
    size = 4 + 2 + 8 + 8  # index, error, high watermark, last stable offset
    size += 8 if version >= _FETCH_LOG_START else 0
    size += 4 if version >= _FETCH_READ_REPLICA else 0
    size += _array(len(aborted or ()), flexible) + (16 + flexible) * len(aborted or ())
    size += _records(partition, flexible)
    if flexible:
        size += 1 + sum(size for tag, size in _FETCH_PARTITION_TAGS.items() if tag in partition)
    return size


def _node_endpoints(endpoints: Iterable[Body]) -> int:
    # Only sent, under one tag of the response, with errors that direct a client to another leader.
    structs = [4 + _string(node["host"], True) + 4 + _string(node.get("rack") or "", True) + 1 for node in endpoints]
    if not structs:
        return 0
    field_bytes = _array(len(structs), True) + sum(structs)
    return 1 + unsigned_varint_size(field_bytes) + field_bytes


def _records(partition: Body, flexible: bool) -> int:
    records_bytes: int | None = partition.get("recordsSizeInBytes")
    if records_bytes is None or records_bytes < 0:  # null records
        return 1 if flexible else 4
    return (unsigned_varint_size(records_bytes + 1) if flexible else 4) + records_bytes


def _array(length: int, flexible: bool) -> int:
    return unsigned_varint_size(length + 1) if flexible else 4


def _string(text: str, flexible: bool) -> int:
    size = len(text.encode())
    return size + (unsigned_varint_size(size + 1) if flexible else 2)


LAYOUT: Final = "[%d] %p %m (%c)%n"
"""The log4j pattern that Kafka's own configuration has."""

_MARK: Final = b"Completed request:"
_BEGIN: Final = re.compile(rb"\[(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3})\] DEBUG Completed request:")
_END: Final = b" (kafka.request.logger)"
_OF_ANOTHER: Final = re.compile(
    rb"\[\d[^\]]*\] [A-Z]+ +(?!Completed request:).* \((?!kafka\.request\.logger\))[\w.$-]+\)", re.DOTALL
)
_NOT_ITS_LAYOUT: Final = (
    f"not of the form '[time] DEBUG Completed request:{{…}} (kafka.request.logger)'. Fix: give the appender of "
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
    """A line has `Completed request:` but cannot be read, or is not in Kafka's layout."""


@dataclass(slots=True)
class LineCounts:
    """What the lines so far were. `events + own + malformed + other = lines`.

    Attributes:
        own: Lines left out: the cluster's own requests, follower fetches, what meters send to the usage topic.
        malformed: Request lines that could not be read.
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

    Event time is the line's time less `responseQueueTimeMs` and `sendTimeMs`, rounded down to the millisecond. That is
    about the time at which the broker checked the quota. `io_time_ns` is `localTimeMs`. A produce request has
    `produced_bytes`, a fetch has `fetched_bytes`, all other requests have neither. A produce request with acks=0 is
    exempt from request time, as in Kafka. A request that a broker forwarded is charged to its user a second time for
    the controller's work, with `request_count` 0.

    Of a long line the bytes are `LongLine.moved_bytes`, which is never too little. Its bodies are not read.

    Args:
        time_zone: Zone of the line times; None: the zone of this machine. Log4j writes local time without an
            offset. So in the hour that is repeated when summer time ends, events may be dated an hour early.
    """

    def __init__(
        self,
        broker_id: str,
        own_traffic: OwnTraffic | None = None,
        time_zone: tzinfo | None = None,
    ) -> None:
        self.counts = LineCounts()
        self._broker_id = broker_id
        self._own_traffic = own_traffic or OwnTraffic()
        self._time_zone = time_zone
        self._clients: dict[tuple[str, str | None], Client] = {}

    def elements(self, lines: Iterable[Line], report: Callable[[MalformedLine, bytes], None]) -> Iterator[Element]:
        """The events of the lines that are a client's request.

        Args:
            lines: As they are in the log, without line ends.
            report: Called with each line that cannot be read, or its beginning.
        """
        for line in lines:
            try:
                element = self._read(line)
            except MalformedLine as exc:
                report(exc, line.shortened if isinstance(line, LongLine) else line)
            else:
                if element is not None:
                    yield element

    def _read(self, line: Line) -> Element | None:
        self.counts.lines += 1
        long = line if isinstance(line, LongLine) else None
        text = (line.shortened if isinstance(line, LongLine) else line).removesuffix(b"\r")
        begin = _BEGIN.match(text) if text.endswith(_END) else None
        if begin is None and (_MARK not in text or _OF_ANOTHER.fullmatch(text)):
            self.counts.other += 1
            return None
        try:
            usage = self._usage(*_parts(text, begin), long)
            element = None if usage is None else element_of(usage)
        except Exception as exc:  # whatever one line is, the others are read
            self.counts.malformed += 1
            self.counts.uncharged_bytes += len(text) if long is None else long.size_bytes
            reason = f"field {exc} is missing" if isinstance(exc, KeyError) else " ".join(str(exc).split())
            raise MalformedLine(reason) from exc
        if element is None:
            self.counts.own += 1
        else:
            self.counts.events += 1
        return element

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
            produced_bytes = self._moved_bytes(header, request, long)
            throttle_exempt = (bool(request) and request["acks"] if long is None else long.acks) == 0
        elif api in {"FETCH", "SHARE_FETCH"}:
            fetched_bytes = self._moved_bytes(header, logged["response"], long)
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

    def _moved_bytes(self, header: dict[str, Any], body: Any, long: LongLine | None) -> int | None:
        if long is not None:
            self.counts.estimated += 1
            return long.moved_bytes
        # The body is "" if DEBUG was switched on in the middle of the request, or if the connection was closed before
        # the response was sent. A share fetch has another layout.
        api = header["requestApiKeyName"]
        try:
            if body and api == "PRODUCE":
                return produce_request_size(header["requestApiVersion"], header["clientId"], body)
            if body and api == "FETCH":
                return fetch_response_size(header["requestApiVersion"], body)
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
        # Bytes that are not UTF-8 are read as question marks.
        logged = from_json(text.decode("utf-8", "replace"), cache_strings="keys", allow_inf_nan=False)
    return (day, second, fraction), logged


@lru_cache(maxsize=64)
def _epoch_ms(day: bytes, second: bytes, zone: tzinfo | None) -> int:
    local = datetime.fromisoformat((day + b"T" + second).decode())
    return int((local.astimezone() if zone is None else local.replace(tzinfo=zone)).timestamp()) * 1000
