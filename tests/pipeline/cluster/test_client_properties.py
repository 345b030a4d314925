"""client.properties as people write them, and the mistakes in them."""

from pathlib import Path

import pytest

from pipeline.cluster.client_properties import command_line_options, kafka_options, read_client_properties
from pipeline.cluster.errors import ClientPropertiesInvalid

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="a;b\\"c";'


def written(folder: Path, text: str) -> Path:
    path = folder / "client.properties"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_sasl_file_becomes_options(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "# ours\nbootstrap.servers=broker:9092\nsecurity.protocol = SASL_PLAINTEXT\nsasl.mechanism: PLAIN\n"
        f"sasl.jaas.config={PLAIN}\nmax.poll.records=10\n",
    )

    assert kafka_options(read_client_properties(path)) == {
        "bootstrap_servers": "broker:9092",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": 'a;b"c',
    }


def test_a_setting_may_go_over_several_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path, "sasl.jaas.config=a.ScramLoginModule required \\\n  username=alice \\\n  password='x y';\n"
    )

    assert kafka_options(read_client_properties(path)) == {
        "sasl_plain_username": "alice",
        "sasl_plain_password": "x y",
    }


def test_certificates_are_pem_files() -> None:
    options = kafka_options({
        "security.protocol": "ssl",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
        "ssl.endpoint.identification.algorithm": "",
    })  # fmt: skip

    assert options == {"security_protocol": "SSL", "ssl_cafile": "/etc/ca.pem", "ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("properties", "mistake"),
    [
        ({"security.protocol": "TLS"}, "'security.protocol' must be one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ({"sasl.mechanism": "GSSAPI"}, "'sasl.mechanism' must be one of PLAIN"),
        ({"ssl.truststore.type": "JKS"}, "'ssl.truststore.type' must be PEM"),
        ({"ssl.keystore.location": "/k.jks"}, "'ssl.keystore.location' is not supported"),
        ({"sasl.jaas.config": "a.Krb5LoginModule required;"}, "must name PlainLoginModule or Scram"),
        ({"sasl.jaas.config": "a.PlainLoginModule required username=x;"}, "must give username and password; got u"),
        ({"security.protocol": "SASL_SSL"}, "'sasl.mechanism' must be set for SASL_SSL"),
    ],
)
def test_security_that_cannot_be_kept_is_refused(properties: dict[str, str], mistake: str) -> None:
    with pytest.raises(ClientPropertiesInvalid, match=mistake):
        kafka_options(properties)


def test_all_mistakes_come_at_once_and_without_the_password() -> None:
    with pytest.raises(ClientPropertiesInvalid) as caught:
        kafka_options(
            {"sasl.mechanism": "X", "sasl.jaas.config": "Other required password=hidden"}, "client.properties"
        )

    assert len(caught.value.mistakes) == 2
    assert "hidden" not in str(caught.value)


def test_a_line_that_is_no_setting_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClientPropertiesInvalid, match="setting 2 must be key=value; got 'nonsense'"):
        read_client_properties(written(tmp_path, "a=b\nnonsense\n"))


def test_the_flag_goes_before_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "bootstrap.servers=file:1\n")

    assert command_line_options("flag:2", path)[0] == "flag:2"
    assert command_line_options(None, path) == ("file:1", {})


def test_an_address_must_come_from_somewhere() -> None:
    with pytest.raises(ClientPropertiesInvalid, match="'--bootstrap-server' must be given"):
        command_line_options(None, None)
