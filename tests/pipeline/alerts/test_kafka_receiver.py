"""Alerts on a Kafka topic: of a real broker, and while there is none."""

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient

from pipeline.alerts.receivers import KafkaReceiver
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from tests.topic_reading import read_topic

if TYPE_CHECKING:
    from pipeline.demo.broker import EmbeddedBroker

MESSAGE = {"version": "4", "groupKey": 'kquota-shop:{owner="web"}', "alerts": [{"labels": {"user": "夜間"}}]}


@pytest.mark.broker
def test_a_message_is_a_record_under_the_key_of_its_group(broker: "EmbeddedBroker") -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    create_topics(admin, [TopicSpec("told.alerts", "throttle", 2, "any", {}, {})])
    admin.close()
    receiver = KafkaReceiver("told.alerts", ClusterAccess(broker.bootstrap_servers), 60_000)
    answers = [receiver.send(MESSAGE), receiver.send({**MESSAGE, "status": "resolved"})]
    receiver.close()
    assert [answer.verdict for answer in answers] == ["taken", "taken"]
    records = list(read_topic(broker.bootstrap_servers, "told.alerts"))
    assert {record.key for record in records} == {MESSAGE["groupKey"].encode()}  # type: ignore[attr-defined]
    assert [json.loads(record.value) for record in records] == [
        {"receiver": "topic", **MESSAGE},
        {"receiver": "topic", **MESSAGE, "status": "resolved"},
    ]
    assert len({record.partition for record in records}) == 1
    assert receiver.place == f"told.alerts at {broker.bootstrap_servers}"


@pytest.mark.usefixtures("impatient")
def test_without_a_broker_it_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    answer = KafkaReceiver("told.alerts", ClusterAccess(address), 60_000).send(MESSAGE)
    assert answer.verdict == "later"
    assert address in answer.text
