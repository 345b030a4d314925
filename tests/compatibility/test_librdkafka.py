"""Clients on librdkafka: a broker holds them at a native quota, and they read the throttle topic as any client does."""

import json
from contextlib import closing
from typing import Any

import pytest

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from tests.integration.throttle_job import ThrottleJob
from tests.pipeline.meter.reported_broker import admin_of
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.broker, pytest.mark.long]

confluent_kafka: Any = pytest.importorskip(
    "confluent_kafka", reason="needs confluent-kafka: python -m tests.compatibility"
)

TOPIC = "librdkafka"
BOUND = 200_000
RECORD_BYTES = 10_000
RECORDS = 700  # 35 s at the quota
WARM_MS = 12_000  # the window of a broker is 11 s


def test_a_broker_holds_a_producer_at_its_quota(broker: EmbeddedBroker) -> None:
    with closing(admin_of(broker)) as admin:
        create_topics(admin, [TopicSpec(TOPIC, "demo", 1, "any", {"message.timestamp.type": "LogAppendTime"}, {})])
    entity = NativeEntity.of_row("", TOPIC)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "client.id": TOPIC, "batch.num.messages": 1}
    producer = confluent_kafka.Producer(settings)
    with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
        quotas.alter({entity: {"producer_byte_rate": BOUND}})
        for _ in range(RECORDS):
            producer.produce(TOPIC, bytes(RECORD_BYTES))
        assert producer.flush(PATIENCE_SECONDS) == 0
        quotas.alter({entity: {"producer_byte_rate": None}})
    appended_ms = [record.timestamp for record in read_topic(broker.bootstrap_servers, TOPIC)]
    judged_ms = [at_ms for at_ms in appended_ms if at_ms >= appended_ms[0] + WARM_MS]
    rate = len(judged_ms) * RECORD_BYTES / (judged_ms[-1] - judged_ms[0]) * 1_000
    assert rate == pytest.approx(BOUND, rel=0.15)


def test_a_consumer_reads_records_of_the_throttle_topic(broker: EmbeddedBroker) -> None:
    with closing(ThrottleJob(broker.bootstrap_servers)) as job:
        job.throttle("alice")
        job.release("alice")
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": TOPIC, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(settings | {"isolation.level": "read_committed"})
        try:
            consumer.assign([confluent_kafka.TopicPartition(job.name, 0, 0)])
            messages = consumer.consume(2, timeout=PATIENCE_SECONDS)
        finally:
            consumer.close()
    assert [json.loads(message.value())["action"] for message in messages] == ["throttle", "release"]
