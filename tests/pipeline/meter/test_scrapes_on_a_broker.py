"""`kquota meter prometheus` as a process, against a real broker."""

import subprocess
import sys
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.meter.scrape_meter import ACCURACY
from tests.pipeline.meter.metered_broker import all_events
from tests.pipeline.meter.metric_pages import exporter, page
from tests.waiting import PATIENCE_SECONDS, wait_until

LINE = b'kafka_server_produce_byte_rate{user="alice",client_id="etl"} 1000\n'
USAGE, MARKER = "usage-of-scrapes", "marker-of-scrapes"


@pytest.mark.broker
def test_it_stores_what_it_scrapes_until_it_is_stopped(broker: EmbeddedBroker, tmp_path: Path) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in (USAGE, MARKER)])
    admin.close()
    names = ("--topic", USAGE, "--marker-topic", MARKER, "--bootstrap-server", broker.bootstrap_servers)
    told = tmp_path / "log"
    with exporter(page(LINE)) as served, told.open("w") as log:
        command = [sys.executable, "-m", "pipeline.cli.main", "meter", "prometheus", *names]
        with subprocess.Popen([*command, "--targets", f"7={served.url}"], stderr=log) as process:
            try:
                wait_until(lambda: len(all_events(broker, USAGE)) >= 3, "three events")
                process.terminate()
                assert process.wait(PATIENCE_SECONDS) == 0
            finally:
                process.kill()
    said = f"scraping 1 brokers, to {USAGE} at {broker.bootstrap_servers}: {ACCURACY}"
    assert said in told.read_text()
    events = all_events(broker, USAGE)
    assert {(event["user"], event["client_id"], event["broker_id"]) for event in events} == {("alice", "etl", "7")}
    assert all(event["event_time_ms"] % 1000 == 999 for event in events)
