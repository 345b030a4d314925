"""Usage of metrics pages (real connections) and of the usage topic (a real broker); quotas of a job's tables."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaConnectionError

from pipeline.brokers.native import NativeEntity, NativeQuota
from pipeline.clock import SystemClock, wall_ms
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import ClusterUnreachable, PipelineError, Refused
from pipeline.meter.scrape_meter import ExporterSource
from pipeline.observe.observation import Observation
from pipeline.observe.sources import (
    InForce,
    ScrapedSource,
    SourceState,
    TopicSource,
    lines_of_job,
    newest_batch_in,
    quotas_in_force,
)
from pipeline.settings.model import Settings
from pipeline.tables.broker_quotas import APPLIED, BrokerQuotasTable
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.table import local_audit
from quota.broker_levels.entries import METERED, EntryKey
from schemas.arrow import conform
from schemas.columns import PipelineRow
from schemas.rows import BatchRow, RatesRow
from schemas.throttle_record import ThrottleEventRow
from tests.fakes.clock import ManualClock
from tests.pipeline.dashboard.shop import quota
from tests.pipeline.meter.metric_pages import Exporter, exporter, page
from tests.pipeline.observe.test_findings import ALICE, BOUND
from tests.pipeline.tables.factories import filled, job_writer, quota_table
from tests.pipeline.tables.test_broker_quotas import change
from tests.waiting import PATIENCE_SECONDS, wait_until

NOW_MS = 1_700_000_000_000
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


class Cluster:
    """A cluster's access, as far as it is asked for: its id and its topics."""

    bootstrap_servers = "b:9092"

    def __init__(self, name: str = "here", topics: Exception | Sequence[str] = ()) -> None:
        self._name, self._topics = name, topics

    @contextmanager
    def admin(self) -> Iterator[Self]:
        yield self

    def describe_cluster(self) -> dict[str, Any]:
        return {"cluster_id": self._name}

    def list_topics(self) -> Sequence[str]:
        if isinstance(self._topics, Exception):
            raise self._topics
        return self._topics


def stored(root: str, name: str, row: type[PipelineRow], *rows: dict[str, Any], **about: Any) -> None:
    """Store rows in a table of a job; what they do not name is null, 0 or "", or of the job."""
    whole = [dict.fromkeys(chain(*rows)) | filled(row) | one for one in rows]
    table = conform(pa.Table.from_pylist(whole), row, **({"cluster": "here", "query_id": "q"} | about))
    job_writer(root, name).replace(table, {"as_of_ms": str(NOW_MS)})


def managed_root(folder: Path, batches: int = 1) -> str:
    """Tables of a job that decided for the cluster `here`: alice has a quota, vip is exempt."""
    root = str(folder)
    rows = [quota("alice", "", producer_byte_rate=4e6), quota("vip", "", mode="exempt")]
    quota_table(root).commit(lambda _: rows, local_audit("test"))
    create_missing(root, [TABLES[name] for name in ("broker_quotas", "batches", "throttle_events")])
    if batches:
        numbers = dict.fromkeys(("evaluated_at_ms", "processed_at_ms", "quota_version"), 0)
        stored(root, "batches", BatchRow, numbers)
    return root


def in_force(root: str, cluster: Cluster, native: Sequence[NativeQuota] = (), *, is_given: bool = False) -> InForce:
    settings = Settings(tables={"root": root})
    batch = newest_batch_in(settings, is_given=is_given)
    return quotas_in_force(settings, cluster, native, batch, is_given=is_given)  # type: ignore[arg-type]


def native_quota(user: str, **values: float) -> NativeQuota:
    return NativeQuota(NativeEntity.of_row(user, ""), values)


