"""Each failure to connect is one line with its cause and the address: ports, TLS handshakes, refusals, secrets."""

import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, errors

from pipeline.cluster.acls import ALTER_QUOTAS, Acl
from pipeline.cluster.client_properties import kafka_options
from pipeline.cluster.connecting import (
    _COLLECTOR,
    ClusterAccess,
    LostWhileSigningIn,
    connection_error,
    open_client,
    permission_missing,
    principal_of,
)
from pipeline.cluster.sign_in import TokenProvider, TokenRefused, TokenSource
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import ClusterUnreachable, PipelineError, Unreachable
from tests.conftest import USERS
from tests.forking import in_a_child
from tests.pipeline.cluster.certificates import Authority, Identity, tls_port
from tests.waiting import PATIENCE_SECONDS

# kafka-python tries for the whole time it is given, so the first time is short.
_FIRST_TIMEOUT_MS = 300
_NOTHING_WAS_HEARD = ("no answer within", "Connection timed out", "does not answer the TLS handshake")


def refusal_of(connect: Callable[[int], object], first_timeout_ms: int = _FIRST_TIMEOUT_MS) -> PipelineError:
    """What `connect` raises, called with a time-out in ms; called again with a longer one if nothing was heard."""
    timeout_ms = first_timeout_ms
    while True:
        with pytest.raises(PipelineError) as refused:
            connect(timeout_ms)
        was_heard = not any(words in str(refused.value) for words in _NOTHING_WAS_HEARD)
        if was_heard or timeout_ms > PATIENCE_SECONDS * 1_000:
            return refused.value
        timeout_ms *= 4


def test_nothing_listens() -> None:
    refused = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, "127.0.0.1:1", timeout_ms))
    assert isinstance(refused, ClusterUnreachable)
    assert str(refused).startswith("no Kafka broker answers at 127.0.0.1:1: connection refused")


def test_no_such_host() -> None:
    refused = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, "nohost.invalid:9092", timeout_ms))
    assert isinstance(refused, ClusterUnreachable)
    assert "nohost.invalid:9092: the host name has no address" in str(refused)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_connects_though_its_parent_was_connecting_and_collects_nothing_for_it() -> None:
    def work() -> tuple[str, int]:
        with pytest.raises(ClusterUnreachable) as refused:
            open_client(KafkaAdminClient, "127.0.0.1:1", 300)
        return str(refused.value)[:31], len(causes)

    with _COLLECTOR.collecting() as causes, _COLLECTOR._installing:
        assert in_a_child(work) == "('no Kafka broker answers at 127.', 0)"


@pytest.mark.parametrize("make", [KafkaAdminClient, KafkaProducer, KafkaConsumer])
def test_a_client_that_could_not_connect_leaves_no_thread_and_no_socket_behind(make: Callable[..., Any]) -> None:
    opened: list[selectors.BaseSelector] = []

    def selector() -> selectors.BaseSelector:
        opened.append(selectors.DefaultSelector())
        return opened[-1]

    with pytest.raises(ClusterUnreachable):
        open_client(make, "127.0.0.1:1", 100, client_id="in-vain", selector=selector)
    assert not [thread.name for thread in threading.enumerate() if "in-vain" in thread.name]
    # A closed selector has no map.
    assert [each.get_map() for each in opened] == [None]


@pytest.mark.parametrize(("protocol", "kind"), [("SASL_PLAINTEXT", Unreachable), ("PLAINTEXT", ClusterUnreachable)])
def test_a_connection_that_is_closed_at_sign_in_is_a_refusal(protocol: str, kind: type[Exception]) -> None:
    options = {"security_protocol": protocol, "sasl_plain_username": "alice"}

    error = connection_error("b:1", options, [LostWhileSigningIn("socket disconnected"), TimeoutError("7")], 2_000)

    assert type(error) is kind


@pytest.mark.broker
def test_a_wrong_password(broker: EmbeddedBroker) -> None:
    options: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    options |= {"sasl_plain_username": "alice", "sasl_plain_password": "wrong"}
    refused = refusal_of(
        lambda timeout_ms: open_client(KafkaAdminClient, broker.sasl_bootstrap_servers, timeout_ms, **options)
    )

    assert isinstance(refused, Unreachable)
    assert re.search(r"refuses user 'alice': .*user.* password", str(refused))
    assert broker.sasl_bootstrap_servers in str(refused)
    assert refused.exit_code == 6


FOR_US = "IP:127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def refusal(identity: Identity, trusted: Path) -> str:
    """The error of a client that trusts an authority, before a broker with a certificate."""
    options = kafka_options({"security.protocol": "SSL", "ssl.truststore.location": str(trusted)})
    with tls_port(identity) as address:
        refused = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, address, timeout_ms, **options))
    told = str(refused)
    assert isinstance(refused, ClusterUnreachable)
    assert refused.exit_code == 6
    assert "\n" not in told
    assert told.startswith(f"no Kafka broker answers at {address}: ")
    return told.partition(": ")[2]


