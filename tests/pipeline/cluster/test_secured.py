"""A broker that wants a certificate or a password, and a right for all else: each way in, each refusal, each role."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    UserScramCredentialUpsertion,
)

from pipeline.brokers.native import NativeQuotas
from pipeline.cli.options import Source
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
from pipeline.cluster.connecting import ClusterAccess, open_client, refuse_unpermitted
from pipeline.cluster.sign_in import TokenRefused
from pipeline.cluster.topics import check_topics, create_topics, topic_specs
from pipeline.cluster.transactions import Mark
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.gate.follower import KafkaFollower
from pipeline.gate.gate import Gate
from pipeline.jvm.jars import fetch
from pipeline.meter.usage_topic import KafkaUsageTopic, Message
from pipeline.throttle.publisher import Marker
from pipeline.throttle.topic import KafkaThrottleTopic
from tests import throttle_records
from tests.pipeline.brokers.quota_broker import user
from tests.pipeline.cli.running import kquota
from tests.pipeline.cluster.certificates import AUDIENCE, ISSUER, Authority, TokenEndpoint, TokenSigner, token_endpoint
from tests.pipeline.cluster.test_connecting import refusal_of
from tests.throttle_records import message, rows_of
from tests.waiting import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.long]

PASSWORD: Final = "c0rrect-h0rse"  # noqa: S105 - of users made for these tests
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USERS: Final = ("meter", "job", "gate", "operator")
_SECURITY: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Secured:
    """The broker, and all that is needed to sign in to it.

    Attributes:
        broker: Everybody is an administrator on its PLAINTEXT listener.
        authority: Issued its certificate, for 127.0.0.1 alone; trusted on the SSL listener.
        endpoint: Gives tokens to `USERS`.
        folder: For files of the tests.
        admin: An administrator's client.
    """

    broker: EmbeddedBroker
    authority: Authority
    endpoint: TokenEndpoint
    folder: Path
    admin: Any

    def address(self, mechanism: str) -> str:
        """`host:port` for a SASL mechanism, or for SSL."""
        return self.broker.address("SSL" if mechanism == "SSL" else "SASL_SSL")

    def properties(self, mechanism: str, user: str = "meter", password: str = PASSWORD) -> dict[str, str]:
        """client.properties of a user, by a SASL mechanism or by certificate (SSL)."""
        trust = {"ssl.truststore.location": str(self.authority.certificate)}
        if mechanism == "SSL":
            keystore = self.authority.issue(user).keystore
            return {"security.protocol": "SSL", **trust, "ssl.keystore.location": str(keystore)}
        sasl = {"security.protocol": "SASL_SSL", **trust, "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            login = (
                f'{_SECURITY}.oauthbearer.OAuthBearerLoginModule required clientId="{user}" clientSecret="{password}";'
            )
            return sasl | {"sasl.oauthbearer.token.endpoint.url": self.endpoint.url, "sasl.jaas.config": login}
        return sasl | {"sasl.username": user, "sasl.password": password}

    def access(self, mechanism: str, user: str = "meter") -> ClusterAccess:
        """As a command gets it from a client.properties file."""
        file = self.file(self.properties(mechanism, user))
        return ClusterAccess.from_settings(Source(None, self.address(mechanism), file).settings().kafka)

    def allow(self, user: str, acls: Iterable[Acl]) -> None:
        """Let a user do something; returns when the broker knows of it."""
        wanted = [_acl(acl, user) for acl in acls]
        self.admin.create_acls(wanted)
        self._wait_until(lambda there: set(wanted) <= there)

    def forbid(self, user: str, acls: Iterable[Acl]) -> None:
        """The opposite of `allow`."""
        unwanted = [_acl(acl, user) for acl in acls]
        self.admin.delete_acls([
            ACLFilter(acl.principal, acl.host, acl.operation, acl.permission_type, acl.resource_pattern)
            for acl in unwanted
        ])  # fmt: skip
        self._wait_until(lambda there: not set(unwanted) & there)

    def _wait_until(self, is_so: Callable[[set[Any]], bool]) -> None:
        anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        every = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)
        wait_until(lambda: is_so(set(self.admin.describe_acls(every)[0])), "the broker to hear of its ACLs")

    def file(self, properties: dict[str, str]) -> Path:
        """As a client.properties file."""
        path = self.folder / "client.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    fetch()
    folder = tmp_path_factory.mktemp("secured")
    authority, signer = Authority(folder / "ca"), TokenSigner(folder)
    server = authority.issue("broker", "IP:127.0.0.1")
    listener = "listener.name.sasl_ssl"
    oauth = f"{listener}.oauthbearer.sasl"
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
        f"{listener}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
        f"{oauth}.jaas.config": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
        f"{oauth}.server.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": signer.jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,  # since 4.4 a broker does not start without
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    options = BrokerOptions(
        settings=settings,
        java_options=(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={signer.jwks.as_uri()}",),
    )
    secrets, tls = dict.fromkeys(USERS, PASSWORD), {"SSL": 0, "SASL_SSL": 0}
    with (
        token_endpoint(secrets, signer.token) as endpoint,
        EmbeddedBroker(folder / "broker", secrets, ports=tls, options=options) as broker,
    ):
        admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        try:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                users = [UserScramCredentialUpsertion(user, mechanism, PASSWORD) for user in USERS]
                assert set(admin.alter_user_scram_credentials(users).values()) == {None}
            yield Secured(broker, authority, endpoint, folder, admin)
        finally:
            admin.close()


def _acl(acl: Acl, user: str) -> Any:
    operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", acl.operation).upper()
    resource = ResourcePattern(ResourceType[acl.resource.upper().replace("-", "_")], acl.name)
    return ACL(f"User:{user}", "*", ACLOperation[operation], ACLPermissionType.ALLOW, resource)


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
    record = throttle_records.record(user=mechanism, until_ms=FAR_AHEAD_MS)
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
    how: dict[str, Any] = {
        "client_options": access.spark_options(),
        "starting_offsets": "earliest",
        "max_offsets_per_trigger": 1,
    }
    stream = read_usage_topic(spark, access.bootstrap_servers, topic, **how)
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


def test_a_client_certificate_that_is_missing_or_not_accepted(secured: Secured) -> None:
    trust = {"security.protocol": "SSL", "ssl.truststore.location": str(secured.authority.certificate)}
    late = secured.authority.issue("late", expired=True)
    stranger = Authority(secured.folder / "strange").issue("stranger")
    time.sleep(1.1)
    for keystore in ({}, *({"ssl.keystore.location": str(one.keystore)} for one in (late, stranger))):
        assert "ssl.keystore.location" in refused(secured, secured.address("SSL"), trust | keystore)


NAMES = Names("acl.usage", "acl.throttle", "acl.marker", "acl")
SPECS = topic_specs(1, 12_000, NAMES.usage_topic, NAMES.throttle_topic, NAMES.marker_topic)
MECHANISM = "SCRAM-SHA-512"


@pytest.fixture(scope="module")
def topics(secured: Secured) -> Secured:
    """The three topics exist."""
    create_topics(secured.admin, SPECS)
    return secured


def work_as_a_job(topics: Secured) -> None:
    """Checks its rights and topics, and publishes."""
    access = topics.access(MECHANISM, "job")
    with access.admin() as admin:
        refuse_unpermitted(admin, acls_of("job", NAMES), access.client_options(), access.bootstrap_servers)
        assert check_topics(admin, SPECS, "b:1") == []
    topic = KafkaThrottleTopic(NAMES.job, NAMES.throttle_topic, NAMES.marker_topic, access, 5_000)
    try:
        found = topic.open()
        number = 0 if found is None else found.next_seq
        topic.publish(rows_of(throttle_records.record(number)), Marker(number + 1))
        assert topic.committed() == topic.open() == Marker(number + 1)
        assert topic.end().publish_seq == number
    finally:
        topic.close()


def work_as_a_meter(topics: Secured) -> None:
    topic = KafkaUsageTopic(NAMES.usage_topic, NAMES.marker_topic, topics.access(MECHANISM), 5_000)
    try:
        topic.open()
        topic.store([Message(0, b"[]")], Mark(1, "name"))
        assert topic.open() == Mark(1, "name")
    finally:
        topic.close()


@pytest.mark.parametrize(("role", "work"), [("job", work_as_a_job), ("meter", work_as_a_meter)])
def test_the_rights_of_a_role_are_enough_and_each_is_missed_by_name(
    topics: Secured, role: Role, work: Callable[[Secured], None]
) -> None:
    rights = acls_of(role, NAMES)
    topics.allow(role, rights)
    work(topics)
    for taken in rights:
        topics.forbid(role, [taken])
        with pytest.raises(PermissionMissing) as refused:
            work(topics)
        # Of a topic it may not even describe the cluster tells nothing more.
        missing = refused.value.acls
        assert taken in missing
        assert {acl.name for acl in missing} == {taken.name}
        assert taken.operation == "Read" or missing == (taken,)
        assert refused.value.fix == grant_commands(missing, f"User:{role}", topics.address(MECHANISM))[0]
        assert refused.value.exit_code == 6
        topics.allow(role, [taken])
    topics.forbid(role, rights)


def test_a_follower_names_a_right_it_lacks_and_then_follows(topics: Secured, caplog: pytest.LogCaptureFixture) -> None:
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


def test_the_operator_creates_and_checks_topics_or_the_error_names_what_is_missing(
    topics: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = topics.file(topics.properties(MECHANISM, "operator"))
    named = Names("op.usage", "op.throttle", "op.marker", "op")
    for variable in ("usage_topic", "throttle_topic", "marker_topic"):
        monkeypatch.setenv(f"KQUOTA_KAFKA__{variable.upper()}", getattr(named, variable))
    options = ("--bootstrap-server", topics.address(MECHANISM), "--command-config", str(file))

    refused = kquota("topics", "check", *options)
    assert "Describe on topic 'op.usage', DescribeConfigs on topic 'op.usage'" in refused.stderr
    refused = kquota("topics", "create", *options)
    assert "'User:operator' is not allowed Create on topic 'op.usage'" in refused.stderr
    assert refused.exit_code == 6
    topics.allow("operator", acls_of("operator", named))
    for command in ("create", "check"):
        done = kquota("topics", command, *options)
        assert done.exit_code == 0, done.stderr


def test_to_see_and_to_change_quotas_need_a_right_each_which_the_error_names(secured: Secured) -> None:
    access = secured.access(MECHANISM, "operator")
    change = {user("alice"): {"producer_byte_rate": 5.0}, user("bob"): {"producer_byte_rate": 6.0}}
    with NativeQuotas(access) as native:
        for right, call in ((DESCRIBE_QUOTAS, native.describe), (ALTER_QUOTAS, lambda: native.alter(change))):
            with pytest.raises(PermissionMissing) as refused:
                call()
            assert refused.value.acls == (right,)
            assert refused.value.fix == grant_commands([right], "User:operator", access.bootstrap_servers)[0]
            secured.allow("operator", [right])
            call()
        assert native.broker_ids() == [1]
    secured.forbid("operator", [DESCRIBE_QUOTAS, ALTER_QUOTAS])
