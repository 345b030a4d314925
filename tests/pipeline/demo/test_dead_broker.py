"""The demo's clients when the broker has died: they end at once, and without a traceback of the Kafka client."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from pipeline.demo.broker import EmbeddedBroker, plain_sign_in
from pipeline.demo.plan import DemoClient, DemoPlan
from pipeline.demo.stock_client import StockWork
from pipeline.jvm.jars import fetch
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.broker

USER, TOPIC = "alice", "dead"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    fetch()
    with EmbeddedBroker(tmp_path / "broker", {USER: "alice-secret"}) as own:
        admin = KafkaAdminClient(bootstrap_servers=own.bootstrap_servers)
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1} for name in (TOPIC, "throttles")})
        admin.close()
        yield own


def test_the_clients_of_a_broker_that_was_killed_end_without_a_traceback(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    options = {**plain_sign_in(own_broker.sasl_bootstrap_servers, USER, "alice-secret"), "client_id": "stock"}
    work, plan = tmp_path / "work.json", tmp_path / "plan.json"
    work.write_text(json.dumps(asdict(StockWork("produce", TOPIC, [1.0], 400_000, 20, options))))
    clients = (DemoClient(USER, "demo", "produce", TOPIC, 100_000, 2.0),)
    DemoPlan(own_broker.sasl_bootstrap_servers, own_broker.bootstrap_servers, own_broker.users, "throttles", None,
             clients).write(plan)  # fmt: skip
    commands = (["stock_client", str(work)], ["clients", "--plan", str(plan)])
    outputs = [tmp_path / name for name in ("stock.txt", "demo.txt")]
    processes = []
    for (module, *arguments), output in zip(commands, outputs, strict=True):
        with output.open("wb") as both:
            command = [sys.executable, "-u", "-m", f"pipeline.demo.{module}", *arguments]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=both, stderr=both))
    try:
        wait_until(lambda: all(has_sent(output) for output in outputs), "the clients to send")
        own_broker.kill()
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    told = "".join(output.read_text() for output in outputs)
    assert "Traceback" not in told
    assert "Exception ignored" not in told


def has_sent(output: Path) -> bool:
    lines = output.read_text().splitlines()
    return any(json.loads(line).get("sent_bytes") for line in lines if line.startswith("{") and line.endswith("}"))
