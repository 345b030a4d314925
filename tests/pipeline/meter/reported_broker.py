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
from pathlib import Path
from threading import Thread
from typing import Any, Final

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


Used = tuple[str, str, Mapping[str, Any]]
"""User, client-id, and what it used by measure."""


def requests_in(lines: Iterable[bytes]) -> Iterator[Used]:
    """The requests of a file to which no other logger writes; its last line may be unfinished."""
    for line in lines:
        _, begin, rest = line.partition(_BEGIN)
        if begin and line.endswith(_END):
            yield _request(json.loads(rest.removesuffix(_END).decode("utf-8", "replace")))


def _request(logged: Mapping[str, Any]) -> Used:
    header, request, response = logged["requestHeader"], logged["request"], logged["response"]
    api, version, client_id = header["requestApiKeyName"], header["requestApiVersion"], header["clientId"]
    used = {"io_time_ns": round(logged["localTimeMs"] * 1000) * 1000}
    # A body is "" if the connection was closed before the response was sent.
    if api == "PRODUCE" and request:
        used["produced_bytes"] = produce_request_size(version, client_id, request)
    elif api == "FETCH" and response:
        used["fetched_bytes"] = fetch_response_size(version, response)
    return logged["principal"].partition(":")[2], client_id or "", used


Body = Mapping[str, Any]
_PRODUCE_TOPIC_ID: Final = 13
_FETCH_TOPIC_ID: Final = 13
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
    assert 9 <= version <= 13, f"the layout of PRODUCE v{version} is unknown"
    # Header: api key 2, version 2, correlation id 4, client-id with a 2-byte length, tags 1.
    size = 2 + 2 + 4 + 2 + len((client_id or "").encode()) + 1
    # acks 2, timeout 4; no partition has more than its index and its records.
    size += _string(request["transactionalId"] or "") + 2 + 4
    topics: Sequence[Body] = request["topicData"]
    size += _varint(len(topics) + 1)
    for topic in topics:
        partitions: Sequence[Body] = topic["partitionData"]
        size += _UUID_BYTES if version >= _PRODUCE_TOPIC_ID else _string(topic["name"])
        size += _varint(len(partitions) + 1) + 1
        size += sum(4 + _records(partition) + 1 for partition in partitions)
    return size + 1


def fetch_response_size(version: int, response: Body) -> int:
    """Bytes that Kafka charges to the consumer byte rate for one fetch: 4 + the body, also without partitions."""
    assert 12 <= version <= 18, f"the layout of FETCH v{version} is unknown"
    topics: Sequence[Body] = response["responses"]
    size = 4 + 4 + 2 + 4 + _varint(len(topics) + 1)  # throttle time, error, session
    for topic in topics:
        partitions: Sequence[Body] = topic["partitions"]
        size += _UUID_BYTES if version >= _FETCH_TOPIC_ID else _string(topic["topic"])
        size += _varint(len(partitions) + 1) + 1
        size += sum(map(_fetched_partition_size, partitions))
    return size + 1


def _fetched_partition_size(partition: Body) -> int:
    aborted: Sequence[Body] = partition["abortedTransactions"] or ()
    # Index, error, high watermark, last stable offset, log start, replica to read from; then the tags.
    size = 4 + 2 + 8 + 8 + 8 + 4 + _varint(len(aborted) + 1) + 17 * len(aborted) + _records(partition)
    return size + 1 + sum(size for tag, size in _FETCH_PARTITION_TAGS.items() if tag in partition)


def _records(partition: Body) -> int:
    records_bytes: int | None = partition.get("recordsSizeInBytes")
    if records_bytes is None or records_bytes < 0:  # null records
        return 1
    return _varint(records_bytes + 1) + records_bytes


def _string(text: str) -> int:
    size = len(text.encode())
    return _varint(size + 1) + size


def _varint(value: int) -> int:
    """Bytes of an unsigned varint: 7 bits per byte, at least one byte."""
    return ((value | 1).bit_length() + 6) // 7


def all_events(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    return [event for record in read_topic(broker.bootstrap_servers, topic) for event in json.loads(record.value)]


USERS: Final = {"alice": "alice-secret", "b$b": "bob-secret"}  # Kafka writes the second one as b%24b
DATA: Final = "data"
HUGE_QUOTA: Final = {"producer_byte_rate": 1e15, "consumer_byte_rate": 1e15, "request_percentage": 1e9}
Sums = Mapping[tuple[str, str, str], int]


@contextmanager
def reported_broker(folder: Path, jars: tuple[Path, ...] = ()) -> Iterator[EmbeddedBroker]:
    """A broker with the reporter, whose sensors exist for each `<user, client-id>`, and a topic for data.

    * `jars`: of another release than the locked one.
    """
    settings, ports = {"broker.session.timeout.ms": "1000"}, {}
    if jars:
        (ports[CONTROLLER],) = process.free_ports(1)
        settings[VOTERS] = f"{FIRST_NODE_ID}@127.0.0.1:{ports[CONTROLLER]}"
    options = BrokerOptions(java_options=REQUEST_LOG, settings=settings, jars=jars, usage_topic=USAGE_TOPIC)
    with EmbeddedBroker(folder, USERS, ports=ports, options=options) as broker:
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
    sign_in = plain_sign_in(broker.sasl_bootstrap_servers, user, USERS[user])
    with closing(KafkaProducer(**sign_in, client_id=client_id, acks=acks)) as producer:
        for size in sizes:
            producer.send(DATA, bytes(size)).get(PATIENCE_SECONDS)


def consume(broker: EmbeddedBroker, user: str, client_id: str) -> None:
    """Read all of the data once."""
    sign_in = plain_sign_in(broker.sasl_bootstrap_servers, user, USERS[user])
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
    with broker.request_log_path.open("rb") as lines:
        return _sums(requests_in(lines))


def bytes_in(sums: Sums) -> Sums:
    """The bytes of users that have signed in; the reporter's own and those of tools are left out."""
    return {key: value for key, value in sums.items() if key[0] in USERS and key[2].endswith("_bytes")}


def _sums(events: Iterator[Used]) -> Sums:
    sums: Counter[tuple[str, str, str]] = Counter()
    for user, client_id, event in events:
        for name in ("produced_bytes", "fetched_bytes", "io_time_ns"):
            if event.get(name) is not None:
                sums[user, client_id, name] += event[name]
    return dict(sums)
