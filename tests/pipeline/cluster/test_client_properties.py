"""client.properties as Java reads them and people write them, for Python and for Java; what is never printed."""

import json
from pathlib import Path

import pytest

from pipeline.cli.options import Source
from pipeline.cluster.client_properties import (
    java_properties,
    kafka_options,
    parse_properties,
    read_properties,
    resolved,
)
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.sign_in import TokenProvider
from pipeline.errors import ClientPropertiesInvalid, UsageError
from pipeline.settings.model import load_settings
from tests.pipeline.cli.running import kquota
from tests.pipeline.cluster.certificates import Authority

SECURITY = "org.apache.kafka.common.security"
PASSWORD = 'p"w\\d'  # noqa: S105 - looked for in what is printed
OAUTH = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
}
FILE = f"""\
# ours
bootstrap.servers=broker:9092
client.id=mine
security.protocol = sasl_plaintext
sasl.mechanism: PLAIN
sasl.jaas.config={SECURITY}.plain.PlainLoginModule required \\
  username="alice" password="a;b\\\\\\"c";
max.poll.records=10
reconnect.backoff.ms=50
"""
FILE_PASSWORD = 'a;b"c'  # noqa: S105 - looked for in what is printed


@pytest.fixture
def command_config(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    return path


def test_a_file_becomes_what_connects_each_client_and_nothing_else(command_config: Path) -> None:
    properties = read_properties(command_config)
    assert kafka_options(properties) == {
        "bootstrap_servers": "broker:9092",
        "client_id": "mine",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": FILE_PASSWORD,
    }
    assert java_properties(properties) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{SECURITY}.plain.PlainLoginModule required username="alice" password="a;b\\"c";',
        "reconnect.backoff.ms": "50",
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "scram-sha-512"])
def test_the_short_keys_give_java_its_login_module(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PW", PASSWORD)
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": "${env:KAFKA_PW}",
    }
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    java = java_properties(given)

    assert java["sasl.jaas.config"] == f'{SECURITY}.{module} required username="alice" password="p\\"w\\\\d";'
    assert kafka_options(given)["sasl_plain_password"] == PASSWORD
    assert kafka_options(java) == kafka_options(given), "what Java reads means the same to Python"


def test_tokens_are_fetched_with_the_options_of_the_login_module() -> None:
    login = (
        f"{SECURITY}.oauthbearer.OAuthBearerLoginModule required "
        "clientId='meter' clientSecret=\"hidden\" scope='kafka' extension_logicalCluster=\"lkc-1\";"
    )
    given = {**OAUTH, "sasl.jaas.config": login, "sasl.login.refresh.window.factor": "0.8"}
    options = kafka_options(given)
    provider = options.pop("sasl_oauth_token_provider")

    assert options == {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    assert isinstance(provider, TokenProvider)
    assert provider.extensions() == {"logicalCluster": "lkc-1"}
    assert java_properties(given) == {
        **OAUTH,
        "sasl.jaas.config": login.replace("'", '"'),
        "sasl.login.callback.handler.class": f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.login.refresh.window.factor": "0.8",
    }


def test_certificates_reach_both_clients_and_only_where_tls_is_spoken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    given = {"ssl.truststore.location": str(authority.certificate)}

    assert kafka_options({**given, "security.protocol": "PLAINTEXT"}) == {"security_protocol": "PLAINTEXT"}
    options = kafka_options({**given, "security.protocol": "ssl"})
    assert options["security_protocol"] == "SSL"
    assert len(options["ssl_context"].get_ca_certs()) == 1
    java = java_properties({**given, "security.protocol": "ssl"})
    assert java["ssl.truststore.certificates"] == authority.certificate.read_text().strip()


SCRAM = "a.ScramLoginModule required username=x password=hidden"


@pytest.mark.parametrize(
    ("properties", "mistake"),
    [
        ({"security.protocol": "TLS"}, "'security.protocol' 'TLS' is none of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "'sasl.mechanism' 'AWS_MSK_IAM' is none of PLAIN"),
        ({"sasl.mechanism": "GSSAPI"}, r"Kerberos \(GSSAPI\) is not supported: use SCRAM"),
        ({"sasl.jaas.config": "a.Krb5LoginModule required;"}, r"Kerberos \(Krb5LoginModule\) is not supported"),
        ({"sasl.jaas.config": f"{SCRAM} tokenauth=true;"}, r"delegation tokens \(tokenauth\) are not supported"),
        ({"ssl.truststore.type": "JKS"}, "'ssl.truststore.type' 'JKS' is not PEM"),
        ({"ssl.engine.factory.class": "x"}, "'ssl.engine.factory.class' is not supported; supported are"),
        ({"sasl.jaas.config": "a.LdapLoginModule required;"}, "names LdapLoginModule, not PlainLoginModule, Scram"),
        ({"sasl.jaas.config": 'a.PlainLoginModule required username="x'}, "is not a login module"),
        ({"sasl.jaas.config": "a.PlainLoginModule required username=x;"}, "gives username, not username and password"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{SCRAM};"}, "but PLAIN needs PlainLoginModule"),
        ({"sasl.login.callback.handler.class": "my.Handler"}, "my.Handler is not org.*OAuthBearerLoginCallbackHandler"),
        ({"security.protocol": "SASL_SSL"}, "'sasl.mechanism' is not set, and SASL_SSL needs it"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "x"},
            "'sasl.jaas.config' has no password, and PLAIN needs it",
        ),
        ({**OAUTH, "sasl.oauthbearer.token.endpoint.url": "ftp://x"}, "is ftp://x, not an http, https or file URL"),
        (OAUTH, "has no clientId and clientSecret, and OAUTHBEARER needs them"),
        ({"sasl.jaas.config": "${env:KQUOTA_NOT_THERE}"}, "refers to a secret that does not exist"),
    ],
)
def test_security_that_cannot_be_kept_is_refused(properties: dict[str, str], mistake: str) -> None:
    for read in (kafka_options, java_properties):
        with pytest.raises(ClientPropertiesInvalid, match=mistake) as caught:
            read(properties)
        assert "hidden" not in str(caught.value)


def test_all_mistakes_come_at_once_and_without_the_password() -> None:
    given = {"sasl.mechanism": "X", "sasl.jaas.config": "Other required password=hidden"}
    given |= {"ssl.keystore.key": "hidden", "ssl.keystore.password": "hidden"}
    with pytest.raises(ClientPropertiesInvalid) as caught:
        kafka_options(given)
    assert len(caught.value.mistakes) == 4
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("a=b\nnonsense\nmore\n", "the line 'nonsense' is not key=value; the line 'more' is not key=value"),
        ("a=\\u12", r"the escape \u12 is not \u and four digits"),
    ],
)
def test_a_bad_file_is_refused_with_all_its_mistakes(text: str, mistakes: str) -> None:
    with pytest.raises(ClientPropertiesInvalid) as refused:
        parse_properties(text, "client.properties")
    assert str(refused.value) == f"client.properties: {mistakes}. Fix: correct these entries in client.properties"


