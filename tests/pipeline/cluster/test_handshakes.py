"""TLS handshakes that fail: what is wrong with the broker's certificate is reported in one line."""

import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.client_properties import kafka_options
from pipeline.cluster.connecting import open_client
from pipeline.cluster.errors import ClusterUnreachable
from tests.pipeline.cluster.certificates import Authority, Identity
from tests.pipeline.cluster.refusals import refusal_of
from tests.pipeline.cluster.tls_port import tls_port

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
        "its certificate is not from an authority that is trusted here. To mend it: put the certificate of that "
        "authority, in PEM, into ssl.truststore.location of the client properties"
    )


def test_another_name(authority: Authority) -> None:
    told = refusal(authority.issue("named", "DNS:broker.example"), authority.certificate)
    assert told.startswith("its certificate is for another name. To mend it: reach it by a name in its certificate")


def test_a_certificate_that_has_expired(authority: Authority) -> None:
    late = authority.issue("late", FOR_US, expired=True)
    time.sleep(1.1)
    told = refusal(late, authority.certificate)
    assert told == "its certificate has expired. To mend it: renew the broker's certificate"
