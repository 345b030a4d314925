"""A topic that was deleted and made anew is known by its id, on a real broker and in the commands that are printed."""

import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaConnectionError

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topic_ids import JobTopics, TopicIds, id_text, is_other
from pipeline.command_line import COMMAND_CONFIG, JOB, TABLES_ROOT, carry, carry_nothing
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import ClusterUnreachable, PipelineError, Refused
from pipeline.settings.model import KafkaSettings, Settings, StreamSettings
from tests.waiting import wait_until


@pytest.mark.broker
def test_a_topic_made_anew_has_another_id_and_one_that_is_gone_has_none(broker: EmbeddedBroker) -> None:
    access = ClusterAccess(broker.bootstrap_servers)
    with access.admin() as admin, closing(TopicIds(access, ("ids.a", "ids.b"))) as ask:
        admin.create_topics({"ids.a": {"num_partitions": 1, "replication_factor": 1}})
        wait_until(lambda: bool(ask().get("ids.a")), "the id of the topic")
        first = ask()
        admin.delete_topics(["ids.a"])
        wait_until(lambda: ask() == {}, "the topic to be gone")
        admin.create_topics({"ids.a": {"num_partitions": 1, "replication_factor": 1}})
        wait_until(lambda: bool(ask().get("ids.a")), "the id of the new topic")
        assert is_other(first, ask(), "ids.a")
        assert len(first["ids.a"]) == 22, "as kafka-topics prints it"


class Connections:
    """Stands for a cluster: of the connections to it, those first in the list fail."""

    bootstrap_servers = "memory"

    def __init__(self, fails: list[bool]) -> None:
        self.fails, self.closed = fails, 0

    def open(self, _make: type[KafkaAdminClient], **_options: Any) -> Any:
        return self

    def close(self) -> None:
        self.closed += 1

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        if self.fails.pop(0):
            raise KafkaConnectionError
        return [{"name": name, "topic_id": None, "error_code": 0} for name in names]


def test_a_connection_from_before_a_brokers_restart_is_replaced() -> None:
    cluster: Any = Connections([True, False])
    assert TopicIds(cluster, ["a"])() == {"a": ""}
    assert cluster.closed == 1


def test_a_cluster_that_is_away_is_named() -> None:
    cluster: Any = Connections([True, True])
    with pytest.raises(ClusterUnreachable, match="no Kafka broker answers at memory"):
        TopicIds(cluster, ["a"])()


@pytest.mark.parametrize(
    ("topic_id", "text"),
    [
        (None, ""),
        ("00000000-0000-0000-0000-000000000000", ""),
        ("0fe5715c-3093-41a0-92f5-14e31ed97d4a", "D-VxXDCTQaCS9RTjHtl9Sg"),
    ],
)
def test_an_id_is_shown_as_kafkas_tools_show_it(topic_id: str | None, text: str) -> None:
    assert id_text(topic_id) == text


@pytest.mark.parametrize("ids", [{}, {"quota.usage.v1": ""}, {"quota.usage.v1": "first"}, {"another": "second"}])
def test_only_ids_that_are_both_known_are_compared(ids: dict[str, str]) -> None:
    assert not is_other(ids, {"quota.usage.v1": "first"}, "quota.usage.v1")
    assert not is_other({"quota.usage.v1": "first"}, ids, "quota.usage.v1")


def test_a_life_begins_only_with_a_usage_topic() -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers="b:1"))
    with pytest.raises(PipelineError, match=r"topic 'quota\.usage\.v1' does not exist at b:1"):
        JobTopics(settings, lambda: {"quota.throttle.v1": "first"}).begin()


@pytest.fixture
def _nothing_carried() -> Iterator[None]:
    carry_nothing()
    yield
    carry_nothing()


@pytest.mark.usefixtures("_nothing_carried")
def test_the_printed_command_names_all_that_the_job_needs() -> None:
    for variable, value in {TABLES_ROOT: "/the tables", JOB: "eu", COMMAND_CONFIG: "client.properties"}.items():
        carry(variable, value)
    stream, kafka = StreamSettings(checkpoint="s3://bucket/checkpoint/"), KafkaSettings(bootstrap_servers="b:1,c:1")
    ids = iter([{"quota.usage.v1": "first"}, {"quota.usage.v1": "second"}])
    topics = JobTopics(Settings(kafka=kafka, stream=stream), lambda: next(ids))
    topics.begin()
    with pytest.raises(Refused) as refused:
        topics.check()
    *variables, _kquota, run, server, address, checkpoint, place = shlex.split(refused.value.fix.partition(": ")[2])
    assert sorted(variables) == [f"{COMMAND_CONFIG}=client.properties", f"{JOB}=eu", f"{TABLES_ROOT}=/the tables"]
    assert (run, server, address) == ("run", "--bootstrap-server", "b:1,c:1")
    assert (checkpoint, Path(place).name) == ("--checkpoint", "checkpoint-second")
