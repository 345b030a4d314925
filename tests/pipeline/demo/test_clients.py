"""The demo's load: rates, throttles, and its end."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker, plain_sign_in
from pipeline.demo.clients import DemoClientThread, DemoPlan, Pace
from pipeline.demo.folder import DemoClient
from tests.waiting import PATIENCE_SECONDS, wait_until

BOTH = (
    DemoClient("alice", "etl", "produce", "demo.orders", 100_000, 2.0, requests_per_second=40),
    DemoClient("bob", "indexer", "consume", "demo.orders", 50_000, 2.0),
)


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Any]:
    client: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def plan(broker: EmbeddedBroker, admin: Any) -> DemoPlan:
    topic = f"demo.throttle.{time.time_ns()}"
    names = (topic, "demo.orders")
    create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in names])
    return DemoPlan(broker.sasl_bootstrap_servers, broker.bootstrap_servers, broker.users, topic, BOTH)


class Waits:
    """How long every client must wait, as a gate would say it; counts how often each user was asked about."""

    def __init__(self) -> None:
        self.remaining_ms = 0
        self.asked: Counter[str] = Counter()

    def __call__(self, user: str, _client_id: str) -> int:
        self.asked[user] += 1
        return self.remaining_ms


@pytest.mark.broker
def test_clients_never_exceed_their_rate_stand_still_while_throttled_and_go_on(
    broker: EmbeddedBroker, plan: DemoPlan
) -> None:
    """That they reach their rate too is shown on a hand-set clock, below: a slow machine may miss it here."""
    del plan  # it has made the topic
    waits, stopping, began = Waits(), Event(), time.monotonic()
    clients = [
        DemoClientThread(
            one, plain_sign_in(broker.sasl_bootstrap_servers, one.user, broker.users[one.user]), (1.0,), waits, stopping
        )
        for one in BOTH
    ]
    for client in clients:
        client.start()

    def have_moved(since: Sequence[int]) -> bool:
        now = [client.sent_bytes for client in clients]
        elapsed_seconds = time.monotonic() - began
        for sent, one in zip(now, BOTH, strict=True):
            assert sent <= one.bytes_per_second * elapsed_seconds + 2 * one.bytes_per_request
        least = [2 * one.bytes_per_second for one in BOTH]
        return all(sent >= before + more for sent, before, more in zip(now, since, least, strict=True))

    def await_questions() -> None:
        before = dict(waits.asked)
        wait_until(lambda: all(waits.asked[one.user] >= before[one.user] + 2 for one in BOTH), "questions of all")

    try:
        wait_until(lambda: have_moved((0, 0)), "two seconds' worth of bytes")
        waits.remaining_ms = 600_000
        await_questions()  # from now on each client knows of it
        held = [client.sent_bytes for client in clients]
        await_questions()
        assert [client.sent_bytes for client in clients] == held
        waits.remaining_ms = 0
        wait_until(lambda: have_moved(held), "two seconds' worth of bytes more")
    finally:
        stopping.set()
        for client in clients:
            client.leave()
            client.join(PATIENCE_SECONDS)


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


def test_the_rate_is_kept() -> None:
    assert sent_bytes(Pace(1_000), 0, 60_000) == pytest.approx(60_000, abs=200)


def test_small_delays_do_not_lower_the_rate() -> None:
    assert sent_bytes(Pace(1_000), 0, 60_000, step_ms=37) == pytest.approx(60_000, abs=200)


def test_nothing_is_sent_while_blocked_and_the_rate_is_the_same_after() -> None:
    pace = Pace(1_000)

    assert sent_bytes(pace, 0, 10_000, blocked=range(4_000, 9_000)) == pytest.approx(5_000, abs=200)
    assert sent_bytes(pace, 10_000, 20_000) == pytest.approx(10_000, abs=200)


def test_a_throttle_that_is_released_early_ends_early() -> None:
    pace = Pace(1_000)

    assert pace.wait_ms(0, blocked_ms=5_000) == 5_000
    assert pace.wait_ms(100, blocked_ms=0) == 0
