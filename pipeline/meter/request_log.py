"""Lines of a broker's request log, turned into usage events.

Kafka 4.3.1 writes `[time] DEBUG Completed request:{json} (kafka.request.logger)` for every request when
`kafka.request.logger` is at DEBUG. The line carries the principal, the client-id, both bodies with
`recordsSizeInBytes` in place of records, and the time the request handler worked.

The log does not contain the time of the network threads, so `network_time_ns` is null in all events of this meter.
(`sendTimeMs` includes the wait for the client, so it is not that time.)
"""

import json
import math
import re
from dataclasses import dataclass, field, fields
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Any, Final

from pipeline.meter.usage_topic import UsageTopic
from pipeline.meter.wire_size import UnsupportedVersion, fetch_response_size, produce_request_size
from schemas.usage_event import UsageEvent

_MARK: Final = "Completed request:"
_LINE_TIME: Final = re.compile(r"\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3})")
_READ_JSON: Final = json.JSONDecoder().raw_decode

# Kafka charges these requests to no client (KIP-124's exempt requests).
EXEMPT_APIS: Final = frozenset({
    "LEADER_AND_ISR", "STOP_REPLICA", "UPDATE_METADATA", "CONTROLLED_SHUTDOWN", "WRITE_TXN_MARKERS",
    "ALTER_PARTITION", "VOTE", "BEGIN_QUORUM_EPOCH", "END_QUORUM_EPOCH", "FETCH_SNAPSHOT",
})  # fmt: skip
# A broker charges these to the client that sent them. The controller, to which it forwards them, charges no client.
EXEMPT_APIS_WHEN_FORWARDED: Final = frozenset({
    "DESCRIBE_QUORUM", "ADD_RAFT_VOTER", "REMOVE_RAFT_VOTER", "UPDATE_RAFT_VOTER",
})  # fmt: skip


class MalformedLine(ValueError):
    """A line has `Completed request:` but cannot be read.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class OwnTraffic:
    """Requests that are not reported: those of the cluster itself, and what meters send.

    A request is the cluster's if its listener **and** its principal are named here. Both are needed: on a cluster
    without authentication every client is `User:ANONYMOUS`, and an authenticated client may reach an internal
    listener.

    A produce request that writes only to the usage topic is left out, whoever sends it. If meters reported such
    requests, each report would be the next usage to report: each meter's for itself, and the meters' for each other,
    without end. The topic tells them, not their names: a meter sees the requests of all other meters, and does not
    know as whom they sign in. Only meters have the right to write to this topic. All other requests of a meter
    are reported like those of any client.

    Attributes:
        listeners: Listener names that brokers and controllers use among themselves.
        principals: Who they are there, `Type:name`.
        usage_topic: The topic that the meters write to.
    """

    listeners: frozenset[str] = frozenset({"CONTROLLER"})
    principals: frozenset[str] = frozenset({"User:ANONYMOUS"})
    usage_topic: UsageTopic = field(default_factory=UsageTopic)

    def covers(self, logged: dict[str, Any]) -> bool:
        """Whether a request is left out.

        Raises:
            KeyError, TypeError, AttributeError: The logged request lacks a part.
        """
        if logged["listener"] in self.listeners and logged["principal"] in self.principals:
            return True
        api, request = logged["requestHeader"]["requestApiKeyName"], logged["request"]
        if api == "PRODUCE":
            return self.usage_topic.is_all_of(request)
        return api == "FETCH" and _is_follower(request)


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
    """

    lines: int = 0
    events: int = 0
    own: int = 0
    malformed: int = 0
    other: int = 0
    unsized: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, column.name):,} {column.name}" for column in fields(self))


