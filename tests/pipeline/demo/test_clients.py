"""The demo's load on a real broker: rates, throttles, and its end."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.clients import start_demo_clients
from pipeline.demo.plan import DemoClient, DemoPlan
from schemas.throttle_record import ThrottleRecord

pytestmark = pytest.mark.broker

CLIENTS = (
    DemoClient("alice", "etl", "produce", "demo.orders", 100_000, 2.0, requests_per_second=40),
    DemoClient("bob", "indexer", "consume", "demo.orders", 50_000, 2.0),
)


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Any]:
    client: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def plan_path(broker: EmbeddedBroker, admin: Any) -> Iterator[Path]:
    topic = f"demo.throttle.{time.time_ns()}"
    names = (topic, "demo.orders")
    create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in names])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        DemoPlan(broker.sasl_bootstrap_servers, broker.bootstrap_servers, broker.users, topic, None, CLIENTS).write(
            path
        )
        yield path


def throttle(user: str, client_id: str, throttle_time_ms: int) -> ThrottleRecord:
    return ThrottleRecord(
        action="throttle", cluster="c", broker_id="", user=user, client_id=client_id,
        throttle_time_ms=throttle_time_ms, throttled_until_ms=time.time_ns() // 1_000_000 + throttle_time_ms,
        quota_type="producer_byte_rate", sensor=(user, client_id), observed=2.0, bound=1.0, window_ms=10_000,
        tokens=None, owed_ms=throttle_time_ms, cause="violation", decision_id="d", publish_seq=1, batch_id=1,
        quota_version=1,
    )  # fmt: skip


def test_clients_keep_their_rate_stop_while_throttled_and_return_to_it(broker: EmbeddedBroker, plan_path: Path) -> None:
    child = start_demo_clients(plan_path, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    def next_reports() -> dict[str, dict[str, Any]]:
        assert child.stdout is not None
        reports = [json.loads(child.stdout.readline()) for _ in CLIENTS]
        return {report["user"]: report for report in reports}

    seconds = [next_reports() for _ in range(6)]
    topic = DemoPlan.read(plan_path).throttle_topic
    for client in CLIENTS:
        producer.send(topic, value=throttle(client.user, client.client_id, 3_500).to_value()).get(5)
    seconds += [next_reports() for _ in range(8)]
    child.stdin.close()
    started = time.monotonic()
    assert child.wait(10) == 0
    assert time.monotonic() - started < 3
    child.stdout.close()
    producer.close()

    for client in CLIENTS:
        totals = [second[client.user]["sent_bytes"] for second in seconds]
        rates = [later - earlier for earlier, later in pairwise(totals)]
        assert rates[4] == pytest.approx(client.bytes_per_second, rel=0.1)
        assert any(rate == 0 for rate in rates[6:9])
        assert any(second[client.user]["blocked"] for second in seconds[6:9])
        assert not seconds[-1][client.user]["blocked"]
        assert rates[-1] == pytest.approx(client.bytes_per_second, rel=0.1)


def test_the_load_ends_with_its_parent(plan_path: Path) -> None:
    program = (
        "import os, sys, time; from pathlib import Path; "
        "from pipeline.demo.clients import start_demo_clients; "
        f"print(start_demo_clients(Path({str(plan_path)!r}), stdout=2).pid, flush=True); "
        "time.sleep(2); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)

    child_pid = int(parent.stdout)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child_pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{child_pid}/stat").read_text(encoding="utf-8").split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{child_pid}").exists()