@pytest.mark.parametrize("make", [KafkaAdminClient, KafkaProducer, KafkaConsumer])
def test_a_port_that_accepts_connections_and_never_answers_is_given_up(make: Callable[..., Any]) -> None:
    options = kafka_options({"security.protocol": "SSL"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterUnreachable) as refused:
            open_client(make, address, 200, **options)
    assert str(refused.value) == (
        f"no Kafka broker answers at {address}: it does not answer the TLS handshake. Fix: check that this is "
        "the address of a broker's TLS listener, and see that broker's log"
    )


def test_what_is_wrong_with_a_certificate_is_told(authority: Authority, tmp_path: Path) -> None:
    late = authority.issue("late", FOR_US, expired=True)
    other = Authority(tmp_path / "other").certificate
    told = refusal(authority.issue("broker", FOR_US), other)
    assert told.startswith("its certificate is not from an authority that is trusted here. Fix: put the certificate")
    told = refusal(authority.issue("named", "DNS:broker.example"), authority.certificate)
    assert told.startswith("its certificate is for another name. Fix: reach it by a name in its certificate")
    time.sleep(1.1)
    told = refusal(late, authority.certificate)
    assert told == "its certificate has expired. Fix: renew the broker's certificate"


ALICE = {"sasl_plain_username": "alice", "sasl_plain_password": "hidden"}
RIGHTS = (
    Acl("topic", "quota.throttle.v1", "Write"),
    Acl("topic", "quota.marker.v1", "Read"),
    Acl("group", "kquota-j", "Read"),
    Acl("transactional-id", "kquota-j", "Write"),
    ALTER_QUOTAS,
)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (errors.TopicAuthorizationFailedError({"quota.marker.v1"}), RIGHTS[1:2]),
        (errors.TopicAuthorizationFailedError("partition 0"), RIGHTS[:2]),
        (errors.GroupAuthorizationFailedError("FindCoordinatorResponse"), RIGHTS[2:3]),
        (errors.TransactionalIdAuthorizationFailedError(), RIGHTS[3:4]),
        (errors.ClusterAuthorizationFailedError("Cluster authorization failed."), RIGHTS[4:]),
    ],
)
def test_a_refusal_names_the_right_that_is_missing(error: Exception, named: tuple[Acl, ...]) -> None:
    told = permission_missing(error, RIGHTS, ALICE, "b:1")
    assert told is not None
    assert told.acls == named
    assert "'User:alice' is not allowed" in told.message
    assert "hidden" not in str(told)


def test_the_principal_is_known_from_the_password_or_the_token() -> None:
    no_endpoint = TokenProvider(TokenSource("http://127.0.0.1:1/token", "c", "hidden"))
    assert principal_of(ALICE) == "User:alice"
    assert principal_of({}) == "User:ANONYMOUS"
    assert principal_of(kafka_options({"security.protocol": "SSL"})) == "User:<subject of its certificate>"
    assert principal_of({"sasl_oauth_token_provider": no_endpoint}) == "User:<subject of its token>"


@pytest.mark.parametrize(
    ("cause", "protocol", "kind", "told"),
    [
        (errors.IllegalSaslStateError(), "SASL_SSL", Unreachable, "refuses user 'alice': this listener knows no SASL"),
        (
            errors.UnsupportedSaslMechanismError(),
            "SASL_SSL",
            Unreachable,
            "this listener does not have the mechanism PLAIN. Fix: check sasl.mechanism",
        ),
        (
            errors.SaslAuthenticationFailedError("SaslAuthenticationFailedError: Authentication failed: Wrong"),
            "SASL_SSL",
            Unreachable,
            "refuses user 'alice': Wrong. Fix: check sasl.mechanism",
        ),
        (
            errors.KafkaConnectionError("[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate"),
            "SSL",
            Unreachable,
            "it wants a client certificate that it trusts and that has not expired",
        ),
        (
            errors.KafkaConnectionError("Handshake failed: [SSL: WRONG_VERSION_NUMBER] wrong version number"),
            "SSL",
            ClusterUnreachable,
            "it does not speak TLS on this port. Fix: set security.protocol",
        ),
        (TokenRefused("https://idp", "answers 500"), "SASL_SSL", TokenRefused, "no OAuth token from https://idp: it"),
        (TimeoutError("7"), "SSL", ClusterUnreachable, "7. Fix: check the address"),
    ],
)
def test_each_cause_is_reported_in_one_line(cause: Exception, protocol: str, kind: type[Exception], told: str) -> None:
    error = connection_error(
        "b:1", {"security_protocol": protocol, "sasl_mechanism": "PLAIN", **ALICE}, [OSError("earlier"), cause], 2_000
    )
    assert type(error) is kind
    assert told in str(error)
    assert error.exit_code == 6


@pytest.mark.broker
def test_a_new_connection_takes_the_secret_that_the_file_holds_now(broker: EmbeddedBroker, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    jaas = f'{login} username="alice" password="${{file:{secret}}}";'
    access = ClusterAccess(
        broker.sasl_bootstrap_servers,
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas},
    )
    secret.write_text("of last year\n")
    with pytest.raises(Unreachable), access.admin():
        pass
    secret.write_text(f"{USERS['alice']}\n")
    with access.admin() as admin:
        assert admin.describe_cluster()["brokers"]


@pytest.mark.parametrize(
    "error", [None, errors.KafkaTimeoutError(), OSError("x"), errors.ClusterAuthorizationFailedError()]
)
def test_a_failure_for_another_reason_is_no_refusal(error: Exception | None) -> None:
    assert permission_missing(error, RIGHTS[:4], ALICE, "b:1") is None
