"""A meter that is killed at random moments, while its log is written, rolled and compressed: the topic has all once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import ClusterUnreachable
from pipeline.failpoints import VARIABLE
from pipeline.meter.log_follower import LogFollower
from pipeline.meter.usage_topic import KafkaUsageTopic, UsagePublisher
from schemas.names import MARKER_TOPIC
from tests.pipeline.meter.log_folder import compress
from tests.pipeline.meter.metered_broker import all_events
from tests.pipeline.meter.request_lines import RequestLines, Used
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.broker

LINES_A_STEP = 40
LINES_A_FILE = 2_000


class Metered:
    """A log that is written all the time, and the meter's command."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.broker = broker
        self.log = folder / "kafka-request.log"
        self.log.touch()
        self.lines = RequestLines()
        self.topic = f"once.{time.time_ns()}"
        admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        with closing(admin):
            create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in (self.topic, MARKER_TOPIC)])
        access = ClusterAccess(broker.bootstrap_servers)
        self._reader = KafkaUsageTopic(self.topic, self.topic, MARKER_TOPIC, access, 60_000)

    def store_the_first_place(self) -> None:
        """Say that the log, which is still empty, was read up to here."""
        publisher = UsagePublisher(self.topic, self._reader, self.topic)
        with closing(publisher), closing(LogFollower(self.log, "beginning")) as follower:
            assert publisher.take_over() is None
            assert publisher.publish([], 0, follower.place, 0)

    @contextmanager
    def written(self) -> Iterator[None]:
        """The log grows until the end of the block; it is rolled, and what was rolled before is compressed."""
        ending = Event()
        writer = Thread(target=self._write, args=(ending,))
        writer.start()
        try:
            yield
        finally:
            ending.set()
            writer.join()

    def _write(self, ending: Event) -> None:
        written = rolled = 0
        while not ending.wait(0.01):
            written += self._append()
            if written >= LINES_A_FILE:
                last = self.log.with_name(f"{self.log.name}.{rolled}")
                if last.exists():
                    compress(last, time.time_ns())
                written, rolled = 0, rolled + 1
                self.log.rename(self.log.with_name(f"{self.log.name}.{rolled}"))
                self.log.touch()
        self._append()

    def _append(self) -> int:
        with self.log.open("a", encoding="utf-8") as file:
            file.writelines(self.lines.take(LINES_A_STEP))
        return LINES_A_STEP

    def start(self, failpoint: str = "") -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "pipeline.cli.main", "meter", "request-log", str(self.log)]
        command += ["--broker-id", self.topic, "--topic", self.topic, "--from-beginning", "--time-zone", "UTC"]
        command += ["--bootstrap-server", self.broker.bootstrap_servers]
        environment = {**os.environ, VARIABLE: failpoint} if failpoint else None
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)

    def is_read(self) -> bool:
        """Whether the place on the cluster is the end of the log."""
        try:
            mark, status = self._reader.committed(), self.log.stat()
        except ClusterUnreachable:  # the topic of the offsets is being made
            return False
        if mark is None:
            return False
        place = self._reader.place_of(mark)
        return (place.inode, place.offset_bytes) == (status.st_ino, status.st_size)

    def used(self) -> Used:
        """What the topic says, for who reads only what is committed."""
        used = Used()
        for event in all_events(self.broker, self.topic):
            client = event["user"], event["client_id"]
            used.produced_bytes.update({client: event["produced_bytes"]} if "produced_bytes" in event else {})
            used.fetched_bytes.update({client: event["fetched_bytes"]} if "fetched_bytes" in event else {})
            used.io_time_us[client] += event["io_time_ns"] // 1_000
            used.requests[client] += event.get("request_count", 1)
        return used


@pytest.fixture
def metered(broker: EmbeddedBroker, tmp_path: Path) -> Metered:
    """As a first meter leaves it that ended as soon as its place was stored: what is rolled from now on counts."""
    made = Metered(broker, tmp_path)
    made.store_the_first_place()
    return made


def finish(metered: Metered, meter: "subprocess.Popen[str]") -> None:
    wait_until(metered.is_read, "the meter to be at the end of the log")
    meter.send_signal(signal.SIGTERM)
    _, said = meter.communicate(timeout=PATIENCE_SECONDS)
    assert meter.returncode == 0, said
    assert "0 lost" in said


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.long)])
def test_after_kills_at_random_moments_the_topic_has_every_byte_once(metered: Metered, kills: int) -> None:
    chance = random.Random(kills)
    with metered.written():
        # Two that are sure to fall between the events and the end of their transaction, and right after it.
        for place in ("transaction.sent:3", "transaction.committed:2"):
            with metered.start(place) as meter:
                meter.communicate(timeout=PATIENCE_SECONDS)
                assert meter.returncode == -signal.SIGKILL
        for _ in range(kills):
            with metered.start() as meter:
                assert meter.stderr is not None
                if chance.random() < 0.8:
                    assert "following" in meter.stderr.readline()
                time.sleep(chance.uniform(0, 0.8))
                meter.kill()
    with metered.start() as meter:
        finish(metered, meter)

    used, wanted = metered.used(), metered.lines.used
    assert sum(used.requests.values()) == sum(wanted.requests.values()) > 1_000
    assert used == wanted


def test_a_second_meter_of_a_broker_ends_the_first_and_all_is_counted_once(metered: Metered) -> None:
    with metered.written(), metered.start() as first:
        assert first.stderr is not None
        assert "following" in first.stderr.readline()
        with metered.start() as second:
            _, said = first.communicate(timeout=PATIENCE_SECONDS)
            assert first.returncode == 4, said
            assert "another meter with --broker-id" in said
            second.terminate()
            assert second.wait(PATIENCE_SECONDS) == 0
    with metered.start() as meter:
        finish(metered, meter)

    assert metered.used() == metered.lines.used
