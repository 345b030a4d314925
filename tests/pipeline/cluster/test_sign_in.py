"""Every client signs in by every mechanism from one client.properties, and each refusal is one line."""

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.cluster.acls import Acl
from pipeline.cluster.client_properties import kafka_options
from pipeline.cluster.connecting import open_client
from pipeline.cluster.sign_in import TokenRefused
from pipeline.gate.gate import Gate
from tests.pipeline.cluster.certificates import Authority
from tests.pipeline.cluster.refusals import refusal_of
from tests.pipeline.cluster.secured import MECHANISMS, PASSWORD, Secured
from tests.pipeline.throttle import factories
from tests.waiting import PATIENCE_SECONDS

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
    producer.send(topic, key=record.key(), value=record.to_value()).get(timeout=PATIENCE_SECONDS)
    producer.close()

    with Gate.connect(access.bootstrap_servers, topic=topic, options=access.client_options()) as gate:
        assert gate.wait_until_caught_up(int(PATIENCE_SECONDS * 1_000))
        throttled = gate.throttle_of(mechanism, record.client_id)
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


def test_another_authority_and_another_name(secured: Secured) -> None:
    properties, address = secured.properties("PLAIN"), secured.address("PLAIN")
    other = Authority(secured.folder / "other").certificate
    told = refused(secured, address, {**properties, "ssl.truststore.location": str(other)})
    assert "its certificate is not from an authority that is trusted here" in told
    told = refused(secured, address.replace("127.0.0.1", "localhost"), properties)
    assert "its certificate is for another name" in told


def test_the_wrong_protocol_for_the_port(secured: Secured) -> None:
    plain = secured.properties("PLAIN")
    set_protocol = "set security.protocol of the client properties to that of the listener"
    assert set_protocol in refused(secured, secured.address("PLAIN"), {})
    assert set_protocol in refused(secured, secured.address("SSL"), {})
    assert set_protocol in refused(secured, secured.broker.bootstrap_servers, secured.properties("SSL"))
    assert set_protocol in refused(secured, secured.address("PLAIN"), {**plain, "security.protocol": "SASL_PLAINTEXT"})
    both = plain | secured.properties("SSL") | {"security.protocol": "SASL_SSL"}
    assert set_protocol in refused(secured, secured.address("SSL"), both)


def test_a_mechanism_the_listener_does_not_have(secured: Secured) -> None:
    properties = {**secured.properties("SCRAM-SHA-256"), "security.protocol": "SASL_PLAINTEXT"}
    told = refused(secured, secured.broker.sasl_bootstrap_servers, properties)
    assert "a wrong mechanism, user or password" in told or "does not have the mechanism SCRAM-SHA-256" in told
    assert "check sasl.mechanism" in told


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


def test_the_command_ends_with_one_line_and_exit_code_6(secured: Secured) -> None:
    file = secured.file(secured.properties("PLAIN", password=WRONG))
    command = [sys.executable, "-m", "pipeline.cli.main", "topics", "check", "--command-config", str(file)]
    command += ["--bootstrap-server", secured.address("PLAIN")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (ended.returncode, ended.stdout) == (6, "")
    assert ended.stderr.startswith(f"kquota: the Kafka broker at {secured.address('PLAIN')} refuses user 'meter': ")
    assert ended.stderr.count("\n") == 1
    assert WRONG not in ended.stderr
