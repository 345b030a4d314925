"""`kquota meter --metrics-port` as a process of its own: Prometheus reads what it has read and stored."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from tests.metrics_reading import metrics_named_in
from tests.waiting import PATIENCE_SECONDS, wait_until


@pytest.mark.broker
def test_a_running_meter_tells_what_it_has_read_and_stored(broker: EmbeddedBroker, tmp_path: Path) -> None:
    usage_topic, marker_topic = f"usage.{time.time_ns()}", f"marker.{time.time_ns()}"
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in (usage_topic, marker_topic)])
    admin.close()
    names = ("--topic", usage_topic, "--marker-topic", marker_topic, "--bootstrap-server", broker.bootstrap_servers)
    command = [sys.executable, "-m", "pipeline.cli.main", "meter", "request-log", str(broker.request_log_path), *names]
    command += ["--broker-id", "m1", "--from-beginning", "--metrics-port", "0"]
    command += ["--state-file", str(tmp_path / "state.json")]
    told = tmp_path / "log"
    with told.open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            stored = 'kquota_meter_stored_events_total{broker_id="m1"} '

            def has_stored() -> bool:
                lines = metrics_named_in(told.read_text()).splitlines()
                return any(line.startswith(stored) and float(line.removeprefix(stored)) > 0 for line in lines)

            wait_until(has_stored, "the metrics to tell of stored events")
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
