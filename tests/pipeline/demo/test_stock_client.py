"""The stock clients of the demo: they know nothing of kquota, and a real broker slows them."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker, plain_sign_in
from pipeline.demo.process import kill, spawn
from pipeline.demo.stock_client import StockWork
from tests.waiting import PATIENCE_SECONDS

TOPIC = "stock.exports"
USER = "carol"
BOUND = 20_000.0


@pytest.fixture
def bound(broker: EmbeddedBroker) -> Iterator[None]:
    """The broker's own quota for the user who produces."""
    entity = NativeEntity.of_row(USER, "")
    with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
        assert quotas.alter({entity: {"producer_byte_rate": BOUND}}) == []
        yield
        quotas.alter({entity: {"producer_byte_rate": None}})


def started(role: str, user: str, broker: EmbeddedBroker, folder: Path) -> "subprocess.Popen[bytes]":
    options = {**plain_sign_in(broker.sasl_bootstrap_servers, user, broker.users[user]), "client_id": role}
    path = folder / f"{role}.json"
    path.write_text(json.dumps(asdict(StockWork(role, TOPIC, [0.5, 0.5], 400_000, 20, options))), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline.demo.stock_client", str(path)]
    return spawn(command, cwd=Path.cwd(), output=subprocess.PIPE)


def reports(process: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    return map(json.loads, process.stdout)


@pytest.mark.broker
def test_a_stock_producer_reports_a_broker_that_slows_it_and_a_consumer_none(
    broker: EmbeddedBroker, bound: None, tmp_path: Path
) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics({TOPIC: {"num_partitions": 2}}, wait_for_metadata=True)
    admin.close()
    with ExitStack() as stack:
        consumer = started("consume", "bob", broker, tmp_path)
        producer = started("produce", USER, broker, tmp_path)
        for process in (consumer, producer):
            assert process.stdout is not None
            stack.enter_context(process.stdout)
            stack.callback(kill, process)
        sent = next(report for report in reports(producer) if report["broker_throttle_max_ms"])
        assert sent["broker_throttle_max_ms"] >= sent["broker_throttle_mean_ms"] > 0
        read = next(report for report in reports(consumer) if report["sent_bytes"])
        assert read["broker_throttle_max_ms"] == 0
        assert (read["user"], read["client_id"], read["role"]) == ("bob", "consume", "consume")
        for process in (consumer, producer):
            process.send_signal(signal.SIGTERM)
            last = [report["role"] for report in reports(process)]
            assert (process.wait(PATIENCE_SECONDS), set(last) <= {"consume", "produce"}) == (0, True)


def test_a_stock_client_loads_nothing_of_kquota() -> None:
    program = (
        "import sys, pipeline.demo.stock_client; "
        "print(*[name for name in sys.modules if name.split('.')[0] in {'pipeline', 'quota', 'schemas', 'purgatory'}])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["pipeline", "pipeline.demo", "pipeline.demo.stock_client"]
