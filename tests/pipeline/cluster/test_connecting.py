"""Each failure to connect is one line with its cause and the address: ports, TLS handshakes, refusals, secrets."""

import selectors
import socket
import socketserver
import ssl
import threading
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
from tests.pipeline.cluster.certificates import Authority
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


@pytest.mark.parametrize(
    ("address", "cause"),
    [("127.0.0.1:1", "connection refused"), ("nohost.invalid:9092", "the host name has no address")],
)
def test_a_port_or_host_that_is_not_there_is_told(address: str, cause: str) -> None:
    refused = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, address, timeout_ms))
    assert isinstance(refused, ClusterUnreachable)
    assert str(refused).startswith(f"no Kafka broker answers at {address}: {cause}")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_connects_though_its_parent_was_connecting() -> None:
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


@pytest.mark.parametrize("make", [KafkaAdminClient, KafkaProducer, KafkaConsumer])
def test_a_port_that_accepts_connections_and_never_answers_is_given_up(make: Callable[..., Any]) -> None:
    options = kafka_options({"security.protocol": "SSL"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterUnreachable, match=f"{address}: it does not answer the TLS handshake"):
            open_client(make, address, 200, **options)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_each_address_is_tried_though_one_takes_connections_and_never_answers(protocol: str) -> None:
    options = kafka_options({"security.protocol": protocol})
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        addresses = ",".join(f"127.0.0.1:{server.getsockname()[1]}" for server in (one, other))
        with pytest.raises(ClusterUnreachable):
            open_client(KafkaAdminClient, addresses, 6_000, **options)
        for server in (one, other):
            server.settimeout(0)  # raises if none has come
            server.accept()[0].close()


def test_a_certificate_of_another_authority_is_told_as_tls_tells_it(tmp_path: Path) -> None:
    trusted, other = (Authority(tmp_path / name) for name in ("trusted", "other"))
    identity, context = other.issue("broker", "IP:127.0.0.1"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted.certificate)}
    options = kafka_options({"security.protocol": "SSL", **trust})
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        address = f"127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        refused = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, address, timeout_ms, **options))
        server.shutdown()
    assert "not from an authority that is trusted here" in str(refused)


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
        (errors.KafkaTimeoutError(), ()),
        (None, ()),
    ],
)
def test_a_refusal_names_the_missing_right_if_it_is_one(error: Exception | None, named: tuple[Acl, ...]) -> None:
    told = permission_missing(error, RIGHTS, ALICE, "b:1")
    assert (() if told is None else told.acls) == named
    assert told is None or "'User:alice' is not allowed" in told.message
    assert "hidden" not in str(told)
    assert permission_missing(errors.ClusterAuthorizationFailedError(), RIGHTS[:4], ALICE, "b:1") is None


def test_the_principal_is_known_from_the_password_or_the_token() -> None:
    no_endpoint = TokenProvider(TokenSource("http://127.0.0.1:1/token", "c", "hidden"))
    assert principal_of(ALICE) == "User:alice"
    assert principal_of({}) == "User:ANONYMOUS"
    assert principal_of(kafka_options({"security.protocol": "SSL"})) == "User:<subject of its certificate>"
    assert principal_of({"sasl_oauth_token_provider": no_endpoint}) == "User:<subject of its token>"


BAD_CERTIFICATE = "[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate"
WRONG_VERSION = "Handshake failed: [SSL: WRONG_VERSION_NUMBER] wrong version number"
UNFIT = "Handshake failed: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "


@pytest.mark.parametrize(
    ("cause", "protocol", "kind", "told"),
    [
        (errors.IllegalSaslStateError(), "SASL_SSL", Unreachable, "refuses user 'alice': this listener knows no SASL"),
        (errors.UnsupportedSaslMechanismError(), "SASL_SSL", Unreachable, "does not have the mechanism PLAIN"),
        (errors.SaslAuthenticationFailedError("Authentication failed: Wrong"), "SASL_SSL", Unreachable, ": Wrong. Fix"),
        (LostWhileSigningIn("socket disconnected"), "SASL_PLAINTEXT", Unreachable, "refuses user 'alice': it closes"),
        (
            LostWhileSigningIn("socket disconnected"),
            "PLAINTEXT",
            ClusterUnreachable,
            "closes the connection to a PLAIN",
        ),
        (errors.KafkaConnectionError(BAD_CERTIFICATE), "SSL", Unreachable, "it wants a client certificate"),
        (errors.KafkaConnectionError(WRONG_VERSION), "SSL", ClusterUnreachable, "it does not speak TLS on this port"),
        (
            errors.KafkaConnectionError(f"{UNFIT}certificate has expired"),
            "SSL",
            ClusterUnreachable,
            "its certificate has expired",
        ),
        (
            errors.KafkaConnectionError(f"{UNFIT}IP address mismatch, certificate is not valid for '127.0.0.1'."),
            *("SSL", ClusterUnreachable, "its certificate is for another name"),
        ),
        (
            errors.KafkaConnectionError(f"{UNFIT}unable to get local issuer certificate"),
            *("SSL", ClusterUnreachable, "not from an authority that is trusted here"),
        ),
        (TokenRefused("https://idp", "answers 500"), "SASL_SSL", TokenRefused, "no OAuth token from https://idp: it"),
        (TimeoutError("7"), "SSL", ClusterUnreachable, "7. Fix: check the address"),
    ],
)
def test_each_cause_is_reported_in_one_line(cause: Exception, protocol: str, kind: type[Exception], told: str) -> None:
    options = {"security_protocol": protocol, "sasl_mechanism": "PLAIN", **ALICE}
    error = connection_error("b:1", options, [OSError("earlier"), cause], 2_000)
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
    refused = refusal_of(lambda timeout_ms: access.admin(timeout_ms).__enter__())
    assert isinstance(refused, Unreachable)
    assert f"{broker.sasl_bootstrap_servers} refuses user 'alice': " in str(refused)
    secret.write_text(f"{USERS['alice']}\n")
    with access.admin() as admin:
        assert admin.describe_cluster()["brokers"]