def test_a_sync_s_levels_and_metering_are_told_apart_from_quotas_of_others(tmp_path: Path) -> None:
    root = managed_root(tmp_path)
    written = BrokerQuotasTable(root, "here")
    written.take_over()
    written.append([(change("gone"), APPLIED), (change("alice"), APPLIED)], at_ms=1)
    ours = [native_quota(user, producer_byte_rate=5.0) for user in ("gone", "alice")]
    others = [native_quota("<default>", consumer_byte_rate=METERED), native_quota("bob", consumer_byte_rate=7e6)]
    found = in_force(root, Cluster(), [*ours, *others])
    assert [(one.user, one.bounds) for one in found.quotas.quotas if one.mode == "enforce"] == [
        ("alice", (4e6, None, None))
    ]
    assert found.foreign == {EntryKey("bob", "", "consumer_byte_rate"): 7e6}
    assert (found.root, found.scope, lines_of_job(found, 0)) == (root, "cluster", None), "there are no rates"
    DeltaTable(table_uri(root, "quotas")).alter.set_table_properties({"kquota.scope": "broker"}, False)
    assert in_force(root, Cluster()).scope == "broker"


@pytest.mark.parametrize(
    ("batches", "cluster", "is_given", "note"),
    [
        (0, Cluster(), False, ""),
        (0, Cluster(topics=["quota.throttle.v1"]), False, "a job of kquota may manage this cluster"),
        (0, Cluster(), True, "no job has run on the tables"),
        (1, Cluster("elsewhere"), False, "are of the cluster here, and this one is elsewhere; they are left out"),
    ],
    ids=["imported", "a job's topic", "imported and asked for", "another cluster's job"],
)
def test_without_a_batch_of_this_cluster_the_quotas_are_the_brokers_own(
    batches: int, cluster: Cluster, is_given: bool, note: str, tmp_path: Path
) -> None:
    root = managed_root(tmp_path, batches)
    found = in_force(root, cluster, [native_quota("bob", consumer_byte_rate=7e6)], is_given=is_given)
    assert ([one.user for one in found.quotas.quotas], found.root) == (["bob"], None)
    assert note in found.note


def test_given_tables_of_another_cluster_and_a_lost_connection_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="and this one is elsewhere"):
        in_force(managed_root(tmp_path), Cluster("elsewhere"), is_given=True)
    with pytest.raises(ClusterUnreachable):
        in_force(str(tmp_path / "none"), Cluster(topics=KafkaConnectionError("gone")))


ROW: dict[str, Any] = {"broker_id": "", "quota_type": "producer_byte_rate", "window_ms": 11_000, "own_rate": 1.0}


def test_the_job_s_lines_have_holds_of_its_records_and_say_who_is_exempt(tmp_path: Path) -> None:
    root = managed_root(tmp_path)
    alice = {"sensor_user": "alice", "sensor_client_id": "", "mode": "enforce", "level": 3, "bound": 4e6, "clients": 1}
    rates = [{**ROW, **alice, "observed": 5e6}]
    rates += [{**ROW, "user": user, "client_id": "x", "observed": 1.0} for user in ("vip", "bob")]
    stored(root, "rates", RatesRow, *rates, as_of_ms=NOW_MS)
    record = {**rates[0], "user": "alice", "client_id": None, "evaluated_at_ms": NOW_MS}
    record |= {"action": "throttle", "cause": "violation", "decision_id": "d", "throttled_until_ms": NOW_MS + 9_000}
    stored(root, "throttle_events", ThrottleEventRow, {**record, "throttle_time_ms": 9_000})
    found = in_force(root, Cluster())
    lines = lines_of_job(found, NOW_MS) or []
    assert {(line.sensor.user, line.sensor.mode, line.held_until_ms) for line in lines} == {
        ("alice", "enforce", NOW_MS + 9_000),
        ("vip", "exempt", None),
        ("bob", None, None),
    }
    assert lines_of_job(found, NOW_MS + 10_001) is None, "they are not of now"
    for file in (tmp_path / "rates").rglob("*.parquet"):
        file.unlink()
    assert lines_of_job(found, NOW_MS) is None, "rates that cannot be read end no observation"
