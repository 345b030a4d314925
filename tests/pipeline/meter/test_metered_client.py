"""What a client produces and fetches on a real broker, from the broker's own log to the usage topic."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from threading import Event
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from pipeline.clock import SystemClock
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.meter.log_follower import MAX_LINE_BYTES, LogFollower
from pipeline.meter.request_log import OwnTraffic, RequestLogParser, produce_request_size
from pipeline.meter.request_meter import RequestMeter
from pipeline.meter.usage_topic import KafkaUsageTopic, UsagePublisher
from schemas.names import MARKER_TOPIC
from schemas.usage import UsageEvent
from tests.pipeline.meter.logged_requests import event_of
from tests.pipeline.meter.metered_broker import alice, all_events
from tests.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def usage_topic(broker: EmbeddedBroker) -> Iterator[str]:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    create_topics(
        admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in ("metered.usage", "metered", MARKER_TOPIC)]
    )
    yield "metered.usage"
    admin.close()


@pytest.mark.broker
def test_all_that_alice_produces_and_fetches_is_on_the_usage_topic(broker: EmbeddedBroker, usage_topic: str) -> None:
    access = ClusterAccess(broker.bootstrap_servers)
    publisher = UsagePublisher("all", KafkaUsageTopic("all", usage_topic, MARKER_TOPIC, access, 60_000), usage_topic)
    assert publisher.take_over() is None
    meter = RequestMeter(
        LogFollower(broker.request_log_path),
        RequestLogParser("1", OwnTraffic(listeners=frozenset({"CONTROLLER", "PLAINTEXT"}))),
        publisher,
        SystemClock(),
        time.sleep,
    )
    began_ms = time.time_ns() // 1_000_000
    client: Any = KafkaProducer(**alice(broker, client_id="metered-app"))
    for number in range(50):
        client.send("metered", bytes(1000 + number), partition=0).get(PATIENCE_SECONDS)
    client.close()
    reader: Any = KafkaConsumer(**alice(broker, client_id="metered-reader", auto_offset_reset="earliest"))
    reader.assign([TopicPartition("metered", 0)])
    read = 0
    while read < 50:
        read += sum(len(records) for records in reader.poll(500).values())
    reader.close()
    # One record of n zero bytes is a batch of 61 + 9 + n: 6 bytes of record fields and 3 bytes of lengths.
    sizes = [61 + 9 + 1000 + number for number in range(50)]

    def is_metered() -> bool:
        events = metered_events(broker, usage_topic)
        fetched = sum(event.get("fetched_bytes", 0) for event in events)
        return sum("produced_bytes" in event for event in events) >= 50 and fetched > sum(sizes)

    stopping = Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(meter.run, stopping.is_set)
        try:
            wait_until(is_metered, "all that was produced and fetched to be on the usage topic")
        finally:
            stopping.set()
        assert running.result(PATIENCE_SECONDS)

    events = metered_events(broker, usage_topic)
    produced = [event["produced_bytes"] for event in events if "produced_bytes" in event]
    assert sum(produced) == sum(
        produce_request_size(
            9,
            "metered-app",
            {
                "transactionalId": None,
                "topicData": [{"name": "metered", "partitionData": [{"recordsSizeInBytes": size}]}],
            },
        )
        for size in sizes
    )
    assert len(produced) == 50
    fetched = sum(event.get("fetched_bytes", 0) for event in events)
    assert sum(sizes) < fetched < sum(sizes) * 1.1
    assert {event["user"] for event in events} == {"alice"}
    assert all(began_ms <= event["event_time_ms"] <= time.time_ns() // 1_000_000 for event in events)


@pytest.mark.broker
def test_a_line_of_a_broker_names_its_client_and_times_when_it_is_too_long(
    broker: EmbeddedBroker, usage_topic: str
) -> None:
    name = 'long","principal":"User:mallory","request":{"acks":0,\x01'
    client: Any = KafkaProducer(**alice(broker, client_id=name))
    client.send("metered", bytes(1000), partition=0).get(PATIENCE_SECONDS)
    client.close()

    def events(max_line_bytes: int) -> list[UsageEvent]:
        parser = RequestLogParser("1")
        with closing(LogFollower(broker.request_log_path, "beginning", max_line_bytes=max_line_bytes)) as follower:
            lines = list(chain.from_iterable(iter(follower.read, [])))
        return [event for line in lines if (event := event_of(parser, line)) and event.client_id == name]

    wait_until(lambda: any(event.produced_bytes for event in events(MAX_LINE_BYTES)), "the produce request in the log")
    for whole, long in zip(events(MAX_LINE_BYTES), events(1), strict=False):
        same = {"produced_bytes": 0, "fetched_bytes": 0}
        assert whole.model_copy(update=same) == long.model_copy(update=same)
        assert long.user == "alice"
        assert (long.produced_bytes or 0) >= (whole.produced_bytes or 0)
        assert (long.produced_bytes is None) == (whole.produced_bytes is None)


def metered_events(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    return [event for event in all_events(broker, topic) if event["client_id"].startswith("metered-")]
