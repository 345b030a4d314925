"""A broker that wants sign-in and rights: every mechanism, every refusal, and what each role needs."""

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from typer.testing import CliRunner

from pipeline.brokers.native import NativeQuotas
from pipeline.cli.main import app
from pipeline.cluster.acls import (
    ALTER_QUOTAS,
    DESCRIBE_QUOTAS,
    Acl,
    Names,
    PermissionMissing,
    Role,
    acls_of,
    grant_commands,
)
from pipeline.cluster.client_properties import kafka_options
from pipeline.cluster.connecting import missing_acls, open_client, refuse_unpermitted
from pipeline.cluster.sign_in import TokenRefused
from pipeline.cluster.topics import check_topics, create_topics, topic_specs
from pipeline.cluster.transactions import Mark
from pipeline.gate.follower import KafkaFollower
from pipeline.gate.gate import Gate
from pipeline.meter.usage_topic import KafkaUsageTopic, Message
from pipeline.throttle.publisher import Marker
from pipeline.throttle.topic import KafkaThrottleTopic
from tests.pipeline.brokers.quota_broker import user
from tests.pipeline.cluster.certificates import Authority
from tests.pipeline.cluster.secured import MECHANISMS, PASSWORD, Secured
from tests.pipeline.cluster.test_connecting import refusal_of
from tests.pipeline.throttle import factories
from tests.throttle_records import message, rows_of
from tests.waiting import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.long]

WRONG = "wr0ng-h0rse"
EVERY = ("SSL", *MECHANISMS)
FAR_AHEAD_MS = 4_000_000_000_000


@pytest.fixture(scope="module")
def topic(secured: Secured) -> str:
    """A topic `meter` may write and read, with one message."""
    name = "sign-in"
    secured.admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    secured.allow("meter", [Acl("topic", name, "Write"), Acl("topic", name, "Read")])
    producer: Any = KafkaProducer(bootstrap_servers=secured.broker.bootstrap_servers)
    producer.send(name, b"").get(timeout=PATIENCE_SECONDS)
    producer.close()
    return name


@pytest.mark.parametrize("mechanism", EVERY)
def test_admin_producer_and_follower_sign_in(secured: Secured, topic: str, mechanism: str) -> None:
    access = secured.access(mechanism)
    with access.admin() as admin:
        assert [found["error_code"] for found in admin.describe_topics([topic])] == [0]
    producer: Any = access.open(KafkaProducer)
    record = factories.record(user=mechanism, until_ms=FAR_AHEAD_MS)
    sent = message(record)
    producer.send(topic, key=sent.key, value=sent.value).get(timeout=PATIENCE_SECONDS)
    producer.close()

    with Gate.connect(access.bootstrap_servers, topic=topic, options=access.client_options()) as gate:
        assert gate.wait_until_caught_up(int(PATIENCE_SECONDS * 1_000))
        throttled = gate.throttle_of(mechanism, record.client_id or "")
        assert throttled is not None
        assert throttled.record.throttled_until_ms == record.throttled_until_ms


@pytest.mark.spark
@pytest.mark.parametrize("mechanism", EVERY)
def test_spark_signs_in(secured: Secured, topic: str, mechanism: str, spark: "SparkSession") -> None:
    from pipeline.stream.query import read_usage_topic  # noqa: PLC0415 - the other tests need no Spark

    access = secured.access(mechanism)
    reader = spark.read.format("kafka").option("subscribe", topic)
    for key, value in {"bootstrap.servers": access.bootstrap_servers, **access.spark_options()}.items():
        reader = reader.option(f"kafka.{key}", value)
    messages = reader.load()
    assert messages.select("value").limit(1).count() == 1
    stream = read_usage_topic(
        spark,
        access.bootstrap_servers,
        topic,
        client_options=access.spark_options(),
        starting_offsets="earliest",
        max_offsets_per_trigger=1,
    )
    for frame in (messages, stream):
        plan: Any = frame
        printed = plan._jdf.queryExecution().toString()
        assert PASSWORD not in printed
        assert "PRIVATE KEY" not in printed


