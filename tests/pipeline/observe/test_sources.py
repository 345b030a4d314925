"""Usage of metrics pages (real connections) and of the usage topic (a real broker); quotas of a job's tables."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.clock import SystemClock, wall_ms
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import PipelineError
from pipeline.meter.scrape_meter import ExporterSource
from pipeline.observe.observation import Observation
from pipeline.observe.sources import ScrapedSource, SourceState, TopicSource, lines_of_job, managed_by
from pipeline.tables.broker_quotas import APPLIED, BrokerQuotasTable
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.table import QuotaTable, local_audit
from quota.broker_levels.entries import METERED, EntryKey
from tests.fakes.clock import ManualClock
from tests.pipeline.dashboard.shop import quota
from tests.pipeline.meter.metric_pages import Exporter, exporter, page
from tests.pipeline.observe.test_findings import ALICE, BOUND
from tests.pipeline.tables.test_broker_quotas import change
from tests.waiting import PATIENCE_SECONDS, wait_until

RATE = BOUND * 9 // 10


def line(rate: int) -> bytes:
    return f'kafka_server_produce_byte_rate{{user="alice",client_id=""}} {rate}\n'.encode()


@pytest.fixture
def brokers() -> Iterator[tuple[Exporter, Exporter]]:
    with exporter(page(line(RATE))) as one, exporter(page(line(RATE + 1))) as two:
        yield one, two


class Watched:
    """A source and what it has given."""

    def __init__(self, *brokers: Exporter) -> None:
        self.clock = ManualClock()
        asked = [ExporterSource(str(number), one.url) for number, one in enumerate(brokers, 1)]
        self.brokers = brokers
        self.source = ScrapedSource(asked, self.clock)
        self.seen = Observation(ALICE, self.source.lag_ms, self.source.is_exact)

    def round(self, seconds: float = 3.0) -> None:
        """Every target is asked once more, and its usage is taken in."""
        before = [one.asked for one in self.brokers]
        self.clock.advance(round(seconds * 1000))
        self.seen.add(self.source.take())

        def is_answered() -> bool:
            self.seen.add(self.source.take())
            asked = [one.asked > then for one, then in zip(self.brokers, before, strict=True)]
            return all(asked) and not self.source._meter.is_asking

        wait_until(is_answered, "answers")
        self.clock.advance(1_000)
        self.seen.add(self.source.take())
        self.seen.settle(self.clock.wall_ms)


def test_a_broker_that_went_away_is_named_and_the_other_goes_on(brokers: tuple[Exporter, Exporter]) -> None:
    watched = Watched(*brokers)
    with closing(watched.source):
        for _ in range(5):
            watched.round()
        brokers[1].answer = page(b"", status=503)
        for _ in range(8):
            watched.round()
        one, two = watched.source.states()
        assert (one.trouble, two.trouble) == ("", "it answered with status 503")
        assert two.name == f"broker 2 at {brokers[1].url}"
        (found,) = watched.seen.lines(watched.clock.wall_ms)
        assert set(found.by_broker) == {"1"}


def test_pages_without_a_sensor_are_known_as_such(brokers: tuple[Exporter, Exporter]) -> None:
    watched = Watched(*brokers)
    with closing(watched.source):
        assert not watched.source.has_no_sensors
        for one in brokers:
            one.answer = page(b"jvm_threads 4\n")
        watched.round()
        assert watched.source.has_no_sensors
        brokers[0].answer = page(line(RATE))
        watched.round()
        assert not watched.source.has_no_sensors


def test_two_scrapes_are_enough_for_a_first_figure(brokers: tuple[Exporter, Exporter]) -> None:
    watched = Watched(*brokers)
    with closing(watched.source):
        watched.round()
        watched.round(2.6)
        (found,) = watched.seen.lines(watched.clock.wall_ms)
        assert found.used == pytest.approx(1.8, rel=0.1)
        assert set(found.by_broker) == {"1", "2"}
        assert {state.trouble for state in watched.source.states()} == {""}
        assert not watched.source.is_exact
        assert sum(watched.source.take()["request_count"].to_pylist()) == 0, "what scrapes do not know is not made up"


def event(broker_id: str, produced_bytes: int) -> dict[str, Any]:
    who = {"user": "alice", "client_id": "etl", "broker_id": broker_id}
    return {"event_time_ms": wall_ms(), **who, "produced_bytes": produced_bytes}


@pytest.mark.broker
def test_events_of_a_moment_ago_and_of_now_are_read_and_junk_is_left_out(broker: EmbeddedBroker) -> None:
    access, topic = ClusterAccess(broker.bootstrap_servers), f"observed.{time.time_ns()}"
    with pytest.raises(PipelineError, match=f"topic '{topic}' does not exist"):
        TopicSource(access, topic, [1], SystemClock())
    admin: Any = KafkaAdminClient(bootstrap_servers=access.bootstrap_servers)
    producer: Any = KafkaProducer(bootstrap_servers=access.bootstrap_servers)
    found: list[pa.Table] = []
    with closing(admin), closing(producer):
        settings = {"message.timestamp.type": "LogAppendTime"}
        create_topics(admin, [TopicSpec(topic, "usage", 2, "any", settings, settings)])
        for place, value in enumerate((json.dumps(event("1", 1)).encode(), b"junk")):
            producer.send(topic, value, partition=place).get(PATIENCE_SECONDS)
        with closing(TopicSource(access, topic, [1, 2], SystemClock())) as source:
            assert source.states()[0] == SourceState("broker 1", f"no usage on {topic} yet")
            producer.send(topic, json.dumps([event("1", 10), event("", 100)]).encode()).get(PATIENCE_SECONDS)

            def sums() -> int:
                found.append(source.take())
                return sum(sum(part["produced_bytes"].to_pylist()) for part in found)

            wait_until(lambda: sums() == 111, "all events")
            troubles = {state.name: state.trouble for state in source.states()}
            assert troubles == {"broker 1": "", "broker 2": f"no usage on {topic} yet", "broker without an id": ""}
            assert source.is_exact


def test_a_sync_s_levels_and_metering_are_told_apart_from_quotas_of_others(tmp_path: Path) -> None:
    root = str(tmp_path)
    create_missing(root, [TABLES[name] for name in ("quotas", "broker_quotas", "batches")])
    QuotaTable(root).commit(lambda _: [quota("alice", "", producer_byte_rate=4e6)], local_audit("test"))
    written = BrokerQuotasTable(root, "here")
    written.take_over()
    written.append([(change("gone"), APPLIED), (change("alice"), APPLIED)], at_ms=1)
    gone, alice = (change(user).key for user in ("gone", "alice"))
    metering, foreign = (EntryKey(user, "", "consumer_byte_rate") for user in ("<default>", "bob"))
    held = {gone: 5.0, alice: 5.0, metering: METERED, foreign: 7e6}
    found = managed_by(QuotaTable(root), "here", held)
    assert [(one.user, one.bounds) for one in found.quotas.quotas] == [("alice", (4e6, None, None))]
    assert found.foreign == [foreign]
    assert managed_by(QuotaTable(root), "elsewhere", held).foreign == [gone, foreign], "another cluster's sync wrote it"
    assert lines_of_job(root, 0) is None, "there are no rates"
