"""TLS entries of client properties: every way to give PEM, and every mistake."""

import ssl
from pathlib import Path

import pytest

from pipeline.cluster.sign_in import Tls, TlsMistakes, read_tls
from tests.pipeline.cluster.certificates import Authority, Identity, openssl

PASSWORD = "k3y-password"  # noqa: S105 - of a key made for this test


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("meter")


def encrypted(identity: Identity) -> str:
    """The key under a password."""
    return openssl(
        identity.key.parent,
        *("pkcs8", "-topk8", "-in", identity.key.name, "-passout", f"pass:{PASSWORD}"),
    ).decode()


def test_every_way_to_give_an_identity_gives_the_same(authority: Authority, identity: Identity) -> None:
    ca = authority.certificate.read_text()
    ways = [
        {"ssl.truststore.location": str(authority.certificate), "ssl.keystore.location": str(identity.keystore)},
        {
            "ssl.truststore.type": "pem",
            "ssl.truststore.certificates": "Bag Attributes\n" + ca,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": identity.key.read_text(),
            "ssl.keystore.certificate.chain": identity.certificate.read_text(),
        },
        {
            "ssl.ca.location": str(authority.certificate),
            "ssl.key.location": str(identity.key),
            "ssl.certificate.location": str(identity.certificate),
        },
    ]
    first, *others = [read_tls(way) for way in ways]
    assert others == [first, first]
    assert first.authorities == ca.strip()
    assert first.context().get_ca_certs() == first.context().get_ca_certs()
    assert len(first.context().get_ca_certs()) == 1
    assert first.java_properties() == {
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": ca.strip(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": identity.certificate.read_text().strip(),
        "ssl.keystore.key": identity.key.read_text().strip(),
    }


def test_an_encrypted_key_needs_its_password_and_is_never_asked_for(identity: Identity) -> None:
    given = {
        "ssl.keystore.key": encrypted(identity),
        "ssl.keystore.certificate.chain": identity.certificate.read_text(),
    }
    tls = read_tls(given | {"ssl.key.password": PASSWORD})
    tls.context()
    assert tls.java_properties()["ssl.key.password"] == PASSWORD
    for wrong in ({}, {"ssl.key.password": "wr0ng"}):
        with pytest.raises(TlsMistakes, match=r"'ssl.key.password' does not open the key:") as caught:
            read_tls(given | wrong).context()
        assert "wr0ng" not in str(caught.value)


def test_secrets_are_not_in_what_is_printed(identity: Identity) -> None:
    tls = read_tls({"ssl.keystore.location": str(identity.keystore), "ssl.key.password": PASSWORD})
    assert PASSWORD not in repr(tls)
    assert "PRIVATE KEY" not in repr(tls)


def test_without_entries_the_system_is_trusted_and_the_name_is_checked() -> None:
    tls = read_tls({})
    assert tls == Tls("", "", "", None, check_hostname=True, versions=("TLSv1.2", "TLSv1.3"))
    assert tls.context().verify_mode is ssl.CERT_REQUIRED
    assert tls.java_properties() == {"ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}


def test_the_name_is_not_checked_if_the_algorithm_is_empty() -> None:
    tls = read_tls({"ssl.endpoint.identification.algorithm": ""})
    assert (tls.context().check_hostname, tls.context().verify_mode) == (False, ssl.CERT_REQUIRED)
    assert tls.java_properties()["ssl.endpoint.identification.algorithm"] == ""


def test_versions_can_be_narrowed() -> None:
    context = read_tls({"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.3"}).context()
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)


@pytest.mark.parametrize(
    ("properties", "mistake"),
    [
        ({"ssl.truststore.type": "JKS"}, "'ssl.truststore.type' 'JKS' is not PEM.*: keytool -list -rfc"),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/etc/k.p12"},
            "-srckeystore /etc/k.p12 .*openssl pkcs12 -in /etc/k.export.p12 -nodes -out /etc/k.pem",
        ),
        ({"ssl.truststore.location": "/nowhere.pem"}, "/nowhere.pem cannot be read: "),
        (
            {"ssl.truststore.location": "pyproject.toml"},
            "'ssl.truststore.location' .* is not PEM",
        ),
        ({"ssl.keystore.key": "secret-but-no-key"}, "'ssl.keystore.key' is not PEM.*:"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "is 'ldap', not https or empty"),
        ({"ssl.enabled.protocols": "TLSv1,TLSv1.2"}, "TLSv1, TLSv1.2 are not some of TLSv1.2, TLSv1.3"),
        ({"ssl.protocol": "SSLv3"}, "'ssl.protocol' 'SSLv3' is none of"),
    ],
)
def test_what_can_not_be_kept_is_refused(properties: dict[str, str], mistake: str) -> None:
    with pytest.raises(TlsMistakes, match=mistake) as caught:
        read_tls(properties)
    assert "secret" not in str(caught.value)


def test_a_key_of_an_older_format_is_refused_with_its_conversion(identity: Identity) -> None:
    old = openssl(identity.key.parent, "ec", "-in", identity.key.name).decode()
    with pytest.raises(TlsMistakes, match=r"holds 'EC PRIVATE KEY', not a PKCS 8 key .*: openssl pkcs8 -topk8"):
        read_tls({"ssl.keystore.key": old, "ssl.keystore.certificate.chain": identity.certificate.read_text()})


def test_half_an_identity_is_refused(identity: Identity) -> None:
    with pytest.raises(TlsMistakes, match="the certificate alone, not a private key and its certificate"):
        read_tls({"ssl.keystore.location": str(identity.certificate)})
    with pytest.raises(TlsMistakes, match="holds the key alone"):
        read_tls({"ssl.keystore.location": str(identity.key)})


def test_a_key_of_another_certificate_is_refused(authority: Authority, identity: Identity) -> None:
    other = authority.issue("other")
    tls = read_tls({"ssl.key.location": str(identity.key), "ssl.certificate.location": str(other.certificate)})
    with pytest.raises(TlsMistakes, match=r"the key of 'ssl.keystore' does not fit its chain: key values mismatch"):
        tls.context()


def test_damaged_certificates_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(TlsMistakes, match=r"'ssl.truststore' does not hold certificates:"):
        read_tls({"ssl.truststore.location": str(file)}).context()
