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
    TopicSpec,
    check_topics,
    create_topics,
    id_text,
    is_other,
    refuse_unfit,
    topic_specs,
    wanted_topics,
)
from pipeline.command_line import COMMAND_CONFIG, JOB, TABLES_ROOT, carry, carry_nothing
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import PipelineError, Refused
from pipeline.settings.model import EngineSettings, KafkaSettings, Settings, StreamSettings
from tests.pipeline.cli.running import kquota
from tests.waiting import wait_until

NAMES = ("t.usage", "t.throttle", "t.marker")


def specs(cores: int = 2, longest_throttle_ms: int = 12_000) -> tuple[TopicSpec, TopicSpec, TopicSpec]:
    return topic_specs(cores, longest_throttle_ms, *NAMES)


def test_the_usage_topic_has_two_partitions_per_core_and_keeps_a_day() -> None:
    usage, _, marker = specs(cores=3)

    assert (usage.partitions, usage.advised["retention.ms"]) == (6, "86400000")
    assert marker.partitions == 1


@pytest.mark.parametrize(
    ("longest_throttle_ms", "retention_ms"),
    [(12_000, 3_600_000), (1_800_000, 3_600_000), (1_800_001, 3_600_002), (7_200_000, 14_400_000)],
)
def test_throttles_are_kept_twice_as_long_as_the_longest_and_an_hour_at_least(
    longest_throttle_ms: int, retention_ms: int
) -> None:
    assert specs(longest_throttle_ms=longest_throttle_ms)[1].advised["retention.ms"] == str(retention_ms)


def test_the_settings_say_how_long_the_longest_throttle_is() -> None:
    settings = Settings(engine=EngineSettings(consumer_byte_rate_cap=7_200_000))
    specs = wanted_topics(settings, cores=3)
    assert specs[1].advised["retention.ms"] == "14400000"
    assert specs[0].partitions == 6
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