def refused(secured: Secured, address: str, properties: dict[str, str]) -> str:
    """The error of a client that cannot sign in: one line, without its passwords."""
    options = kafka_options(properties)
    error = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, address, timeout_ms, **options), 2_000)
    told = str(error)
    assert error.exit_code == 6
    assert "\n" not in told
    assert PASSWORD not in told
    assert WRONG not in told
    if not isinstance(error, TokenRefused):
        assert address in told
    return told


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password(secured: Secured, mechanism: str) -> None:
    told = refused(secured, secured.address(mechanism), secured.properties(mechanism, password=WRONG))
    wanted = "(invalid_client)" if mechanism == "OAUTHBEARER" else "refuses user 'meter'"
    assert wanted in told


def test_a_token_the_broker_does_not_accept(secured: Secured) -> None:
    sign = secured.endpoint.sign
    secured.endpoint.sign = lambda client: sign(client)[:-8] + "AAAAAAAA"
    try:
        told = refused(secured, secured.address("OAUTHBEARER"), secured.properties("OAUTHBEARER"))
    finally:
        secured.endpoint.sign = sign
    assert "refuses" in told


def test_a_client_certificate_that_is_missing_or_not_accepted(secured: Secured) -> None:
    trust = {"security.protocol": "SSL", "ssl.truststore.location": str(secured.authority.certificate)}
    late = secured.authority.issue("late", expired=True)
    stranger = Authority(secured.folder / "strange").issue("stranger")
    time.sleep(1.1)
    for keystore in (
        {},
        {"ssl.keystore.location": str(late.keystore)},
        {"ssl.keystore.location": str(stranger.keystore)},
    ):
        told = refused(secured, secured.address("SSL"), trust | keystore)
        assert "ssl.keystore.location" in told


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
        topic.publish(rows_of(factories.record(number)), Marker(number + 1))
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
    options = ["--bootstrap-server", access.bootstrap_servers, "--command-config", str(file)]
    invoke = CliRunner(
        env={
            "KQUOTA_KAFKA__USAGE_TOPIC": named.usage_topic,
            "KQUOTA_KAFKA__THROTTLE_TOPIC": named.throttle_topic,
            "KQUOTA_KAFKA__MARKER_TOPIC": named.marker_topic,
        }
    ).invoke

    refused = invoke(app, ["topics", "check", *options])
    assert isinstance(refused.exception, PermissionMissing)
    assert "Describe on topic 'op.usage', DescribeConfigs on topic 'op.usage'" in str(refused.exception)
    refused = invoke(app, ["topics", "create", *options])
    assert "'User:operator' is not allowed Create on topic 'op.usage'" in str(refused.exception)

    topics.allow("operator", acls_of("operator", named))
    for command in ("create", "check"):
        done = invoke(app, ["topics", command, *options])
        assert (done.exit_code, done.exception) == (0, None), done.output


CHANGE = {user("alice"): {"producer_byte_rate": 5.0}, user("bob"): {"producer_byte_rate": 6.0}}


def test_to_see_and_to_change_quotas_need_a_right_each_which_the_error_names(secured: Secured) -> None:
    access = secured.access(MECHANISM, "operator")
    with NativeQuotas(access) as native:
        for right, call in ((DESCRIBE_QUOTAS, native.describe), (ALTER_QUOTAS, lambda: native.alter(CHANGE))):
            with pytest.raises(PermissionMissing) as refused:
                call()
            assert refused.value.acls == (right,)
            assert f"'User:operator' is not allowed {right.operation} on the cluster" in str(refused.value)
            assert refused.value.fix == grant_commands([right], "User:operator", access.bootstrap_servers)[0]
            assert refused.value.fix.endswith(f"--operation {right.operation} --cluster")
        secured.allow("operator", [DESCRIBE_QUOTAS, ALTER_QUOTAS])
        assert native.alter(CHANGE) == []
        assert {quota.entity for quota in native.describe()} <= set(CHANGE)
    secured.forbid("operator", [DESCRIBE_QUOTAS, ALTER_QUOTAS])


def test_the_printed_rights_of_an_import_are_enough_to_see_quotas_and_no_more(secured: Secured) -> None:
    rights = acls_of("import", Names("u", "t", "m", "j"))
    secured.allow("gate", rights)
    with NativeQuotas(secured.access(MECHANISM, "gate")) as native:
        native.describe()
        assert native.broker_ids() == [1]
        with pytest.raises(PermissionMissing):
            native.alter(CHANGE)
    secured.forbid("gate", rights)
