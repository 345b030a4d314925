"""The three topics on a real broker: created once, each setting that can be wrong, their ids, the rights on them."""

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from pipeline.cluster.acls import ALTER_QUOTAS, DESCRIBE_QUOTAS, ROLES, Acl, Names, acls_of, grant_commands
from pipeline.cluster.connecting import ClusterAccess, creating_topics
from pipeline.cluster.topics import (
    Finding,
    JobTopics,
    TopicIds,
    check_topics,
    create_topics,
    id_text,
    is_other,
    refuse_unfit,
    topic_specs,
    wanted_topics,
)
from pipeline.command_line import COMMAND_CONFIG, JOB, TABLES_ROOT, carry
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import NotFound, Refused
from pipeline.settings.model import EngineSettings, KafkaSettings, Settings, StreamSettings
from tests.pipeline.cli.running import kquota
from tests.waiting import wait_until

NAMES = ("t.usage", "t.throttle", "t.marker")
SPECS = topic_specs(2, 12_000, *NAMES)


@pytest.mark.parametrize(
    ("longest_throttle_ms", "retention_ms"),
    [(12_000, 3_600_000), (1_800_000, 3_600_000), (1_800_001, 3_600_002), (7_200_000, 14_400_000)],
)
def test_throttles_are_kept_twice_the_longest_and_an_hour_at_least(longest_throttle_ms: int, retention_ms: int) -> None:
    settings = Settings(engine=EngineSettings(consumer_byte_rate_cap=longest_throttle_ms))
    usage, throttle, marker = wanted_topics(settings, cores=3)
    assert (usage.partitions, usage.advised["retention.ms"], marker.partitions) == (6, "86400000", 1)
    assert throttle.advised["retention.ms"] == str(retention_ms)
    assert wanted_topics(settings)[0].partitions == 2 * len(os.sched_getaffinity(0))


def test_warnings_alone_refuse_nothing() -> None:
    warning = Finding("t", "warning", "retention.ms", "1", "2", "command")
    refuse_unfit([warning])

    error = Finding("t", "error", "partitions", "2", "1", "mend it")
    with pytest.raises(Refused, match=r"topic 't': 'partitions' is 2, not 1. Fix: mend it") as caught:
        refuse_unfit([warning, error])
    assert "retention.ms" not in caught.value.message


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Any]:
    client: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    there = set(client.list_topics()) & set(NAMES)
    if there:
        delete(client, sorted(there))
    client.close()


def delete(admin: Any, topics: list[str]) -> None:
    """Deleted, and the broker that describes topics has heard of it; else it may describe the old ones for the new."""
    admin.delete_topics(topics)
    wait_until(lambda: not set(topics) & set(admin.list_topics()), f"{topics} to be gone")


