"""The meter that scrapes: targets of all kinds, and what gets to the usage topic, of a real broker too."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.command_line import command_text
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import UsageError
from pipeline.meter import scrape_meter
from pipeline.meter.scrape_meter import ACCURACY, Address, ExporterSource, ScrapeMeter, addresses, with_brokers
from pipeline.meter.scrapes import QUOTA_PATTERNS
from pipeline.meter.usage_topic import UsagePublisher
from tests.fakes.clock import ManualClock
from tests.fakes.usage_topic import MemoryUsageTopic, UsageBroker
from tests.log_messages import messages_of
from tests.pipeline.cli.running import kquota
from tests.pipeline.meter.metric_pages import Exporter, endless, exporter, page, silent
from tests.pipeline.meter.reported_broker import all_events, events_of, produced_bytes
from tests.waiting import PATIENCE_SECONDS, wait_until

LOGGER = "pipeline.meter.scrape_meter"
START_MS = 1_732_000_000_000
NO_SENSORS = f"it shows no quota sensors ({command_text('meter', 'status', about='cluster')})"
NO_LABELS = (
    "none of its quota lines can be read (1), the first is kafka_server_fetch_user_a_client_id_b_byte_rate: "
    "its exporter makes user and client-id parts of the metric's name. "
    "Fix: put the rules of deploy/prometheus/jmx-quotas.yml before its other rules"
)
HTML = b"<!doctype html><title>Sign in</title>"


def produce(rate: object, user: str = "alice", client_id: str = "etl") -> str:
    return f'kafka_server_produce_byte_rate{{user="{user}",client_id="{client_id}"}} {rate}'


class Run:
    """A meter on a clock that is moved by hand, with real connections."""

    def __init__(self, *targets: tuple[str, str], broker: UsageBroker | None = None) -> None:
        self.broker = broker or UsageBroker()
        self.clock = ManualClock(START_MS)
        self.topic = MemoryUsageTopic(self.broker)
        self.publisher = UsagePublisher(self.topic, "topic")
        self.publisher.take_over()
        asked = [ExporterSource(*target) for target in targets]
        self.meter = ScrapeMeter(asked, self.publisher, self.clock, lambda _: True, seed=1)

    def round(self, seconds: float = 3.0) -> None:
        """Every target is scraped that answers, and what it shows is stored."""
        asked = [target.counts.scrapes for target in self.meter.targets]
        self.clock.advance(round(1000 * seconds))
        self.meter.step()

        def answered() -> bool:
            self.meter.step()
            return all(
                target.counts.scrapes > before or target.url in self.hanging
                for target, before in zip(self.meter.targets, asked, strict=True)
            )

        wait_until(answered, "answers")
        self.clock.advance(scrape_meter.STORE_EVERY_MS)
        self.meter.step()

    def has_failed(self) -> bool:
        self.meter.step()
        return self.meter.targets[0].counts.failed > 0

    hanging: frozenset[str] = frozenset()

    def sums(self) -> dict[tuple[str, str, str], int]:
        """Produced bytes by broker, user and client-id."""
        return produced_bytes(message.value for message in self.broker.messages)


@pytest.fixture
def good() -> Iterator[Exporter]:
    with exporter(page(f"{produce(1000)}\n".encode())) as served:
        yield served


def test_usage_of_each_client_and_second_is_an_event() -> None:
    with exporter(page(b"")) as served:
        served.show(
            produce(1000),
            'kafka_server_fetch_byte_rate{user="alice",client_id="etl"} 500',
            'kafka_server_request_request_time{user="alice",client_id="etl"} 10',
            produce(0, "bob"),
        )
        run = Run(("3", served.url))
        for _ in range(5):
            run.round()
    events = [event for message in run.broker.messages for event in events_of(message.value)]
    assert {(event["user"], event["broker_id"], event["request_count"]) for event in events} == {("alice", "3", 0)}
    assert all(event["event_time_ms"] % 1000 == 999 for event in events)
    assert len({event["event_time_ms"] for event in events}) == len(events) >= 12
    for event in events:
        assert event["fetched_bytes"] == pytest.approx(event["produced_bytes"] / 2, abs=1)
        assert event["io_time_ns"] == pytest.approx(event["produced_bytes"] * 1e5, rel=1e-2)


BAD = [
    pytest.param(page(HTML), "it answered HTML", id="HTML"),
    pytest.param(page(b"no", status=500), "it answered with status 500", id="500"),
    pytest.param(page(b"", status=302), "it answered with status 302", id="moved"),
    pytest.param(page(f"{produce(9e9)}\n".encode(), length=10_000), "its page was cut off", id="cut off"),
    pytest.param(endless, "its page has more than 1 MiB: let it show kafka.server:type=… only", id="100 MB"),
    pytest.param(page(b""), NO_SENSORS, id="nothing"),
    pytest.param(page(b"kafka_server_fetch_user_a_client_id_b_byte_rate 5.0\n"), NO_LABELS, id="no labels"),
    pytest.param(page(b"kafka_server_Request_exempt_request_time 5.0\n"), NO_SENSORS, id="no client"),
    pytest.param(page(b"\x00\xff" * 1000), NO_SENSORS, id="junk"),
]


@pytest.mark.parametrize(("answer", "reason"), BAD)
def test_a_bad_target_is_one_line_and_the_others_are_metered(
    answer: object, reason: str, good: Exporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scrape_meter, "MAX_PAGE_BYTES", 1024 * 1024)
    with exporter(answer) as bad, caplog.at_level(logging.INFO):  # type: ignore[arg-type]
        run = Run(("1", bad.url), ("2", good.url))
        for _ in range(4):
            run.round()
    assert set(run.sums()) == {("2", "alice", "etl")}
    assert messages_of(caplog, LOGGER) == [f"broker 1 at {bad.url} is not metered: {reason}"]


def test_quota_lines_that_cannot_be_read_are_counted_and_the_rule_to_mend_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    several = 'kafka_server_quota_byte_rate{resource="Produce",user="alice, client-id=etl"} 7000'
    with exporter(page(b"")) as served, caplog.at_level(logging.INFO):
        served.show(several)
        run = Run(("1", served.url))
        run.round()
        served.show(several, produce(1000, "bob"))
        for _ in range(3):
            run.round()
        served.show(produce(1000, "bob"))
        run.round()
    assert run.meter.targets[0].counts.refused == 4
    assert set(run.sums()) == {("1", "bob", "etl")}
    first, again = messages_of(caplog, LOGGER)
    assert first.startswith(f"broker 1 at {served.url} is not metered: none of its quota lines can be read (1), ")
    assert QUOTA_PATTERNS["user",] in first
    assert again.startswith(f"broker 1 at {served.url} is metered again")


def test_a_target_that_never_answers_is_ended_and_the_others_are_metered(
    good: Exporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with silent() as url:
        run = Run(("1", url), ("2", good.url))
        run.hanging = frozenset({url})
        for _ in range(6):
            run.round()
        wait_until(run.has_failed, "the end of the scrape")
    assert set(run.sums()) == {("2", "alice", "etl")}
    assert messages_of(caplog, LOGGER) == [f"broker 1 at {url} is not metered: no answer within 10 s"]


BROKERS = [{"broker_id": 1, "host": "B1"}, {"broker_id": 2, "host": "b2"}, {"broker_id": 3, "host": "b2"}]


def test_two_exporters_on_one_host_can_be_given_as_the_fix_says() -> None:
    with pytest.raises(UsageError) as refused:
        with_brokers(addresses(["http://b1:1/m,http://b1:2/m"]), BROKERS)
    _, _, fixed = refused.value.fix.partition("--targets ")
    assert [one.broker_id for one in with_brokers(addresses([fixed]), BROKERS)] == ["1", "2"]
    with pytest.raises(UsageError, match="Fix: give each broker once"):
        with_brokers(addresses(["http://b1:1/m,http://b1:2/m"]), BROKERS[:1])


LINE = b'kafka_server_produce_byte_rate{user="alice",client_id="etl"} 1000\n'
USAGE, MARKER = "usage-of-scrapes", "marker-of-scrapes"


@pytest.mark.broker
def test_it_stores_what_it_scrapes_until_it_is_stopped(broker: EmbeddedBroker, tmp_path: Path) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    create_topics(admin, [TopicSpec(name, "demo", 1, "any", {}, {}) for name in (USAGE, MARKER)])
    admin.close()
    topics = {"KQUOTA_KAFKA__USAGE_TOPIC": USAGE, "KQUOTA_KAFKA__MARKER_TOPIC": MARKER}
    address = ("--bootstrap-server", broker.bootstrap_servers)
    told = tmp_path / "log"
    with exporter(page(LINE)) as served, told.open("w") as log:
        command = [sys.executable, "-m", "pipeline.cli.main", "meter", "prometheus", *address]
        with subprocess.Popen(
            [*command, "--targets", f"7={served.url}"], env={**os.environ, **topics}, stderr=log
        ) as process:
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


@pytest.mark.parametrize(
    ("started", "is_one"), [(("1.7E9", "1.7E9"), True), (("1.7E9", "1.71E9"), False), (("", ""), False)]
)
def test_two_targets_that_are_one_broker_are_charged_once(
    started: tuple[str, str], is_one: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with exporter(page(b"")) as first, exporter(page(b"")) as second:
        for served, at in zip((first, second), started, strict=True):
            served.show(produce(1000), f"process_start_time_seconds {at}" if at else "")
        run = Run(("1", first.url), ("2", second.url))
        for _ in range(4):
            run.round()
    assert set(run.sums()) == {(broker, "alice", "etl") for broker in (("1",) if is_one else ("1", "2"))}
    told = f"it shows the broker of {first.url}, whose usage would be charged twice"
    expected = [f"broker 2 at {second.url} is not metered: {told}"]
    assert messages_of(caplog, LOGGER) == (expected if is_one else [])


def test_the_broker_of_a_target_is_named_or_the_one_on_its_host() -> None:
    given = addresses(["http://b1:9404/m,3=http://b2:9405/m", "7=https://b3/x?a=1"])
    assert given[1:] == [Address("3", "http://b2:9405/m"), Address("7", "https://b3/x?a=1")]
    found = with_brokers(given[:2], BROKERS)
    assert found == [ExporterSource("1", "http://b1:9404/m"), ExporterSource("3", "http://b2:9405/m")]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("b1:9404", "target 'b1:9404' is not an address of metrics"),
        ("ftp://b1/", "is not an address of metrics"),
        ("", "target '' is not an address of metrics"),
        ("http://b1/m,http://b1/m", "two targets have the same address: http://b1/m"),
        ("1=http://b1/m,1=http://b2/m", "two targets have the same broker: 1"),
        ("http://b2:9404/m", "which broker http://b2:9404/m shows is not known: 2 brokers have the host b2"),
        ("http://b9:9404/m", "which broker http://b9:9404/m shows is not known: 0 brokers have the host b9"),
        ("http://b1:9404/m,1=http://x/m", "two targets are broker 1: http://b1:9404/m, http://x/m"),
    ],
)
def test_targets_that_cannot_be_right_are_refused(given: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        with_brokers(addresses([given]), BROKERS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "give the metrics of every broker in --targets"),
        (("--targets", "b1:9404"), "Fix: write http://HOST:PORT/metrics"),
        (("--targets", "http://b1/m"), "'kafka.bootstrap_servers', is not set"),
    ],
)
def test_the_command_refuses_what_cannot_work_before_it_connects(options: tuple[str, ...], reason: str) -> None:
    answer = kquota("meter", "prometheus", *options)
    assert answer.exit_code == 2
    assert reason in " ".join(answer.stderr.replace("│", " ").split())


def test_events_wait_while_the_topic_is_away_and_are_stored_once(good: Exporter) -> None:
    steady, away = Run(("1", good.url)), Run(("1", good.url))
    for number in range(12):
        away.broker.is_away = 3 <= number < 8
        for run in (steady, away):
            run.round()
    away.round(30)
    steady.round(30)
    assert sum(away.sums().values()) == pytest.approx(sum(steady.sums().values()), abs=1)
    times = [event["event_time_ms"] for event in away.broker.events()]
    assert len(set(times)) == len(times)
    assert away.meter.run(), "a clean stop stores what is charged"
    assert away.meter.unstored_events == 0
