"""What doctor says while a sync writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.brokers.changes import KafkaQuotas, Look
from pipeline.brokers.native import NativeQuotas
from pipeline.brokers.running import sync_findings, sync_once
from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import KafkaSettings, Settings, TablesSettings
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from tests.pipeline.brokers.quota_broker import user, values_in
from tests.pipeline.cli.running import new_tables
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

NAME, RATE = "sync-beside", "producer_byte_rate"


@pytest.fixture
def root(tmp_path: Path) -> str:
    root = new_tables(tmp_path / "tables")
    QuotaTable(root).alter([QuotaChange(NAME, "", {RATE: 1e6})], local_audit("test"))
    return root


@pytest.fixture
def settings(broker: EmbeddedBroker, root: str) -> Iterator[Settings]:
    yield Settings(kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers), tables=TablesSettings(root=root))
    with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as native:
        native.alter({user(NAME): {RATE: None}})
        wait_until(lambda: user(NAME) not in values_in(native), "the broker to hear of it")


def test_doctor_takes_no_value_that_a_sync_writes_meanwhile_for_one_that_others_wrote(
    settings: Settings, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_once(settings)
    look = KafkaQuotas.look

    def look_late(brokers: KafkaQuotas) -> Look:
        monkeypatch.setattr(KafkaQuotas, "look", look)
        QuotaTable(root).alter([QuotaChange(NAME, "", {RATE: 2e6})], local_audit("test"))
        sync_once(settings)
        return look(brokers)

    monkeypatch.setattr(KafkaQuotas, "look", look_late)
    owned, *others = (text for _, text in sync_findings(settings, wall_ms()))
    assert "values that are kquota's on the brokers" in owned
    assert others == []
