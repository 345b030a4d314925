"""The printed ACLs are what each role needs: with all of them it works, without one of them the error names it."""

import logging
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cluster.acls import Acl, Names, PermissionMissing, Role, acls_of, grant_commands
from pipeline.cluster.connecting import missing_acls, refuse_unpermitted
from pipeline.cluster.topics import check_topics, create_topics, topic_specs
from pipeline.cluster.transactions import Mark
from pipeline.gate.follower import KafkaFollower
from pipeline.meter.usage_messages import Message
from pipeline.meter.usage_topic import KafkaUsageTopic
from pipeline.throttle.publisher import Marker
from pipeline.throttle.topic import KafkaThrottleTopic
from tests.pipeline.cluster.secured import Secured
from tests.pipeline.throttle import factories
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

NAMES = Names("acl.usage", "acl.throttle", "acl.marker", "acl")
SPECS = topic_specs(1, 12_000, NAMES.usage_topic, NAMES.throttle_topic, NAMES.marker_topic)
MECHANISM = "SCRAM-SHA-512"


@pytest.fixture(scope="module")
def topics(secured: Secured) -> Secured:
    """The three topics exist."""
    create_topics(secured.admin, SPECS)
    return secured


@pytest.fixture
def role(request: pytest.FixtureRequest, topics: Secured) -> Iterator[Role]:
    """A role whose user has exactly its rights."""
    name: Role = request.param
    topics.allow(name, acls_of(name, NAMES))
    yield name
    topics.forbid(name, acls_of(name, NAMES))


def publish_and_read_back(secured: Secured) -> int:
    """Does what the job does with throttle and marker topic; the highest `publish_seq` on the topic."""
    topic = KafkaThrottleTopic(
        NAMES.job, NAMES.throttle_topic, NAMES.marker_topic, secured.access(MECHANISM, "job"), 5_000
    )
    try:
        found = topic.open()
        number = 0 if found is None else found.next_seq
        topic.publish([factories.record(number)], Marker(number + 1))
        assert topic.committed() == topic.open() == Marker(number + 1)
        return topic.end().publish_seq - number
    finally:
        topic.close()


@pytest.mark.parametrize("role", ["job"], indirect=True)
def test_the_rights_of_the_job_are_enough(topics: Secured, role: Role) -> None:
    with topics.access(MECHANISM, role).admin() as admin:
        assert missing_acls(admin, acls_of(role, NAMES)) == []
        assert check_topics(admin, SPECS, "b:1") == []
    assert publish_and_read_back(topics) == 0


@pytest.mark.parametrize("taken", acls_of("job", NAMES), ids=str)
@pytest.mark.parametrize("role", ["job"], indirect=True)
def test_each_right_of_the_job_is_missed_by_name(topics: Secured, role: Role, taken: Acl) -> None:
    topics.forbid(role, [taken])
    access = topics.access(MECHANISM, role)
    with access.admin() as admin, pytest.raises(PermissionMissing) as refused:
        refuse_unpermitted(admin, acls_of(role, NAMES), access.client_options(), access.bootstrap_servers)
    # Of a topic it may not even describe the cluster tells nothing more.
    assert taken in refused.value.acls
    assert {acl.name for acl in refused.value.acls} == {taken.name}
    assert taken.operation in {"Read"} or refused.value.acls == (taken,)
    assert f"'User:job' is not allowed {refused.value.acls[0]}" in str(refused.value)
    assert refused.value.fix == grant_commands(refused.value.acls, "User:job", access.bootstrap_servers)[0]
    assert refused.value.exit_code == 6


@pytest.mark.parametrize(
    "taken",
    [
        Acl("topic", NAMES.throttle_topic, "Write"),
        Acl("topic", NAMES.marker_topic, "Read"),
        Acl("group", "kquota-acl", "Read"),
        Acl("transactional-id", "kquota-acl", "Write"),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", ["job"], indirect=True)
def test_a_right_that_is_taken_while_the_job_runs_is_named_too(topics: Secured, role: Role, taken: Acl) -> None:
    topics.forbid(role, [taken])
    with pytest.raises(PermissionMissing) as refused:
        publish_and_read_back(topics)
    assert str(taken) in str(refused.value)
    assert grant_commands([taken], "User:job", topics.address(MECHANISM))[0] in str(refused.value)


def meters_topic(topics: Secured) -> KafkaUsageTopic:
    return KafkaUsageTopic(NAMES.usage_topic, NAMES.marker_topic, topics.access(MECHANISM), 5_000)


def store_and_read_back(topics: Secured) -> Mark | None:
    """Does what a meter does."""
    topic = meters_topic(topics)
    try:
        topic.open()
        topic.store([Message(0, b"[]")], Mark(1, "name"))
        return topic.open()
    finally:
        topic.close()


@pytest.mark.parametrize("role", ["meter"], indirect=True)
def test_the_rights_of_a_meter_are_enough(topics: Secured, role: Role) -> None:
    assert store_and_read_back(topics) == Mark(1, "name")


@pytest.mark.parametrize("taken", acls_of("meter", NAMES), ids=str)
@pytest.mark.parametrize("role", ["meter"], indirect=True)
def test_each_right_of_a_meter_is_missed_by_name(topics: Secured, role: Role, taken: Acl) -> None:
    topics.forbid(role, [taken])
    with pytest.raises(PermissionMissing) as refused:
        store_and_read_back(topics)
    assert f"'User:meter' is not allowed {taken}" in str(refused.value)


def test_a_follower_without_its_right_says_so_and_follows_when_it_gets_it(
    topics: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pipeline")
    access = topics.access(MECHANISM, "gate")
    follower = KafkaFollower(access.bootstrap_servers, NAMES.throttle_topic, access.client_options())
    follower.start(lambda *_: None)
    try:
        told = "'User:gate' is not allowed Read on topic 'acl.throttle'"
        wait_until(lambda: told in caplog.text, "the follower to say what it may not")
        assert not follower.wait_until_caught_up(0)
        topics.allow("gate", acls_of("gate", NAMES))
        assert follower.wait_until_caught_up(PATIENCE_SECONDS)
        assert follower.state == "following"
    finally:
        follower.close()


def test_the_operator_creates_and_checks_topics_or_the_error_names_what_is_missing(topics: Secured) -> None:
    access = topics.access(MECHANISM, "operator")
    file = topics.file(topics.properties(MECHANISM, "operator"))
    named = Names("op.usage", "op.throttle", "op.marker", "op")
    options = ["--usage-topic", named.usage_topic, "--throttle-topic", named.throttle_topic]
    options += ["--marker-topic", named.marker_topic, "--bootstrap-server", access.bootstrap_servers]
    options += ["--command-config", str(file)]
    invoke = CliRunner().invoke

    refused = invoke(app, ["topics", "check", *options])
    assert isinstance(refused.exception, PermissionMissing)
    assert "Describe on topic 'op.usage', DescribeConfigs on topic 'op.usage'" in str(refused.exception)
    refused = invoke(app, ["topics", "create", *options])
    assert "'User:operator' is not allowed Create on topic 'op.usage'" in str(refused.exception)

    topics.allow("operator", acls_of("operator", named))
    for command in ("create", "check"):
        done = invoke(app, ["topics", command, *options])
        assert (done.exit_code, done.exception) == (0, None), done.output
