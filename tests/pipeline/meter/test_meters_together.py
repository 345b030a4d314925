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
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.meter.log_follower import LogFollower, LogPlace
from pipeline.meter.request_log import OwnTraffic, RequestLogParser
from pipeline.meter.request_meter import RequestMeter
from pipeline.meter.usage_topic import KafkaUsageTopic, UsagePublisher, UsageTopic
from schemas.names import MARKER_TOPIC
from tests.pipeline.meter.metered_broker import alice, all_events
from tests.waiting import PATIENCE_SECONDS, never, wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def usage_topic(broker: EmbeddedBroker) -> Iterator[UsageTopic]:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    with closing(admin):
        name = f"usage.{time.time_ns()}"
        create_topics(admin, [TopicSpec(each, "demo", 1, "any", {}, {}) for each in (name, "together", MARKER_TOPIC)])
        yield UsageTopic.described_by(admin, name)


class Meter:
    """A meter as the command line makes it: signed in as nobody in particular, on the listener of all clients."""

    def __init__(self, broker: EmbeddedBroker, topic: UsageTopic, number: int) -> None:
        self.client_id = f"together-meter-{number}"
        access = ClusterAccess(broker.bootstrap_servers, {"client.id": self.client_id})
        kafka_topic = KafkaUsageTopic(f"{topic.name}.{number}", topic.name, MARKER_TOPIC, access, 60_000)
        self.publisher = UsagePublisher(str(number), kafka_topic, topic.name)
        assert self.publisher.take_over() is None
        self.follower = LogFollower(broker.request_log_path)
        self.parser = RequestLogParser(str(number), OwnTraffic(usage_topic=topic))
        self._meter = RequestMeter(self.follower, self.parser, self.publisher, SystemClock(), Event().wait)

    def run(self, stopping: Event) -> bool:
        return self._meter.run(stopping.is_set)


def produced(lines: list[str], client_id: str) -> bool:
    return any(f'"clientId":"{client_id}"' in line and '"requestApiKeyName":"PRODUCE"' in line for line in lines)


def test_two_meters_report_the_client_and_not_each_other(broker: EmbeddedBroker, usage_topic: UsageTopic) -> None:
    log, stopping = broker.request_log_path, Event()
    meters = [Meter(broker, usage_topic, number) for number in (1, 2)]
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
            lambda: all(meter.follower.place.offset_bytes >= both_reported_bytes for meter in meters),
            "the meters to read each other's reports",
        )
        stopping.set()
        assert all(each.result(PATIENCE_SECONDS) for each in running)
    reported = [event["client_id"] for event in all_events(broker, usage_topic.name) if "produced_bytes" in event]
    assert reported == ["together-app", "together-app"]


def test_a_meter_that_has_nothing_to_report_comes_to_rest(broker: EmbeddedBroker, usage_topic: UsageTopic) -> None:
    """What its transactions leave in the log is no usage, else each would be the reason of the next."""
    stopping = Event()
    meter = Meter(broker, usage_topic, 3)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(meter.run, stopping)
        client: Any = KafkaProducer(**alice(broker, client_id="rest-app"))
        client.send("together", b"x").get(PATIENCE_SECONDS)
        client.close()
        wait_until(lambda: meter.publisher.counts.events > 0, "an event")
        own = meter.parser.counts.own
        wait_until(lambda: meter.parser.counts.own > own, "the requests of its own transaction in the log")
        # What the client's other requests and this test's reading leave behind comes first; then nothing follows.
        wait_until(lambda: is_quiet(meter), "the meter to have nothing more to report")
        stopping.set()
        assert running.result(PATIENCE_SECONDS)


def is_quiet(meter: Meter) -> bool:
    """Whether it stores no event for longer than ten transactions would take."""
    stored = meter.publisher.counts.events
    return never(lambda: meter.publisher.counts.events > stored, for_seconds=2)


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
    state, broker_id = tmp_path / "meter.json", f"command.{time.time_ns()}"
    place = LogPlace(inode=broker.request_log_path.stat().st_ino, offset_bytes=0, head_bytes=0, head_sha256="")
    old = place.model_dump(exclude={"passed_until_ns", "passed"})
    state.write_text(json.dumps({"version": 1, **old}))
    command = [sys.executable, "-m", "pipeline.cli.main", "meter", "request-log", str(broker.request_log_path)]
    settings = tmp_path / "kquota.toml"
    settings.write_text(
        f'[kafka]\nbootstrap_servers = "{broker.bootstrap_servers}"\nusage_topic = "{usage_topic.name}"\n'
    )
    command += ["--broker-id", broker_id, "--state-file", str(state), "--config", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as meter:
        try:
            assert meter.stderr is not None
            assert f"from the place in {state}, to {usage_topic.name}" in meter.stderr.readline()
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
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kquota.toml", "meter.json.moved"]
    left = KafkaUsageTopic(broker_id, usage_topic.name, MARKER_TOPIC, ClusterAccess(broker.bootstrap_servers), 60_000)
    mark = left.committed()
    assert mark is not None
    assert left.place_of(mark).offset_bytes > 0
