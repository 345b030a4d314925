"""The real broker with the reporter in it: what it reports, and what its request log says, the judge of these sums.

Kafka writes `[time] DEBUG Completed request:{json} (kafka.request.logger)` for every request when
`kafka.request.logger` is at DEBUG. The line has the principal, the client-id, both bodies with `recordsSizeInBytes` in
place of the records, and the time the request handler worked. It does not have the time of the network threads.
Kafka charges a produce request with header and body, and a fetch with 4 bytes and the response body, both without the
4-byte frame length. So the exact sizes follow from the protocol's schemas.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from pipeline import process
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import (
    CONTROLLER,
    FIRST_NODE_ID,
    REQUEST_LOG,
    VOTERS,
    BrokerOptions,
    EmbeddedBroker,
    plain_sign_in,
)
from schemas.names import USAGE_TOPIC
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS, wait_until

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


def all_events(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    return [event for record in read_topic(broker.bootstrap_servers, topic) for event in events_of(record.value)]


def events_of(value: bytes) -> list[dict[str, Any]]:
    """The events of a message."""
    found: list[dict[str, Any]] = json.loads(value)
    return found


def produced_bytes(values: Iterable[bytes]) -> dict[tuple[str, str, str], int]:
    """Produced bytes of messages by broker, user and client-id; 0 for a client without any."""
    sums: Counter[tuple[str, str, str]] = Counter()
    for event in (event for value in values for event in events_of(value)):
        sums[event["broker_id"], event["user"], event["client_id"]] += event.get("produced_bytes", 0)
    return dict(sums)


USERS: Final = {"alice": "alice-secret", "b$b": "bob-secret"}  # Kafka writes the second one as b%24b
LEFT_OUT: Final = {"carol": "carol-secret"}
DATA: Final = "data"
HUGE_QUOTA: Final = {"producer_byte_rate": 1e15, "consumer_byte_rate": 1e15, "request_percentage": 1e9}
Sums = Mapping[tuple[str, str, str], int]


@contextmanager
def reported_broker(folder: Path, jars: tuple[Path, ...] = ()) -> Iterator[EmbeddedBroker]:
    """A broker with the reporter, whose sensors exist for each `<user, client-id>`, and a topic for data.

    * `jars`: of another release than the locked one.
    """
    settings, ports = {"broker.session.timeout.ms": "1000", "kquota.reporter.exclude.users": "dave,carol"}, {}
    if jars:
        (ports[CONTROLLER],) = process.free_ports(1)
        settings[VOTERS] = f"{FIRST_NODE_ID}@127.0.0.1:{ports[CONTROLLER]}"
    options = BrokerOptions(java_options=REQUEST_LOG, settings=settings, jars=jars, usage_topic=USAGE_TOPIC)
    with EmbeddedBroker(folder, USERS | LEFT_OUT, ports=ports, options=options) as broker:
        make_topics(broker, USAGE_TOPIC, DATA)
        with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
            assert not quotas.alter({NativeEntity.of_row("<default>", "<default>"): HUGE_QUOTA})
        yield broker


def make_topics(broker: EmbeddedBroker, *names: str) -> None:
    with closing(admin_of(broker)) as admin:
        create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in names])


def admin_of(broker: EmbeddedBroker) -> Any:
    admin: Any = KafkaAdminClient
    return admin(bootstrap_servers=broker.bootstrap_servers)


def produce(broker: EmbeddedBroker, user: str, client_id: str, sizes: list[int], acks: int = 1) -> None:
    """Requests of one record each, by a client that comes and goes."""
    sign_in = plain_sign_in(broker.sasl_bootstrap_servers, user, (USERS | LEFT_OUT)[user])
    with closing(KafkaProducer(**sign_in, client_id=client_id, acks=acks)) as producer:
        for size in sizes:
            producer.send(DATA, bytes(size)).get(PATIENCE_SECONDS)


def consume(broker: EmbeddedBroker, user: str, client_id: str) -> None:
    """Read all of the data once."""
    sign_in = plain_sign_in(broker.sasl_bootstrap_servers, user, (USERS | LEFT_OUT)[user])
    with closing(KafkaConsumer(**sign_in, client_id=client_id, group_id=None)) as consumer:
        partition = TopicPartition(DATA, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        while consumer.position(partition) < consumer.end_offsets([partition])[partition]:
            consumer.poll(500)


def come_and_go(broker: EmbeddedBroker) -> None:
    """Clients that produce at once, and one after the other, and one that reads; then wait for the reporter."""
    draw = random.Random(7)
    names = ["etl", "etl", 'a"b\\c,é\n', "", "late"]
    clients = [(user, name, [draw.randrange(50_000) for _ in range(20)]) for name in names for user in ("alice", "b$b")]
    threads = [Thread(target=produce, args=(broker, *client)) for client in clients[:6]]
    for thread in threads:
        thread.start()
    for client in clients[6:]:
        produce(broker, *client)
    for thread in threads:
        thread.join()
    consume(broker, "b$b", "reader")
    wait_for_all(broker)


def wait_for_all(broker: EmbeddedBroker) -> None:
    """Until the reporter has sent all bytes that the request log has."""
    wait_until(lambda: bytes_in(reported(broker)) == bytes_in(logged(broker)), "all bytes of the request log")


def reported(broker: EmbeddedBroker) -> Sums:
    """What the reporter has sent so far, by user, client-id and measure."""
    return _sums((event["user"], event["client_id"], event) for event in all_events(broker, USAGE_TOPIC))


def logged(broker: EmbeddedBroker) -> Sums:
    """What the broker's request log has so far, by user, client-id and measure."""
    return sums_of(requests_of(broker))


def requests_of(broker: EmbeddedBroker) -> Iterator[LoggedRequest]:
    """All requests that the broker has logged."""
    with broker.request_log_path.open("rb") as lines:
        yield from requests_in(lines)


class Exempt(NamedTuple):
    """Requests that are charged to no client."""

    requests: int
    io_time_ns: int


def reported_exempt(broker: EmbeddedBroker) -> Exempt:
    """What the reporter has sent of them so far."""
    events = [event for event in all_events(broker, USAGE_TOPIC) if event.get("throttle_exempt")]
    assert {(event["user"], event["client_id"]) for event in events} <= {("ANONYMOUS", "")}
    return Exempt(sum(event["request_count"] for event in events), sum(event["io_time_ns"] for event in events))


def logged_exempt(broker: EmbeddedBroker) -> Exempt:
    """What the broker's request log has of them, whoever sent them."""
    times_ns = [request.io_time_ns for request in requests_of(broker) if request.throttle_exempt]
    return Exempt(len(times_ns), sum(times_ns))


def sums_of(requests: Iterable[LoggedRequest]) -> Sums:
    """Add up logged requests by user, client-id and measure."""
    return _sums((request.user, request.client_id, request._asdict()) for request in requests)


def bytes_in(sums: Sums) -> Sums:
    """The bytes of users that have signed in; the reporter's own and those of tools are left out."""
    return {key: value for key, value in sums.items() if key[0] in USERS and key[2].endswith("_bytes")}


def _sums(events: Iterator[tuple[str, str, Mapping[str, Any]]]) -> Sums:
    sums: Counter[tuple[str, str, str]] = Counter()
    for user, client_id, event in events:
        for name in ("produced_bytes", "fetched_bytes", "io_time_ns"):
            if event.get(name) is not None:
                sums[user, client_id, name] += event[name]
    return dict(sums)
