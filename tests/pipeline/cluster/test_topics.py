"""The three topics on a real broker: created once, and every setting that can be wrong."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cluster.topics import (
    Finding,
    TopicSpec,
    check_topics,
    create_command,
    create_topics,
    refuse_unfit,
    topic_specs,
    wanted_topics,
)
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Refused
from pipeline.settings.model import EngineSettings, Settings
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


def test_the_settings_say_how_long_the_longest_throttle_is_unless_it_is_given() -> None:
    settings = Settings(engine=EngineSettings(consumer_byte_rate_cap=7_200_000))
    by_settings, given = wanted_topics(settings, cores=3), wanted_topics(settings, 3, 1_800_001)
    assert [specs[1].advised["retention.ms"] for specs in (by_settings, given)] == ["14400000", "3600002"]
    assert by_settings[0].partitions == 6
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
    assert findings[0].fix == create_command(address, specs())

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
def test_the_order_of_cleanup_policies_does_not_matter(admin: Any, broker: EmbeddedBroker) -> None:
    create_topics(admin, specs())
    alter(admin, "t.throttle", cleanup_policy="delete,compact")

    assert check_topics(admin, specs(), broker.bootstrap_servers) == []


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


@pytest.mark.broker
def test_the_command_line_creates_and_checks(admin: Any, broker: EmbeddedBroker) -> None:
    names = ["--usage-topic", "t.usage", "--throttle-topic", "t.throttle", "--marker-topic", "t.marker"]
    common = ["--bootstrap-server", broker.bootstrap_servers, "--cores", "2", *names]
    invoke = CliRunner().invoke

    before = invoke(app, ["topics", "check", *common, "-o", "json"])
    assert before.exit_code == 5
    assert [finding["topic"] for finding in json.loads(before.stdout)] == list(NAMES)

    created = invoke(app, ["topics", "create", *common])
    assert (created.exit_code, created.stdout.count("created")) == (0, 3)

    after = invoke(app, ["topics", "check", *common, "-o", "json"])
    assert (after.exit_code, json.loads(after.stdout)) == (0, [])
    assert after.stderr.startswith("the topics at 127.0.0.1:")

    alter(admin, "t.usage", message_timestamp_type="CreateTime")
    unfit = invoke(app, ["topics", "create", *common])
    assert unfit.exit_code == 5
    assert "error: topic 't.usage': 'message.timestamp.type' is CreateTime, not LogAppendTime" in unfit.stderr


def test_the_command_that_creates_topics_names_those_that_have_other_names() -> None:
    usual = create_command("broker:9092", topic_specs(1, 1_000))
    assert usual.endswith("kquota topics create --bootstrap-server broker:9092")
    named = create_command("broker:9092", topic_specs(1, 1_000, throttle_topic="nightly throttles"))
    assert named == f"{usual} --throttle-topic 'nightly throttles'"
