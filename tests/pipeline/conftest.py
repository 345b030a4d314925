"""One broker for the tests of native quotas alone, and its quotas, which every test finds empty; nothing is carried."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pipeline.command_line import carry_nothing

if TYPE_CHECKING:
    from pipeline.brokers.native import NativeQuotas
    from pipeline.demo.broker import EmbeddedBroker
    from tests.pipeline.cli.kafka_configs import KafkaConfigs


@pytest.fixture(autouse=True)
def _nothing_carried() -> Iterator[None]:
    """Commands that a test prints are of no other test."""
    carry_nothing()
    yield
    carry_nothing()


@pytest.fixture(scope="session")
def quota_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator["EmbeddedBroker"]:
    """See tests/pipeline/brokers/quota_broker.py."""
    from pipeline.demo.broker import EmbeddedBroker  # noqa: PLC0415 - imports the Kafka client
    from pipeline.jvm.jars import fetch  # noqa: PLC0415

    fetch()
    with EmbeddedBroker(tmp_path_factory.mktemp("quota-broker")) as running:
        yield running


@pytest.fixture
def native(quota_broker: "EmbeddedBroker") -> Iterator["NativeQuotas"]:
    """The quotas of that broker: none, before and after the test."""
    from pipeline.brokers.native import NativeQuotas  # noqa: PLC0415
    from tests.pipeline.brokers.quota_broker import access_to, clear  # noqa: PLC0415

    with NativeQuotas(access_to(quota_broker)) as connected:
        yield connected
        clear(connected)


@pytest.fixture(scope="session")
def kafka_configs() -> Iterator["KafkaConfigs"]:
    """Kafka's own kafka-configs; a test that asks it is skipped without a JDK."""
    from pipeline.jvm.jars import fetch  # noqa: PLC0415
    from pipeline.jvm.java import find_jdk  # noqa: PLC0415
    from tests.pipeline.cli.kafka_configs import KafkaConfigs  # noqa: PLC0415

    jdk = find_jdk()
    if jdk is None:
        pytest.skip("runs a Java source file: needs a JDK; none in JAVA_HOME or on PATH")
    fetch()
    with KafkaConfigs(jdk) as running:
        yield running
