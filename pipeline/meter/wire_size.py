"""Sizes of produce requests and fetch responses, computed from the bodies a request log shows.

Kafka charges a produce request with header and body, and a fetch with 4 bytes and the response body, both
without the 4-byte frame length. The request log prints the bodies with `recordsSizeInBytes` in place of the
records, so the exact sizes follow from the protocol's schemas. Produce v3 to v13 and Fetch v4 to v18 are known
here. Kafka 4 brokers accept no other versions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

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
    """The body's layout in this version is not known here.

    Attributes:
        api: PRODUCE or FETCH.
        version: The version in the log.
    """

    def __init__(self, version: int, known: range, api: str) -> None:
        self.api = api
        self.version = version
        super().__init__(f"'requestApiVersion' of {api} must be {known[0]} to {known[-1]}; got {version}")


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
    # acks 2, timeout 4; no partition has more than its index and its records.
    size = _request_header(client_id, flexible) + _nullable_string(request["transactionalId"], flexible) + 2 + 4
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
    structs = [4 + _string(node["host"], True) + 4 + _nullable_string(node.get("rack"), True) + 1 for node in endpoints]
    if not structs:
        return 0
    field_bytes = _array(len(structs), True) + sum(structs)
    return 1 + unsigned_varint_size(field_bytes) + field_bytes


def _request_header(client_id: str | None, flexible: bool) -> int:
    # api key 2, version 2, correlation id 4, client-id with a 2-byte length in every version.
    return 10 + len((client_id or "").encode()) + flexible


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


def _nullable_string(text: str | None, flexible: bool) -> int:
    return _string(text or "", flexible)
