"""A secret in a file is replaced there while a program runs: its next connection signs in with the new one."""

from pathlib import Path

import pytest

from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Unreachable
from tests.conftest import USERS

pytestmark = pytest.mark.broker


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
