"""Usage of the usage topic, on a real broker."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.clock import SystemClock, wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.errors import PipelineError
from pipeline.observe.sources import SourceState, TopicSource
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

TOPIC = "usage"


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    options = BrokerOptions(start_timeout_seconds=PATIENCE_SECONDS)
    with EmbeddedBroker(tmp_path_factory.mktemp("topic") / "broker", options=options) as broker:
        admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        with closing(admin):
            settings = {"message.timestamp.type": "LogAppendTime"}
            create_topics(admin, [TopicSpec(TOPIC, "usage", 2, "any", settings, settings)])
        yield ClusterAccess(broker.bootstrap_servers)


def send(access: ClusterAccess, *values: bytes) -> None:
    with closing(KafkaProducer(bootstrap_servers=access.bootstrap_servers)) as producer:
        for place, value in enumerate(values):
            producer.send(TOPIC, value, partition=place % 2).get(PATIENCE_SECONDS)


def event(broker_id: str, produced_bytes: int) -> dict[str, Any]:
    who = {"user": "alice", "client_id": "etl", "broker_id": broker_id}
    return {"event_time_ms": wall_ms(), **who, "produced_bytes": produced_bytes}


def test_events_of_a_moment_ago_and_of_now_are_read_and_junk_is_left_out(access: ClusterAccess) -> None:
    send(access, json.dumps(event("1", 1)).encode(), b"junk")
    with closing(TopicSource(access, TOPIC, [1, 2], SystemClock())) as source:
        assert source.states()[0] == SourceState("broker 1", "no usage on usage yet")
        send(access, json.dumps([event("1", 10), event("", 100)]).encode())
        found: list[pa.Table] = []

        def sums() -> int:
            found.append(source.take())
            return sum(sum(part["produced_bytes"].to_pylist()) for part in found)

        wait_until(lambda: sums() == 111, "all events")
        troubles = {state.name: state.trouble for state in source.states()}
        assert troubles == {"broker 1": "", "broker 2": "no usage on usage yet", "broker without an id": ""}
        assert source.is_exact


def test_a_topic_that_does_not_exist_is_named_with_the_command_that_makes_it(access: ClusterAccess) -> None:
    with pytest.raises(PipelineError, match="topic 'nowhere' does not exist") as missing:
        TopicSource(access, "nowhere", [1], SystemClock())
    assert "topics create" in missing.value.fix