def alter(admin: Any, topic: str, settings: dict[str, str]) -> None:
    config_resource: Any = ConfigResource
    admin.alter_configs([config_resource(ConfigResourceType.TOPIC, topic, settings)])

    def described() -> dict[str, str]:
        answer = admin.describe_configs([config_resource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        return {key: answer["topic"][topic][key]["value"] for key in settings}

    # The controller answers before the broker that describes the topic has heard of it.
    wait_until(lambda: described() == settings, f"{topic} to have {settings}")


@pytest.mark.broker
def test_each_setting_that_differs_is_found_and_its_command_corrects_it(admin: Any, broker: EmbeddedBroker) -> None:
    address = broker.bootstrap_servers
    create_topics(admin, topic_specs(1, 12_000, *NAMES))
    alter(admin, "t.usage", {"message.timestamp.type": "CreateTime", "retention.ms": "3600000"})
    alter(admin, "t.throttle", {"cleanup.policy": "delete", "segment.ms": "604800000"})
    delete(admin, ["t.marker"])
    admin.create_topics({"t.marker": {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)

    found = check_topics(admin, SPECS, address)
    assert [(one.topic, one.what, one.got, one.wanted, one.severity) for one in found] == [
        ("t.usage", "partitions", "2", "4 or more", "warning"),
        ("t.usage", "message.timestamp.type", "CreateTime", "LogAppendTime", "error"),
        ("t.usage", "retention.ms", "3600000", "86400000", "warning"),
        ("t.throttle", "cleanup.policy", "delete", "compact,delete", "error"),
        ("t.throttle", "segment.ms", "604800000", "600000", "warning"),
        ("t.marker", "partitions", "2", "1", "error"),
    ]
    fixes = {(one.topic, one.what): one.fix for one in found}
    configs = f"kafka-configs --bootstrap-server {address} --alter --entity-type topics --entity-name"
    topics = f"kafka-topics --bootstrap-server {address}"
    create = creating_topics(address, dict(zip(("usage", "throttle", "marker"), NAMES, strict=True)))
    assert fixes["t.usage", "retention.ms"] == f"{configs} t.usage --add-config 'retention.ms=86400000'"
    assert (
        fixes["t.throttle", "cleanup.policy"] == f"{configs} t.throttle --add-config 'cleanup.policy=[compact,delete]'"
    )
    assert fixes["t.usage", "partitions"] == f"{topics} --alter --topic t.usage --partitions 4"
    assert fixes["t.marker", "partitions"] == f"{topics} --delete --topic t.marker && {create}"

    alter(admin, "t.throttle", {"cleanup.policy": "compact"})
    harmless = [one for one in check_topics(admin, SPECS, address) if one.what == "cleanup.policy"]
    assert [one.severity for one in harmless] == ["warning"]


def test_the_command_that_creates_topics_names_those_that_have_other_names() -> None:
    usual = creating_topics("broker:9092", {"usage": "quota.usage.v1", "throttle": "quota.throttle.v1"})
    assert usual.endswith("kquota topics create --bootstrap-server broker:9092")
    named = creating_topics("broker:9092", {"usage": "quota.usage.v1", "throttle": "nightly throttles"})
    assert named == f"KQUOTA_KAFKA__THROTTLE_TOPIC='nightly throttles' {usual}"


@pytest.mark.broker
def test_the_commands_create_and_check(admin: Any, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for purpose, name in zip(("USAGE", "THROTTLE", "MARKER"), NAMES, strict=True):
        monkeypatch.setenv(f"KQUOTA_KAFKA__{purpose}_TOPIC", name)
    common = ["--bootstrap-server", broker.bootstrap_servers, "--cores", "2"]
    before = kquota("topics", "check", *common, "-o", "json")
    assert before.exit_code == 5
    missing = [(finding["topic"], finding["severity"]) for finding in json.loads(before.stdout)]
    assert missing == [(name, "error") for name in NAMES]
    for answer in ("created", "exists"):
        created = kquota("topics", "create", *common)
        assert (created.exit_code, created.stdout.count(answer)) == (0, 3)
    alter(admin, "t.throttle", {"cleanup.policy": "delete,compact"})  # in whichever order
    after = kquota("topics", "check", *common, "-o", "json")
    assert (after.exit_code, json.loads(after.stdout)) == (0, [])
    alter(admin, "t.usage", {"message.timestamp.type": "CreateTime"})
    unfit = kquota("topics", "create", *common)
    assert unfit.exit_code == 5
    assert "error: topic 't.usage': 'message.timestamp.type' is CreateTime, not LogAppendTime" in unfit.stderr


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


def test_a_usage_topic_made_anew_is_refused_with_the_command_that_goes_on() -> None:
    for variable, value in {TABLES_ROOT: "/the tables", JOB: "eu", COMMAND_CONFIG: "client.properties"}.items():
        carry(variable, value)
    stream, kafka = StreamSettings(checkpoint="s3://bucket/checkpoint/"), KafkaSettings(bootstrap_servers="b:1,c:1")
    ids = iter([{"quota.throttle.v1": "first"}, {"quota.usage.v1": "first"}, {"quota.usage.v1": "second"}])
    topics = JobTopics(Settings(kafka=kafka, stream=stream), lambda: next(ids))
    with pytest.raises(NotFound, match=r"topic 'quota\.usage\.v1' does not exist at b:1,c:1"):
        topics.begin()
    topics.begin()
    with pytest.raises(Refused) as refused:
        topics.check()
    *variables, _kquota, run, server, address, checkpoint, place = shlex.split(refused.value.fix.partition(": ")[2])
    assert sorted(variables) == [f"{COMMAND_CONFIG}=client.properties", f"{JOB}=eu", f"{TABLES_ROOT}=/the tables"]
    assert (run, server, address) == ("run", "--bootstrap-server", "b:1,c:1")
    assert (checkpoint, Path(place).name) == ("--checkpoint", "checkpoint-second")


def test_a_command_grants_all_operations_on_one_resource() -> None:
    acls = [Acl("topic", "t", "Write"), Acl("group", "g", "Read"), Acl("topic", "t", "Read"), ALTER_QUOTAS]
    shown = [line.partition("--allow-principal ")[2] for line in grant_commands(acls, "User:CN=a b", "b:9092")]
    assert shown == [
        "'User:CN=a b' --operation AlterConfigs --cluster",
        "'User:CN=a b' --operation Read --group g",
        "'User:CN=a b' --operation Read --operation Write --topic t",
    ]


def test_the_command_line_prints_what_each_role_needs_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_KAFKA__USAGE_TOPIC", "u")
    every = kquota("topics", "check", "--acls", "--bootstrap-server", "b:9092")
    assert every.exit_code == 0
    names = Names("u", "quota.throttle.v1", "quota.marker.v1", "kquota")
    for role in ROLES:
        one = kquota("topics", "check", "--role", role, "--principal", "User:m").stdout.splitlines()
        assert one[1:] == grant_commands(acls_of(role, names), "User:m", "BROKER:9092")
        assert one[0] in every.stdout
    assert kquota("topics", "check", "--role", "root").exit_code == 2
    assert acls_of("sync", names) == (DESCRIBE_QUOTAS, ALTER_QUOTAS)
    assert acls_of("import", names) == (DESCRIBE_QUOTAS,)