@dataclass(slots=True)
class RequestLogParser:
    """Reads request lines of one broker.

    Args:
        broker_id: Written to every event.
        own_traffic: Requests that are left out.
        time_zone: Zone of the line times; None: the zone of this machine. Log4j writes local time without an
            offset. So in the hour that is repeated when summer time ends, events may be dated an hour early.
    """

    broker_id: str
    own_traffic: OwnTraffic = field(default_factory=OwnTraffic)
    time_zone: tzinfo | None = None
    counts: LineCounts = field(default_factory=LineCounts)

    def parse(self, line: str) -> UsageEvent | None:
        """The usage of one line; None if it is not a request line, or not a client's request.

        Event time is the line's time less `responseQueueTimeMs` and `sendTimeMs`, rounded down to the
        millisecond. That is about the time at which the broker checked the quota. `io_time_ns` is `localTimeMs`.
        A produce request has `produced_bytes`, a fetch has `fetched_bytes`, all other requests have neither. A
        produce request with acks=0 is exempt from request time, as in Kafka. A request that a broker forwarded is
        charged to its user a second time for the controller's work, with `request_count` 0.

        Raises:
            MalformedLine: The line cannot be read. It is already counted.
        """
        self.counts.lines += 1
        start = line.find(_MARK)
        if start < 0:
            self.counts.other += 1
            return None
        try:
            logged, _ = _READ_JSON(line, start + len(_MARK))
            event = self._usage(logged, self._line_time_ms(line))
        except KeyError as exc:
            self.counts.malformed += 1
            reason = f"field {exc} is missing"
            raise MalformedLine(reason) from exc
        except (ValueError, TypeError, AttributeError) as exc:
            self.counts.malformed += 1
            raise MalformedLine(" ".join(str(exc).split())) from exc
        if event is None:
            self.counts.own += 1
        else:
            self.counts.events += 1
        return event

    def _usage(self, logged: dict[str, Any], line_time_ms: int) -> UsageEvent | None:
        header = logged["requestHeader"]
        api = header["requestApiKeyName"]
        if self.own_traffic.covers(logged):
            return None
        produced_bytes = fetched_bytes = None
        if api == "PRODUCE":
            produced_bytes = self._produced_bytes(header, logged["request"])
        elif api in {"FETCH", "SHARE_FETCH"}:
            fetched_bytes = self._fetched_bytes(header, logged["response"])
        forwarded = bool(logged["isForwarded"])
        return UsageEvent(
            event_time_ms=math.floor(line_time_ms - logged["responseQueueTimeMs"] - logged["sendTimeMs"]),
            user=logged["principal"].partition(":")[2],
            client_id=header["clientId"] or "",
            broker_id=self.broker_id,
            produced_bytes=produced_bytes,
            fetched_bytes=fetched_bytes,
            # The log has whole microseconds.
            io_time_ns=round(logged["localTimeMs"] * 1000) * 1000,
            request_count=0 if forwarded else 1,
            throttle_exempt=(
                api in EXEMPT_APIS
                or (forwarded and api in EXEMPT_APIS_WHEN_FORWARDED)
                or (api == "PRODUCE" and bool(logged["request"]) and logged["request"]["acks"] == 0)
            ),
        )

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

    def _line_time_ms(self, line: str) -> int:
        match = _LINE_TIME.match(line)
        if match is None:
            msg = f"must begin with [yyyy-MM-dd HH:mm:ss,SSS]; got {line[:25]!r}"
            raise ValueError(msg)
        return _epoch_ms(f"{match[1]}T{match[2]}", self.time_zone) + int(match[3])


def _is_follower(request: Any) -> bool:
    # Up to v14 the id is in the body, later in a tagged struct that consumers leave out. -1 means a consumer.
    if not request:
        return False
    replica_id: int = request.get("replicaId", (request.get("replicaState") or {}).get("replicaId", -1))
    return replica_id >= 0


@lru_cache(maxsize=64)
def _epoch_ms(local_second: str, zone: tzinfo | None) -> int:
    local = datetime.fromisoformat(local_second)
    return int((local.astimezone() if zone is None else local.replace(tzinfo=zone)).timestamp()) * 1000
