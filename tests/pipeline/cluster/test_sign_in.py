"""What signs a client in: tokens, fetched once and renewed in time; every way to give PEM; every mistake."""

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cluster.sign_in import TlsMistakes, TokenProvider, TokenRefused, TokenSource, read_tls
from tests.forking import in_a_child
from tests.pipeline.cluster.certificates import Authority, Identity, TokenEndpoint, openssl, token_endpoint

SECRET = "k1-s3cret"  # noqa: S105 - of the test's own endpoint
NOW = 1_700_000_000.0


def unsigned(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.sig"


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    issued = iter(range(100))
    with token_endpoint(
        {"meter": SECRET}, lambda client: unsigned(sub=client, exp=NOW + 100, n=next(issued))
    ) as running:
        yield running


def source(endpoint: TokenEndpoint) -> TokenSource:
    return TokenSource(endpoint.url, "meter", SECRET, "kafka read", {"logicalCluster": "lkc-1"})


def test_a_token_is_fetched_once_and_again_after_four_fifths_of_its_life(endpoint: TokenEndpoint) -> None:
    clock = [NOW]
    provider = TokenProvider(source(endpoint), lambda: clock[0])

    first = provider.token()
    clock[0] = NOW + 79.9
    assert provider.token() == first
    clock[0] = NOW + 80
    assert provider.token() != first

    form = {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    assert endpoint.forms == [form, form]
    assert provider.extensions() == {"logicalCluster": "lkc-1"}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_gets_a_token_though_its_parent_was_fetching_one(endpoint: TokenEndpoint) -> None:
    endpoint.answer = (200, b'{"access_token": "opaque", "expires_in": 10}')
    provider = TokenProvider(source(endpoint))
    with provider._lock:
        assert in_a_child(provider.token) == "opaque"


def test_a_token_may_be_a_file_that_is_read_again_when_it_has_expired(tmp_path: Path) -> None:
    file = tmp_path / "token file"
    clock = [NOW]
    file.write_text(unsigned(exp=NOW + 100, n=1) + "\n")
    provider = TokenProvider(TokenSource(file.as_uri()), lambda: clock[0])
    assert provider.token() == unsigned(exp=NOW + 100, n=1)
    file.write_text(unsigned(exp=NOW + 200, n=2))
    assert provider.token() == unsigned(exp=NOW + 100, n=1)
    clock[0] = NOW + 90
    assert provider.token() == unsigned(exp=NOW + 200, n=2)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, b'{"error": "invalid_client"}'), r"answers 401 Unauthorized \(invalid_client\)"),
        ((400, b'{"error": "invalid_scope", "error_description": "no such"}'), r"\(invalid_scope: no such\)"),
        ((302, b""), r"answers 302 Found"),
        ((200, b"<html>"), r"does not answer with JSON"),
        ((200, b'{"token": "x"}'), r"answers without 'access_token'"),
        ((200, b"[]"), r"answers without 'access_token'"),
    ],
)
def test_what_an_endpoint_refuses_is_reported_with_its_address_and_no_secret(
    endpoint: TokenEndpoint, answer: tuple[int, bytes], told: str
) -> None:
    endpoint.answer = answer
    with pytest.raises(TokenRefused, match=told) as refused:
        TokenProvider(source(endpoint)).token()
    assert refused.value.exit_code == 6
    assert endpoint.url in str(refused.value)
    assert SECRET not in str(refused.value) + repr(source(endpoint))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/token", "file:///nowhere/token"])
def test_an_endpoint_that_does_not_exist_is_reported(url: str) -> None:
    with pytest.raises(TokenRefused, match=r"does not answer: .*refused|cannot be read"):
        TokenProvider(TokenSource(url)).token()


KEY_PASSWORD = "k3y-password"  # noqa: S105 - of a key made for this test


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("meter")


def test_every_way_to_give_an_identity_gives_the_same(authority: Authority, identity: Identity) -> None:
    ca, key, chain = (path.read_text() for path in (authority.certificate, identity.key, identity.certificate))
    ways = [
        {"ssl.truststore.location": str(authority.certificate), "ssl.keystore.location": str(identity.keystore)},
        {
            "ssl.truststore.type": "pem",
            "ssl.truststore.certificates": "Bag Attributes\n" + ca,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": chain,
        },
        {
            "ssl.ca.location": str(authority.certificate),
            "ssl.key.location": str(identity.key),
            "ssl.certificate.location": str(identity.certificate),
        },
    ]
    first, *others = [read_tls(way) for way in ways]
    assert others == [first, first]
    assert len(first.context().get_ca_certs()) == 1
    assert first.java_properties() == {
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": ca.strip(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": chain.strip(),
        "ssl.keystore.key": key.strip(),
    }


def test_an_encrypted_key_needs_its_password_which_is_never_asked_for_or_printed(identity: Identity) -> None:
    encrypt = ("pkcs8", "-topk8", "-in", identity.key.name, "-passout", f"pass:{KEY_PASSWORD}")
    given = {
        "ssl.keystore.key": openssl(identity.key.parent, *encrypt).decode(),
        "ssl.keystore.certificate.chain": identity.certificate.read_text(),
    }
    tls = read_tls(given | {"ssl.key.password": KEY_PASSWORD})
    tls.context()
    assert tls.java_properties()["ssl.key.password"] == KEY_PASSWORD
    assert KEY_PASSWORD not in repr(tls)
    assert "PRIVATE KEY" not in repr(tls)
    for wrong in ({}, {"ssl.key.password": "wr0ng"}):
        with pytest.raises(TlsMistakes, match=r"'ssl.key.password' does not open the key:") as caught:
            read_tls(given | wrong).context()
        assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "mistake"),
    [
        ({"ssl.truststore.type": "JKS"}, "'ssl.truststore.type' 'JKS' is not PEM.*: keytool -list -rfc"),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/etc/k.p12"},
            "-srckeystore /etc/k.p12 .*openssl pkcs12 -in /etc/k.export.p12 -nodes -out /etc/k.pem",
        ),
        ({"ssl.truststore.location": "/nowhere.pem"}, "/nowhere.pem cannot be read: "),
        ({"ssl.truststore.location": "pyproject.toml"}, "'ssl.truststore.location' .* is not PEM"),
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


def test_a_key_of_an_old_format_or_another_certificate_is_refused(authority: Authority, identity: Identity) -> None:
    old = openssl(identity.key.parent, "ec", "-in", identity.key.name).decode()
    with pytest.raises(TlsMistakes, match=r"holds 'EC PRIVATE KEY', not a PKCS 8 key .*: openssl pkcs8 -topk8"):
        read_tls({"ssl.keystore.key": old, "ssl.keystore.certificate.chain": identity.certificate.read_text()})
    other = authority.issue("other").certificate
    tls = read_tls({"ssl.key.location": str(identity.key), "ssl.certificate.location": str(other)})
    with pytest.raises(TlsMistakes, match=r"does not fit its chain: key values mismatch"):
        tls.context()


@pytest.mark.parametrize(("given", "is_checked"), [({}, True), ({"ssl.endpoint.identification.algorithm": ""}, False)])
def test_the_name_is_checked_unless_the_algorithm_is_empty(given: dict[str, str], is_checked: bool) -> None:
    context = read_tls(given).context()
    assert (context.check_hostname, context.verify_mode) == (is_checked, ssl.CERT_REQUIRED)
    assert ("ssl.endpoint.identification.algorithm" in read_tls(given).java_properties()) is not is_checked
