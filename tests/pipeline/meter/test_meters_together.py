"""Several meters of one cluster: each sees the requests of all others in the request log of its broker."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.clock import SystemClock
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.meter.log_follower import LogFollower
from pipeline.meter.meter_state import read_state
from pipeline.meter.request_log import OwnTraffic, RequestLogParser
from pipeline.meter.request_meter import RequestMeter
from pipeline.meter.usage_producer import Batching, KafkaUsageSink, UsageProducer
from pipeline.meter.usage_topic import UsageTopic
from tests.pipeline.meter.metered_broker import alice, all_events
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def usage_topic(broker: EmbeddedBroker) -> Iterator[UsageTopic]:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    with closing(admin):
        name = f"usage.{time.time_ns()}"
        create_topics(admin, [TopicSpec(each, "demo", 1, "any", {}, {}) for each in (name, "together")])
        yield UsageTopic.described_by(admin, name)


class Meter:
    """A meter as the command line makes it: signed in as nobody in particular, on the listener of all clients."""

    def __init__(self, broker: EmbeddedBroker, topic: UsageTopic, number: int, folder: Path) -> None:
        self.client_id = f"kquota-meter-{number}"
        self._producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id=self.client_id)
        self.follower = LogFollower(broker.request_log_path)
        self._meter = RequestMeter(
            self.follower,
            RequestLogParser(str(number), OwnTraffic(usage_topic=topic)),
            UsageProducer(KafkaUsageSink(self._producer, topic.name, broker.bootstrap_servers), Batching(), topic.name),
            folder / f"{number}.json",
            SystemClock(),
            Event().wait,
        )

    def run(self, stopping: Event) -> bool:
        with closing(self._producer):
            return self._meter.run(stopping.is_set)


def produced(lines: list[str], client_id: str) -> bool:
    return any(f'"clientId":"{client_id}"' in line and '"requestApiKeyName":"PRODUCE"' in line for line in lines)


def test_two_meters_report_the_client_and_not_each_other(
    broker: EmbeddedBroker, usage_topic: UsageTopic, tmp_path: Path
) -> None:
    log, stopping = broker.request_log_path, Event()
    meters = [Meter(broker, usage_topic, number, tmp_path) for number in (1, 2)]
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(meter.run, stopping) for meter in meters]
        client: Any = KafkaProducer(**alice(broker, client_id="together-app"))
        client.send("together", b"x").get(PATIENCE_SECONDS)
        client.close()
        wait_until(
            lambda: all(produced(log.read_text().splitlines(), meter.client_id) for meter in meters),
            "a report of each meter in the request log",
        )
        both_reported_bytes = log.stat().st_size
        wait_until(
            lambda: all(meter.follower.position.offset_bytes >= both_reported_bytes for meter in meters),
            "the meters to read each other's reports",
        )
        stopping.set()
        assert all(each.result(PATIENCE_SECONDS) for each in running)
    reported = [event["client_id"] for event in all_events(broker, usage_topic.name) if "produced_bytes" in event]
    assert reported == ["together-app", "together-app"]


def test_the_topics_id_is_the_one_of_the_request_log(broker: EmbeddedBroker, usage_topic: UsageTopic) -> None:
    logged = f'"name":{json.dumps(usage_topic.name)},"topicId":{json.dumps(usage_topic.topic_id)}'
    wait_until(lambda: logged in broker.request_log_path.read_text(), "the topic's metadata in the request log")


def test_a_topic_that_does_not_exist_has_no_id(broker: EmbeddedBroker) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    with closing(admin):
        assert UsageTopic.described_by(admin, "no.such.topic") == UsageTopic("no.such.topic", None)


def test_the_command_reports_a_client_saves_its_place_and_ends_clean(
    broker: EmbeddedBroker, usage_topic: UsageTopic, tmp_path: Path
) -> None:
    state = tmp_path / "state" / "meter.json"
    command = [sys.executable, "-m", "pipeline.cli.main", "meter", "request-log", str(broker.request_log_path)]
    settings = tmp_path / "kquota.toml"
    settings.write_text(
        f'[kafka]\nbootstrap_servers = "{broker.bootstrap_servers}"\nusage_topic = "{usage_topic.name}"\n'
    )
    command += ["--broker-id", "1", "--state-file", str(state), "--config", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as meter:
        try:
            assert meter.stderr is not None
            assert "following" in meter.stderr.readline()
            client: Any = KafkaProducer(**alice(broker, client_id="metered-by-command"))
            client.send("together", b"x").get(PATIENCE_SECONDS)
            client.close()

            def is_reported() -> bool:
                return any(event["client_id"] == "metered-by-command" for event in all_events(broker, usage_topic.name))

            wait_until(is_reported, "an event of the client")
            meter.send_signal(signal.SIGTERM)
            assert meter.wait(PATIENCE_SECONDS) == 0
        finally:
            meter.kill()
    assert read_state(state) is not None
