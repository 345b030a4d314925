"""The real broker with the reporter in it: how it is started, what it reports, and what its request log says."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo import process
from pipeline.demo.broker import CONTROLLER, FIRST_NODE_ID, VOTERS, BrokerOptions, EmbeddedBroker, plain_sign_in
from schemas.names import USAGE_TOPIC
from tests.pipeline.meter.request_log import LoggedRequest, requests_in
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS, wait_until


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
    options = BrokerOptions(request_log=True, settings=settings, jars=jars, usage_topic=USAGE_TOPIC)
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
