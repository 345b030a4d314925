"""The meter from the log of a real broker to the usage topic, and over restarts."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from pipeline.clock import SystemClock
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.meter.errors import MeterStateNotWritten
from pipeline.meter.log_follower import LogFollower
from pipeline.meter.meter_state import read_state
from pipeline.meter.request_log import OwnTraffic, RequestLogParser
from pipeline.meter.request_meter import RequestMeter
from pipeline.meter.usage_producer import Batching, KafkaUsageSink, UsageProducer
from pipeline.meter.wire_size import produce_request_size
from tests.fakes.clock import ManualClock
from tests.pipeline.meter.metered_broker import alice, all_events
from tests.waiting import PATIENCE_SECONDS, wait_until

LINE = (
    '[2026-11-21 07:33:33,391] DEBUG Completed request:{{"isForwarded":false,"requestHeader":{{"requestApiVersion":1,'
    '"clientId":"c{0}","requestApiKeyName":"METADATA"}},"request":{{}},"response":{{}},"localTimeMs":1.0,'
    '"responseQueueTimeMs":0.0,"sendTimeMs":0.0,"principal":"User:alice","listener":"SASL"}}'
    " (kafka.request.logger)\n"
)


class Topic:
    """A topic in memory. It stores at once, or fails at once while it is away."""

    partition_count = 1

    def __init__(self) -> None:
        self.client_ids: list[str] = []
        self.is_away = False

    def send(self, partition: int, value: bytes, done: Callable[[Exception | None], None]) -> None:
        if self.is_away:
            done(ConnectionError("broker away"))
        else:
            self.client_ids += [event["client_id"] for event in json.loads(value)]
            done(None)


class Run:
    """One life of a meter, on a clock moved by hand."""

    def __init__(self, log: Path, topic: Topic, **batching: int) -> None:
        self.clock = ManualClock(0)
        self.follower = LogFollower(log, "beginning", read_state(log.with_name("state.json")))
        self.meter = RequestMeter(
            self.follower,
            RequestLogParser("1"),
            UsageProducer(topic, Batching(**batching), "topic"),
            log.with_name("state.json"),
            self.clock,
            self._wait,
        )

    def _wait(self, seconds: float) -> None:
        self.clock.advance(max(1, round(seconds * 1000)))

    def steps(self, count: int = 3) -> None:
        for _ in range(count):
            self.meter.step()
            self.clock.advance(100)

    def stop(self) -> bool:
        return self.meter.run(lambda: True)

    def die(self) -> None:
        self.follower.close()


def append(log: Path, *numbers: int) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.writelines(LINE.format(number) for number in numbers)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kafka-request.log"


def test_a_restart_after_a_clean_stop_repeats_nothing_and_misses_nothing(log: Path) -> None:
    topic = Topic()
    append(log, 1, 2)
    first = Run(log, topic)
    first.steps()
    assert first.stop()
    append(log, 3)

    second = Run(log, topic)
    second.steps()
    second.stop()

    assert topic.client_ids == ["c1", "c2", "c3"]


def test_events_not_stored_before_a_kill_are_sent_by_the_next_meter(log: Path) -> None:
    topic = Topic()
    append(log, 1)
    first = Run(log, topic)
    first.steps(12)
    topic.is_away = True
    append(log, 2)
    first.steps(12)
    first.die()

    topic.is_away = False
    second = Run(log, topic)
    second.steps()
    second.stop()

    assert topic.client_ids == ["c1", "c2"]


def test_a_stop_sends_the_events_that_are_still_collected(log: Path) -> None:
    topic = Topic()
    append(log, 1)
    run = Run(log, topic, linger_ms=60_000)
    run.steps(1)
    assert topic.client_ids == []

    assert run.stop()

    assert topic.client_ids == ["c1"]


def test_a_stop_gives_up_on_a_topic_that_stays_away_and_says_so(log: Path) -> None:
    topic = Topic()
    topic.is_away = True
    append(log, 1)
    run = Run(log, topic)
    run.steps(1)

    assert not run.stop()


def test_nothing_is_read_while_too_much_is_unsent(log: Path) -> None:
    topic = Topic()
    topic.is_away = True
    append(log, 1)
    run = Run(log, topic, max_unsent_bytes=50)
    run.steps(2)
    append(log, 2)
    before = run.follower.position

    run.steps(3)
    assert run.follower.position == before

    topic.is_away = False
    run.steps(20)
    run.stop()
    assert topic.client_ids == ["c1", "c2"]


def test_a_malformed_line_is_skipped_with_a_warning(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic = Topic()
    append(log, 1)
    with log.open("a", encoding="utf-8") as file:
        file.write("[2026-11-21 07:33:33,391] DEBUG Completed request:{broken\n")
    append(log, 2)
    run = Run(log, topic)

    run.steps()
    run.stop()

    assert topic.client_ids == ["c1", "c2"]
    assert "1 malformed line of" in caplog.text


def fill_the_disk(log: Path) -> Path:
    """Make every write of the state fail as on a full disk; returns what to remove to end that."""
    new = log.with_name("state.json.new")
    new.symlink_to("/dev/full")
    return new


def test_a_meter_whose_disk_fills_up_goes_on_says_so_and_saves_again_later(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    append(log, 1)
    run = Run(log, topic)
    full = fill_the_disk(log)
    run.steps(40)
    append(log, 2)
    run.steps(60)
    assert topic.client_ids == ["c1", "c2"]
    told = [line for line in caplog.messages if "must be writable" in line]
    assert [": a full disk. To mend it: free some space: df -h" in line for line in told] == [True]

    full.unlink()
    run.steps(15)
    run.die()
    second = Run(log, topic)
    second.steps()
    assert second.stop()
    assert topic.client_ids == ["c1", "c2"]


def test_a_meter_does_not_start_while_it_can_not_save_its_place(log: Path) -> None:
    topic = Topic()
    append(log, 1)
    run = Run(log, topic)
    fill_the_disk(log)

    with pytest.raises(MeterStateNotWritten, match="a full disk"):
        run.stop()

    assert topic.client_ids == []


@pytest.fixture
def usage_topic(broker: EmbeddedBroker) -> Iterator[str]:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    create_topics(admin, [TopicSpec(name, "demo", 2, "any", {}, {}) for name in ("metered.usage", "metered")])
    yield "metered.usage"
    admin.close()


@pytest.mark.broker
def test_all_that_alice_produces_and_fetches_is_on_the_usage_topic(
    broker: EmbeddedBroker, usage_topic: str, tmp_path: Path
) -> None:
    producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    follower = LogFollower(broker.request_log_path)
    usage = UsageProducer(KafkaUsageSink(producer, usage_topic, broker.bootstrap_servers), Batching(), usage_topic)
    meter = RequestMeter(
        follower,
        RequestLogParser("1", OwnTraffic(listeners=frozenset({"CONTROLLER", "PLAINTEXT"}))),
        usage,
        tmp_path / "state.json",
        SystemClock(),
        time.sleep,
    )
    began_ms = time.time_ns() // 1_000_000
    client: Any = KafkaProducer(**alice(broker, client_id="metered-app"))
    for number in range(50):
        client.send("metered", bytes(1000 + number), partition=0).get(PATIENCE_SECONDS)
    client.close()
    reader: Any = KafkaConsumer(**alice(broker, client_id="metered-reader", auto_offset_reset="earliest"))
    reader.assign([TopicPartition("metered", 0)])
    read = 0
    while read < 50:
        read += sum(len(records) for records in reader.poll(500).values())
    reader.close()
    # One record of n zero bytes is a batch of 61 + 9 + n: 6 bytes of record fields and 3 bytes of lengths.
    sizes = [61 + 9 + 1000 + number for number in range(50)]

    def is_metered() -> bool:
        events = metered_events(broker, usage_topic)
        fetched = sum(event.get("fetched_bytes", 0) for event in events)
        return sum("produced_bytes" in event for event in events) >= 50 and fetched > sum(sizes)

    stopping = Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(meter.run, stopping.is_set)
        try:
            wait_until(is_metered, "all that was produced and fetched to be on the usage topic")
        finally:
            stopping.set()
        assert running.result(PATIENCE_SECONDS)

    events = metered_events(broker, usage_topic)
    produced = [event["produced_bytes"] for event in events if "produced_bytes" in event]
    assert sum(produced) == sum(
        produce_request_size(
            9,
            "metered-app",
            {
                "transactionalId": None,
                "topicData": [{"name": "metered", "partitionData": [{"recordsSizeInBytes": size}]}],
            },
        )
        for size in sizes
    )
    assert len(produced) == 50
    fetched = sum(event.get("fetched_bytes", 0) for event in events)
    assert sum(sizes) < fetched < sum(sizes) * 1.1
    assert {event["user"] for event in events} == {"alice"}
    assert all(began_ms <= event["event_time_ms"] <= time.time_ns() // 1_000_000 for event in events)
    producer.close()


def metered_events(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    return [event for event in all_events(broker, topic) if event["client_id"].startswith("metered-")]
