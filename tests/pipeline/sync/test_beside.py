"""The sync beside other work, as `kquota run --sync` starts it: start, stop and failure."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from pipeline.brokers.changes import KafkaQuotas, Look
from pipeline.brokers.lock import running_sync as holder_of_lock
from pipeline.brokers.lock import sync_lock
from pipeline.brokers.native import NativeQuotas
from pipeline.brokers.running import sync_beside, sync_findings, sync_once
from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Conflict
from pipeline.settings.model import KafkaSettings, Settings, TablesSettings
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from tests.pipeline.brokers.quota_broker import user, values_in
from tests.pipeline.cli.running import kquota, new_tables
from tests.waiting import PATIENCE_SECONDS, wait_until

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


def test_it_keeps_the_quotas_until_the_end_of_the_block_and_no_longer(settings: Settings, root: str) -> None:
    ended = Event()
    with NativeQuotas(ClusterAccess.from_settings(settings.kafka)) as native:
        with sync_beside(settings, ended.set):
            wait_until(lambda: values_in(native).get(user(NAME)) == {RATE: 1e6}, "the quota to be on the broker")
            assert holder_of_lock(root) is not None
        assert holder_of_lock(root) is None
    assert not ended.is_set()


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


def test_what_it_fails_with_ends_the_block_and_is_raised_there(settings: Settings, root: str) -> None:
    ended = Event()
    with sync_lock(root), pytest.raises(Conflict), sync_beside(settings, ended.set):
        assert ended.wait(PATIENCE_SECONDS)


def test_an_error_of_the_block_ends_it_too_and_goes_before_its_own(settings: Settings, root: str) -> None:
    with pytest.raises(ZeroDivisionError), sync_lock(root), sync_beside(settings, lambda: None):
        _ = 1 / 0
    assert holder_of_lock(root) is None


@pytest.mark.usefixtures("impatient")
def test_a_job_that_can_not_start_takes_the_sync_with_it(root: str, tmp_path: Path) -> None:
    nowhere = ("--bootstrap-server", "127.0.0.1:1", "--no-wait", "--run-dir", str(tmp_path))
    answer = kquota("run", "--sync", "--tables", root, "--checkpoint", str(tmp_path / "checkpoint"), *nowhere)
    assert answer.exit_code == 6
    assert "kquota: no Kafka broker answers at 127.0.0.1:1" in answer.stderr
    assert holder_of_lock(root) is None
