"""The demo's load: rates, throttles, a dead broker, its end; and clients that a real broker slows."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.clients import Pace, start_demo_clients
from pipeline.demo.folder import DemoClient, DemoPlan
from schemas.throttle_record import ThrottleRecord
from tests.throttle_records import message
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
def plan_path(broker: EmbeddedBroker, admin: Any) -> Iterator[Path]:
    topic = f"demo.throttle.{time.time_ns()}"
    names = (topic, "demo.orders")
    create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in names])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        DemoPlan(broker.sasl_bootstrap_servers, broker.bootstrap_servers, broker.users, topic, None, BOTH).write(path)
        yield path


def throttle(publish_seq: int, user: str, client_id: str, throttle_time_ms: int) -> ThrottleRecord:
    return ThrottleRecord(
        action="throttle", cluster="c", broker_id="", user=user, client_id=client_id,
        throttle_time_ms=throttle_time_ms, throttled_until_ms=time.time_ns() // 1_000_000 + throttle_time_ms,
        quota_type="producer_byte_rate", sensor=(user, client_id), observed=2.0, bound=1.0, window_ms=10_000,
        tokens=None, owed_ms=throttle_time_ms, cause="violation", decision_id="d", publish_seq=publish_seq, batch_id=1,
        quota_version=1,
    )  # fmt: skip


class Load:
    """The process with the clients; the newest report of each client, and the one before, by user."""

    def __init__(self, plan_path: Path) -> None:
        self._began = time.monotonic()
        self._child = start_demo_clients(plan_path, stdout=subprocess.PIPE)
        self.before: dict[str, dict[str, Any]] = {}
        self.now: dict[str, dict[str, Any]] = {}

    def read_until(self, what: str, is_so: Callable[[str], bool]) -> None:
        """Read reports, which come about once per second, until it is so for the user of each client."""
        wait_until(lambda: self._read() and all(is_so(client.user) for client in BOTH), what)

    def stands_still(self, user: str) -> bool:
        """Blocked in two reports; then nothing at all was sent or read in between."""
        if not (self.before[user]["blocked"] and self.now[user]["blocked"]):
            return False
        assert self.before[user]["sent_bytes"] == self.now[user]["sent_bytes"]
        return True

    def has_moved(self, user: str, size_bytes: float, since: dict[str, dict[str, Any]]) -> bool:
        return bool(self.now[user]["sent_bytes"] >= since.get(user, {"sent_bytes": 0})["sent_bytes"] + size_bytes)

    def end(self) -> int:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        code = self._child.wait(PATIENCE_SECONDS)
        self._child.stdout.close()
        return code

    def _read(self) -> bool:
        assert self._child.stdout is not None
        reports = [json.loads(self._child.stdout.readline()) for _ in BOTH]
        self.before, self.now = self.now, {report["user"]: report for report in reports}
        # The process has lived for less time than this test has waited for it, so no client may have sent more.
        elapsed_seconds = time.monotonic() - self._began
        for client in BOTH:
            most_bytes = client.bytes_per_second * elapsed_seconds + 2 * client.bytes_per_request
            assert self.now[client.user]["sent_bytes"] <= most_bytes
        return bool(self.before)


@pytest.mark.broker
def test_clients_never_exceed_their_rate_stand_still_while_throttled_and_go_on(
    broker: EmbeddedBroker, plan_path: Path
) -> None:
    """That they reach their rate too is shown on a hand-set clock, in test_pace.py: a slow machine may miss it here."""
    load = Load(plan_path)
    producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    topic = DemoPlan.read(plan_path).throttle_topic

    def publish(publish_seq: int, throttle_time_ms: int) -> None:
        for client in BOTH:
            record = throttle(publish_seq, client.user, client.client_id, throttle_time_ms)
            producer.send(topic, value=message(record).value).get(PATIENCE_SECONDS)

    moving_bytes = {client.user: 2 * client.bytes_per_second for client in BOTH}
    load.read_until("two seconds' worth of bytes", lambda user: load.has_moved(user, moving_bytes[user], {}))
    publish(1, 600_000)
    load.read_until("all clients to stand still", load.stands_still)
    held = load.now
    assert all(report["held_ms"] > 0 == report["broker_throttle_max_ms"] for report in held.values())
    publish(2, 1_000)  # this one lapses by itself
    load.read_until("the throttles to end", lambda user: not load.now[user]["blocked"])
    load.read_until("two seconds' worth of bytes more", lambda user: load.has_moved(user, moving_bytes[user], held))
    assert load.end() == 0
    producer.close()


@pytest.mark.broker
def test_the_load_ends_with_its_parent(plan_path: Path) -> None:
    program = (
        "import os, sys, time; from pathlib import Path; "
        "from pipeline.demo.clients import start_demo_clients; "
        f"print(start_demo_clients(Path({str(plan_path)!r}), stdout=2).pid, flush=True); "
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


@pytest.mark.broker
def test_clients_that_do_not_listen_say_which_of_them_a_broker_slows(
    broker: EmbeddedBroker, bound: None, tmp_path: Path
) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics({TOPIC: {"num_partitions": 1}}, wait_for_metadata=True)
    admin.close()
    clients = (
        DemoClient("bob", "consume", "consume", TOPIC, 20_000, 1.0, listens=False),
        DemoClient(USER, "produce", "produce", TOPIC, 20_000, 20.0, listens=False),
    )
    plan = tmp_path / "plan.json"
    throttles = f"demo.throttle.{time.time_ns()}"
    DemoPlan(broker.sasl_bootstrap_servers, broker.bootstrap_servers, broker.users, throttles, None, clients).write(
        plan
    )
    process = start_demo_clients(plan, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        newest: dict[str, dict[str, Any]] = {}

        def slowed() -> bool:
            assert process.stdout is not None
            report = json.loads(process.stdout.readline())
            newest[report["client_id"]] = report
            return len(newest) == 2 and all(
                (newest["produce"]["broker_throttle_max_ms"], newest["consume"]["sent_bytes"])
            )

        wait_until(slowed, "the broker to slow the producer")
        assert newest["produce"]["broker_throttle_max_ms"] >= newest["produce"]["broker_throttle_mean_ms"] > 0
        assert newest["consume"]["broker_throttle_max_ms"] == 0
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