def alter(admin: Any, topic: str, **settings: str) -> None:
    config_resource: Any = ConfigResource
    changes = {key.replace("_", "."): value for key, value in settings.items()}
    admin.alter_configs([config_resource(ConfigResourceType.TOPIC, topic, changes)])

    def described() -> dict[str, Any]:
        answer = admin.describe_configs([config_resource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        settings: dict[str, Any] = answer["topic"][topic]
        return settings

    # The controller answers before the broker that describes the topic has heard of it.
    wait_until(lambda: {key: described()[key]["value"] for key in changes} == changes, f"{topic} to have {changes}")


@pytest.mark.broker
def test_topics_that_are_missing_are_errors_until_they_are_created_once(admin: Any, broker: EmbeddedBroker) -> None:
    address = broker.bootstrap_servers
    findings = check_topics(admin, specs(), address)
    assert [(finding.topic, finding.severity, finding.what) for finding in findings] == [
        (name, "error", "topic") for name in NAMES
    ]
    assert findings[0].fix == creating_topics(address, dict(zip(("usage", "throttle", "marker"), NAMES, strict=True)))

    assert create_topics(admin, specs()) == dict.fromkeys(NAMES, "created")
    assert create_topics(admin, specs()) == dict.fromkeys(NAMES, "exists")
    assert check_topics(admin, specs(), address) == []


@pytest.mark.broker
@pytest.mark.parametrize(
    ("topic", "key", "value", "severity", "wanted"),
    [
        ("t.usage", "message.timestamp.type", "CreateTime", "error", "LogAppendTime"),
        ("t.usage", "retention.ms", "3600000", "warning", "86400000"),
        ("t.throttle", "cleanup.policy", "delete", "error", "[compact,delete]"),
        ("t.throttle", "cleanup.policy", "compact", "warning", "[compact,delete]"),
        ("t.throttle", "segment.ms", "604800000", "warning", "600000"),
    ],
)
def test_a_setting_that_differs_is_found_and_its_command_corrects_it(
    admin: Any, broker: EmbeddedBroker, topic: str, key: str, value: str, severity: str, wanted: str
) -> None:
    create_topics(admin, specs())
    alter(admin, topic, **{key: value})

    (finding,) = check_topics(admin, specs(), broker.bootstrap_servers)

    assert (finding.topic, finding.what, finding.got, finding.severity) == (topic, key, value, severity)
    assert finding.fix == (
        f"kafka-configs --bootstrap-server {broker.bootstrap_servers} --alter --entity-type topics "
        f"--entity-name {topic} --add-config '{key}={wanted}'"
    )


@pytest.mark.broker
def test_a_marker_of_many_partitions_is_an_error_and_a_small_usage_topic_a_warning(
    admin: Any, broker: EmbeddedBroker
) -> None:
    create_topics(admin, specs(cores=1))
    delete(admin, ["t.marker"])
    admin.create_topics({"t.marker": {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)

    usage, marker = check_topics(admin, specs(cores=2), broker.bootstrap_servers)

    assert (usage.severity, usage.got, usage.wanted) == ("warning", "2", "4 or more")
    assert usage.fix.endswith("--alter --topic t.usage --partitions 4")
    assert (marker.severity, marker.got, marker.wanted) == ("error", "2", "1")
    assert "kquota topics create" in marker.fix


def test_the_command_that_creates_topics_names_those_that_have_other_names() -> None:
    usual = creating_topics("broker:9092", {"usage": "quota.usage.v1", "throttle": "quota.throttle.v1"})
    assert usual.endswith("kquota topics create --bootstrap-server broker:9092")
    named = creating_topics("broker:9092", {"usage": "quota.usage.v1", "throttle": "nightly throttles"})
    assert named == f"KQUOTA_KAFKA__THROTTLE_TOPIC='nightly throttles' {usual}"


@pytest.mark.broker
def test_the_command_line_creates_and_checks(
    admin: Any, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for purpose, name in zip(("USAGE", "THROTTLE", "MARKER"), NAMES, strict=True):
        monkeypatch.setenv(f"KQUOTA_KAFKA__{purpose}_TOPIC", name)
    common = ["--bootstrap-server", broker.bootstrap_servers, "--cores", "2"]
    before = kquota("topics", "check", *common, "-o", "json")
    assert before.exit_code == 5
    assert [finding["topic"] for finding in json.loads(before.stdout)] == list(NAMES)
    created = kquota("topics", "create", *common)
    assert (created.exit_code, created.stdout.count("created")) == (0, 3)
    alter(admin, "t.throttle", cleanup_policy="delete,compact")  # in whichever order
    after = kquota("topics", "check", *common, "-o", "json")
    assert (after.exit_code, json.loads(after.stdout)) == (0, [])
    alter(admin, "t.usage", message_timestamp_type="CreateTime")
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


ROLE_NAMES = Names("u", "t", "m", "j1")


def test_every_role_names_its_own_resources_and_none_twice() -> None:
    for role in ROLES:
        acls = acls_of(role, ROLE_NAMES)
        assert len(set(acls)) == len(acls) > 0
        assert {acl.name for acl in acls} <= {"u", "t", "m", "kquota-j1", "kquota-meter.prometheus", "kafka-cluster"}
    assert acls_of("meter", ROLE_NAMES) == (
        Acl("topic", "u", "Write"),
        Acl("topic", "m", "Read"),
        Acl("group", "kquota-meter.prometheus", "Read"),
        Acl("transactional-id", "kquota-meter.prometheus", "Write"),
    )
    assert acls_of("sync", ROLE_NAMES) == (DESCRIBE_QUOTAS, ALTER_QUOTAS)
    assert acls_of("gate", ROLE_NAMES) == (Acl("topic", "t", "Read"),)


def test_a_command_grants_all_operations_on_one_resource() -> None:
    acls = [Acl("topic", "t", "Write"), Acl("group", "g", "Read"), Acl("topic", "t", "Read"), ALTER_QUOTAS]
    shown = [line.partition("--allow-principal ")[2] for line in grant_commands(acls, "User:CN=a b", "b:9092")]
    assert shown == [
        "'User:CN=a b' --operation AlterConfigs --cluster",
        "'User:CN=a b' --operation Read --group g",
        "'User:CN=a b' --operation Read --operation Write --topic t",
    ]


def test_the_command_line_prints_what_each_role_needs_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    every = kquota("topics", "check", "--acls", "--bootstrap-server", "b:9092")
    assert every.exit_code == 0
    assert [line.partition(":")[0] for line in every.stdout.splitlines() if line[0] == "#"] == [
        f"# {role}" for role in ROLES
    ]
    monkeypatch.setenv("KQUOTA_KAFKA__USAGE_TOPIC", "u")
    one = kquota("topics", "check", "--role", "meter", "--principal", "User:m").stdout
    names = Names("u", "quota.throttle.v1", "quota.marker.v1", "kquota")
    assert one.splitlines()[1:] == grant_commands(acls_of("meter", names), "User:m", "BROKER:9092")
    unknown = kquota("topics", "check", "--role", "root")
    assert unknown.exit_code != 0
    assert f"unknown role 'root'; roles are {', '.join(ROLES)}" in unknown.stderr
