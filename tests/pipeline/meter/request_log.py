"""A broker's request log, as the judge of what the reporter sends: who asked for what, and what Kafka charges for it.

Kafka writes `[time] DEBUG Completed request:{json} (kafka.request.logger)` for every request when
`kafka.request.logger` is at DEBUG. The line has the principal, the client-id, both bodies with `recordsSizeInBytes` in
place of the records, and the time the request handler worked. It does not have the time of the network threads.

Kafka charges a produce request with header and body, and a fetch with 4 bytes and the response body, both without the
4-byte frame length. So the exact sizes follow from the protocol's schemas.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

_BEGIN: Final = b" DEBUG Completed request:"
_END: Final = b" (kafka.request.logger)\n"

# Kafka charges these requests to no client (KIP-124's exempt requests).
_EXEMPT_APIS: Final = frozenset({
    "LEADER_AND_ISR", "STOP_REPLICA", "UPDATE_METADATA", "CONTROLLED_SHUTDOWN", "ALTER_PARTITION",
    "VOTE", "BEGIN_QUORUM_EPOCH", "END_QUORUM_EPOCH", "FETCH_SNAPSHOT",
})  # fmt: skip
# A broker charges these to the client that sent them. The controller, to which it forwards them, charges no client.
_EXEMPT_APIS_WHEN_FORWARDED: Final = frozenset({
    "DESCRIBE_QUORUM", "ADD_RAFT_VOTER", "REMOVE_RAFT_VOTER", "UPDATE_RAFT_VOTER",
})  # fmt: skip


class LoggedRequest(NamedTuple):
    """One request; `logged_ms` is the line's time, when its response was sent."""

    user: str
    client_id: str
    logged_ms: int
    produced_bytes: int | None
    fetched_bytes: int | None
    io_time_ns: int
    throttle_exempt: bool


def requests_in(lines: Iterable[bytes]) -> Iterator[LoggedRequest]:
    """The requests of a file to which no other logger writes; its last line may be unfinished."""
    for line in lines:
        time, begin, rest = line.partition(_BEGIN)
        if begin and line.endswith(_END):
            text = rest.removesuffix(_END).decode("utf-8", "replace")
            yield _request(time.decode().strip("[]"), json.loads(text))


def _request(time: str, logged: Mapping[str, Any]) -> LoggedRequest:
    header, request, response = logged["requestHeader"], logged["request"], logged["response"]
    api, version, client_id = header["requestApiKeyName"], header["requestApiVersion"], header["clientId"]
    produced_bytes = fetched_bytes = None
    exempt = api in _EXEMPT_APIS or bool(logged["isForwarded"] and api in _EXEMPT_APIS_WHEN_FORWARDED)
    # A body is "" if the connection was closed before the response was sent.
    if api == "PRODUCE" and request:
        produced_bytes = produce_request_size(version, client_id, request)
        exempt = request["acks"] == 0
    elif api == "FETCH" and response:
        fetched_bytes = fetch_response_size(version, response)
    return LoggedRequest(
        logged["principal"].partition(":")[2],
        client_id or "",
        # Log4j writes local time.
        round(datetime.fromisoformat(time).astimezone().timestamp() * 1000),
        produced_bytes,
        fetched_bytes,
        round(logged["localTimeMs"] * 1000) * 1000,
        exempt,
    )


# Sizes. Produce v3 to v13 and Fetch v4 to v18 are known here; Kafka 4 brokers accept no others.

Body = Mapping[str, Any]

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


def produce_request_size(version: int, client_id: str | None, request: Body) -> int:
    """Bytes that Kafka charges to the producer byte rate for one request."""
    assert 3 <= version <= 13, f"the layout of PRODUCE v{version} is unknown"
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
    """Bytes that Kafka charges to the consumer byte rate for one fetch: 4 + the body, also without partitions."""
    assert 4 <= version <= 18, f"the layout of FETCH v{version} is unknown"
    flexible = version >= _FETCH_FLEXIBLE
    topics: Sequence[Body] = response["responses"]
    size = 4 + 4 + _array(len(topics), flexible)
    size += (2 + 4) if version >= _FETCH_SESSION else 0
    for topic in topics:
        partitions: Sequence[Body] = topic["partitions"]
        size += _UUID_BYTES if version >= _FETCH_TOPIC_ID else _string(topic["topic"], flexible)
        size += _array(len(partitions), flexible) + flexible
        size += sum(_fetched_partition(version, partition) for partition in partitions)
    return size + flexible


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


def _records(partition: Body, flexible: bool) -> int:
    records_bytes: int | None = partition.get("recordsSizeInBytes")
    if records_bytes is None or records_bytes < 0:  # null records
        return 1 if flexible else 4
    return (_varint(records_bytes + 1) if flexible else 4) + records_bytes


def _array(length: int, flexible: bool) -> int:
    return _varint(length + 1) if flexible else 4


def _string(text: str, flexible: bool) -> int:
    size = len(text.encode())
    return size + (_varint(size + 1) if flexible else 2)


def _varint(value: int) -> int:
    """Bytes of an unsigned varint: 7 bits per byte, at least one byte."""
    return ((value | 1).bit_length() + 6) // 7
