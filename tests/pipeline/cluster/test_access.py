"""The access to a cluster: what every client gets from it, and what is never printed."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cli.options import Source
from pipeline.cluster.access import ClusterAccess
from pipeline.errors import UsageError
from pipeline.settings.loading import load_settings

PASSWORD = "t0p-s3cret"  # noqa: S105 - looked for in what is printed
FILE = f"""\
bootstrap.servers=broker:9092
client.id=mine
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.username=alice
sasl.password={PASSWORD}
"""


@pytest.fixture
def command_config(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    return path


def test_the_file_says_where_the_cluster_is_unless_the_flag_does(command_config: Path) -> None:
    def address(flag: str | None) -> str:
        return ClusterAccess.from_settings(Source(None, flag, command_config).settings().kafka).bootstrap_servers

    assert (address(None), address("flag:1")) == ("broker:9092", "flag:1")
    with pytest.raises(UsageError):
        ClusterAccess.from_settings(load_settings().kafka)


def test_an_option_of_ours_goes_before_that_of_the_file(command_config: Path) -> None:
    access = ClusterAccess.from_settings(Source(command_config=command_config).settings().kafka)
    made: dict[str, object] = access.open(dict, client_id="ours")
    assert (made["client_id"], made["bootstrap_servers"]) == ("ours", ["broker:9092"])
    assert made["sasl_plain_password"] == PASSWORD


def test_no_secret_is_printed(tmp_path: Path, command_config: Path) -> None:
    settings = Source(command_config=command_config).settings()
    access = ClusterAccess.from_settings(settings.kafka)
    file = tmp_path / "kquota.toml"
    file.write_text(f'[kafka.client]\n"sasl.password" = "{PASSWORD}"\n')
    shown = CliRunner().invoke(app, ["config", "show", "--config", str(file), "-o", "json"])
    keys = {row["key"]: row["value"] for row in json.loads(shown.stdout)}

    assert keys["kafka.client.sasl.password"] == "**********"
    for printed in (repr(settings), str(settings), settings.model_dump_json(), repr(access), shown.output):
        assert PASSWORD not in printed


def test_a_secret_of_a_wrong_type_is_refused_without_being_printed(tmp_path: Path) -> None:
    file = tmp_path / "kquota.toml"
    file.write_text('[kafka.client]\n"sasl.password" = 20461\nsasl.jaas.config = "20462"\n')
    with pytest.raises(UsageError) as refused:
        load_settings(file)
    assert re.findall(r"'(kafka[^']*)'", refused.value.message) == [
        "kafka.client.sasl.password",
        "kafka.client.sasl",
    ]
    assert "2046" not in str(refused.value)
