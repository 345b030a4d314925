"""The demo's load: rates, throttles, and its end."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.clients import DemoPlan, Pace
from pipeline.demo.folder import DemoClient
from tests.waiting import wait_until

BOTH = (
    DemoClient("alice", "etl", "produce", "demo.orders", 100_000, 2.0, requests_per_second=40),
    DemoClient("bob", "indexer", "consume", "demo.orders", 50_000, 2.0),
)


@pytest.fixture
def plan(broker: EmbeddedBroker) -> DemoPlan:
    topic = f"demo.throttle.{time.time_ns()}"
    with ClusterAccess(broker.bootstrap_servers).admin() as admin:
        create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in (topic, "demo.orders")])
    return DemoPlan(broker.sasl_bootstrap_servers, broker.bootstrap_servers, broker.users, topic, BOTH)


@pytest.mark.broker
def test_the_load_ends_with_its_parent(plan: DemoPlan) -> None:
    program = (
        "import os, sys, time; from pipeline.demo.clients import DemoClient, DemoPlan, start_demo_clients; "
        f"print(start_demo_clients({plan!r}, stdout=2).pid, flush=True); "
        "time.sleep(2); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)

    child = Path(f"/proc/{int(parent.stdout)}/stat")
    wait_until(lambda: not child.exists() or child.read_text(encoding="utf-8").split()[2] == "Z", "the load to end")


def sent_bytes(pace: Pace, start_ms: int, end_ms: int, blocked: range = range(0), step_ms: int = 1) -> int:
    total, now_ms = 0, start_ms
    while now_ms < end_ms:
        if pace.wait_ms(now_ms, max(0, blocked.stop - now_ms) if now_ms in blocked else 0) <= 0:
            pace.used(100, now_ms)
            total += 100
        now_ms += step_ms
    return total


@pytest.mark.parametrize("step_ms", [1, 37], ids=["", "small delays"])
def test_the_rate_is_kept(step_ms: int) -> None:
    assert sent_bytes(Pace(1_000), 0, 60_000, step_ms=step_ms) == pytest.approx(60_000, abs=200)


def test_nothing_is_sent_while_blocked_and_the_rate_is_the_same_after() -> None:
    pace = Pace(1_000)
    assert sent_bytes(pace, 0, 10_000, blocked=range(4_000, 9_000)) == pytest.approx(5_000, abs=200)
    assert sent_bytes(pace, 10_000, 20_000) == pytest.approx(10_000, abs=200)


def test_a_throttle_that_is_released_early_ends_early() -> None:
    pace = Pace(1_000)
    assert [pace.wait_ms(0, blocked_ms=5_000), pace.wait_ms(100, blocked_ms=0)] == [5_000, 0]