def test_secrets_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "whole").write_text("from a file\n")
    (tmp_path / "some.properties").write_text("user=u\npassword=from an entry\n")
    cases = {
        "<${env:PW}|${env:PW}>": '<a"b\\c|a"b\\c>',
        f"${{file:{tmp_path}/whole}}": "from a file",
        f"${{file:{tmp_path}/some.properties:password}}": "from an entry",
        f"${{dir:{tmp_path}:whole}}": "from a file",
        "${vault:x} $env": "${vault:x} $env",
    }
    given = {written: written for written in cases}
    assert resolved(given, "file", {"PW": 'a"b\\c'}) == cases
    quoted = {"sasl.jaas.config": 'Module required password="${env:PW}";'}
    assert resolved(quoted, "file", {"PW": 'a"b\\c'}) == {"sasl.jaas.config": r'Module required password="a\"b\\c";'}


def test_references_that_lead_nowhere_are_reported_at_once() -> None:
    given = {"a": "${env:MISSING}", "b": "${file:/nowhere}", "c": "${file:/nowhere:k}", "d": "${dir:/nowhere:k}"}
    with pytest.raises(ClientPropertiesInvalid) as caught:
        resolved(given, "client.properties", {})
    assert caught.value.mistakes == tuple(
        f"'{key}' refers to a secret that does not exist: {value}" for key, value in given.items()
    )


def test_the_file_says_where_the_cluster_is_unless_the_flag_does(command_config: Path) -> None:
    def access(flag: str | None) -> ClusterAccess:
        return ClusterAccess.from_settings(Source(None, flag, command_config).settings().kafka)

    assert (access(None).bootstrap_servers, access("flag:1").bootstrap_servers) == ("broker:9092", "flag:1")
    made: dict[str, object] = access(None).open(dict, client_id="ours")
    assert (made["client_id"], made["bootstrap_servers"]) == ("ours", ["broker:9092"]), "ours goes before the file's"
    assert made["sasl_plain_password"] == FILE_PASSWORD
    with pytest.raises(UsageError):
        ClusterAccess.from_settings(load_settings().kafka)


def test_no_secret_is_printed(tmp_path: Path, command_config: Path) -> None:
    settings = Source(command_config=command_config).settings()
    file = tmp_path / "kquota.toml"
    file.write_text(f"[kafka.client]\n\"sasl.password\" = '{FILE_PASSWORD}'\n")
    shown = kquota("config", "show", "--config", str(file), "-o", "json").stdout
    keys = {row["key"]: row["value"] for row in json.loads(shown)}
    assert keys["kafka.client.sasl.password"] == "**********"
    file.write_text('[kafka.client]\n"sasl.password" = 20461\nsasl.jaas.config = "20462"\n')
    with pytest.raises(UsageError, match=r"'kafka.client.sasl.password'") as refused:
        load_settings(file)
    assert "2046" not in str(refused.value)
    access = ClusterAccess.from_settings(settings.kafka)
    for printed in (repr(settings), str(settings), settings.model_dump_json(), repr(access), shown):
        assert "a;b" not in printed
