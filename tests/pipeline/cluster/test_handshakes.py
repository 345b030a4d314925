"""TLS handshakes that fail: what is wrong with the broker or its certificate is reported in one line."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from pipeline.cluster.client_properties import kafka_options
from pipeline.cluster.connecting import open_client
from pipeline.errors import ClusterUnreachable
from tests.pipeline.cluster.certificates import Authority, Identity
from tests.pipeline.cluster.refusals import refusal_of
from tests.pipeline.cluster.tls_port import slow_tls_port, tls_port

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


def test_an_authority_that_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other").certificate
    assert refusal(authority.issue("broker", FOR_US), other) == (
        "its certificate is not from an authority that is trusted here. Fix: put the certificate of that "
        "authority, in PEM, into ssl.truststore.location of the client properties"
    )


def test_another_name(authority: Authority) -> None:
    told = refusal(authority.issue("named", "DNS:broker.example"), authority.certificate)
    assert told.startswith("its certificate is for another name. Fix: reach it by a name in its certificate")


def test_a_certificate_that_has_expired(authority: Authority) -> None:
    late = authority.issue("late", FOR_US, expired=True)
    time.sleep(1.1)
    told = refusal(late, authority.certificate)
    assert told == "its certificate has expired. Fix: renew the broker's certificate"


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


def test_a_handshake_that_goes_on_byte_by_byte_is_given_up_too() -> None:
    """Each byte wakes the client, and the end of the handshake stays where it is."""
    options = kafka_options({"security.protocol": "SSL"})
    with slow_tls_port() as address, pytest.raises(ClusterUnreachable, match="does not answer the TLS handshake"):
        open_client(KafkaAdminClient, address, 300, **options)
