"""The demo's load: rates, throttles, and its end."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.clients import DemoPlan
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
