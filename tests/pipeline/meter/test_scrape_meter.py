"""The meter that scrapes: targets of all kinds, and what gets to the usage topic, of a real broker too."""

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import UsageError
from pipeline.meter import scrape_meter
from pipeline.meter.scrape_meter import Address, ExporterSource, ScrapeMeter, addresses, with_brokers
from pipeline.meter.usage_topic import UsagePublisher
from tests.fakes.clock import ManualClock
from tests.fakes.usage_topic import MemoryUsageTopic, UsageBroker
from tests.log_messages import messages_of
from tests.pipeline.cli.running import kquota
from tests.pipeline.meter.metric_pages import Answer, Exporter, endless, exporter, page, silent
from tests.pipeline.meter.reported_broker import all_events, make_topics
from tests.waiting import PATIENCE_SECONDS, wait_until

LOGGER = "pipeline.meter.scrape_meter"
START_MS = 1_732_000_000_000


def produce(rate: object, user: str = "alice", client_id: str = "etl") -> str:
    return f'kafka_server_produce_byte_rate{{user="{user}",client_id="{client_id}"}} {rate}'


class Run:
    """A meter on a clock that is moved by hand, with real connections to the exporters of brokers 1, 2, …"""

    hanging = ""
    """A target that does not answer."""

    def __init__(self, *urls: str) -> None:
        self.broker, self.clock = UsageBroker(), ManualClock(START_MS)
        publisher = UsagePublisher(MemoryUsageTopic(self.broker), "topic")
        publisher.take_over()
        asked = [ExporterSource(str(number), url) for number, url in enumerate(urls, 1)]
        self.meter = ScrapeMeter(asked, publisher, self.clock, lambda _: True, seed=1)

    def rounds(self, count: int, seconds: float = 3.0) -> None:
        """In each every target is scraped that answers, and what it shows is stored."""
        for _ in range(count):
            asked = [target.counts.scrapes for target in self.meter.targets]
            self.clock.advance(round(1000 * seconds))
            wait_until(partial(self._has_answers, asked), "answers")
            self.clock.advance(scrape_meter.STORE_EVERY_MS)
            self.meter.step()

    def _has_answers(self, asked: list[int]) -> bool:
        self.meter.step()
        return all(
            target.counts.scrapes > before or target.url == self.hanging
            for target, before in zip(self.meter.targets, asked, strict=True)
        )

    def sums(self) -> dict[tuple[str, str, str], int]:
        """Produced bytes by broker, user and client-id."""
        sums: Counter[tuple[str, str, str]] = Counter()
        for event in self.broker.events():
            sums[event["broker_id"], event["user"], event["client_id"]] += event["produced_bytes"]
        return sums

    def has_failed(self) -> bool:
        """Whether the first target has not answered."""
        self.meter.step()
        return self.meter.targets[0].counts.failed > 0


@pytest.fixture
def good() -> Iterator[Exporter]:
    with exporter(page(f"{produce(1000)}\n".encode())) as served:
        yield served


def test_usage_of_each_client_and_second_is_an_event(good: Exporter) -> None:
    good.show(
        produce(1000),
        'kafka_server_fetch_byte_rate{user="alice",client_id="etl"} 500',
        'kafka_server_request_request_time{user="alice",client_id="etl"} 10',
        produce(0, "bob"),
    )
    run = Run(good.url)
    run.rounds(5)
    events = run.broker.events()
    assert {(event["user"], event["broker_id"], event["request_count"]) for event in events} == {("alice", "1", 0)}
    assert all(event["event_time_ms"] % 1000 == 999 for event in events)
    assert len({event["event_time_ms"] for event in events}) == len(events) >= 12
    for event in events:
        assert event["fetched_bytes"] == pytest.approx(event["produced_bytes"] / 2, abs=1)
        assert event["io_time_ns"] == pytest.approx(event["produced_bytes"] * 1e5, rel=1e-2)


NO_SENSORS = "it shows no quota sensors ("
BAD = [
    pytest.param(page(b"<!doctype html><title>Sign in</title>"), "it answered HTML", id="HTML"),
    pytest.param(page(b"no", status=500), "it answered with status 500", id="500"),
    pytest.param(page(b"", status=302), "it answered with status 302", id="moved"),
    pytest.param(page(f"{produce(9e9)}\n".encode(), length=10_000), "its page was cut off", id="cut off"),
    pytest.param(endless, "its page has more than 1 MiB: ", id="100 MB"),
    pytest.param(page(b""), NO_SENSORS, id="nothing"),
    pytest.param(page(b"kafka_server_fetch_user_a_client_id_b_byte_rate 5.0\n"), "none of its quota", id="no labels"),
    pytest.param(page(b"\x00\xff" * 1000), NO_SENSORS, id="junk"),
]


@pytest.mark.parametrize(("answer", "reason"), BAD)
def test_a_bad_target_is_one_line_and_the_others_are_metered(
    answer: Answer, reason: str, good: Exporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scrape_meter, "MAX_PAGE_BYTES", 1024 * 1024)
    with exporter(answer) as bad, caplog.at_level(logging.INFO):
        run = Run(bad.url, good.url)
        run.rounds(3)
        assert set(run.sums()) == {("2", "alice", "etl")}
        (told,) = messages_of(caplog, LOGGER)
        assert told.startswith(f"broker 1 at {bad.url} is not metered: {reason}")
        bad.show('kafka_server_quota_byte_rate{resource="Produce",user="a, client-id=b"} 7000', produce(1000, "bob"))
        run.rounds(3)
    assert set(run.sums()) == {("1", "bob", "etl"), ("2", "alice", "etl")}
    assert run.meter.targets[0].counts.refused >= 3


def test_a_silent_target_is_ended_and_the_others_are_metered(good: Exporter, caplog: pytest.LogCaptureFixture) -> None:
    with silent() as url:
        run = Run(url, good.url)
        run.hanging = url
        run.rounds(6)
        wait_until(run.has_failed, "the end of the scrape")
    assert set(run.sums()) == {("2", "alice", "etl")}
    assert messages_of(caplog, LOGGER) == [f"broker 1 at {url} is not metered: no answer within 10 s"]


@pytest.mark.parametrize(
    ("started", "is_one"), [(("1.7E9", "1.7E9"), True), (("1.7E9", "1.71E9"), False), (("", ""), False)]
)
def test_two_targets_that_are_one_broker_are_charged_once(started: tuple[str, str], is_one: bool) -> None:
    with exporter(page(b"")) as first, exporter(page(b"")) as second:
        for served, at in zip((first, second), started, strict=True):
            served.show(produce(1000), f"process_start_time_seconds {at}" if at else "")
        run = Run(first.url, second.url)
        run.rounds(3)
    assert {broker for broker, _, _ in run.sums()} == ({"1"} if is_one else {"1", "2"})
    assert ("would be charged twice" in run.meter.targets[1].trouble) == is_one


def test_events_wait_while_the_topic_is_away_and_are_stored_once(good: Exporter) -> None:
    steady, away = Run(good.url), Run(good.url)
    for number in range(12):
        away.broker.is_away = 3 <= number < 8
        for run in (steady, away):
            run.rounds(1)
    for run in (steady, away):
        run.rounds(1, seconds=30)
    assert sum(away.sums().values()) == pytest.approx(sum(steady.sums().values()), abs=1)
    times = [event["event_time_ms"] for event in away.broker.events()]
    assert len(set(times)) == len(times)
    assert away.meter.run(), "a clean stop stores what is charged"
    assert away.meter.unstored_events == 0


USAGE, MARKER = "usage-of-scrapes", "marker-of-scrapes"


@pytest.mark.broker
def test_it_stores_what_it_scrapes_until_it_is_stopped(
    broker: EmbeddedBroker, good: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(broker, USAGE, MARKER)
    monkeypatch.setenv("KQUOTA_KAFKA__USAGE_TOPIC", USAGE)
    monkeypatch.setenv("KQUOTA_KAFKA__MARKER_TOPIC", MARKER)
    command = [sys.executable, "-m", "pipeline.cli.main", "meter", "prometheus"]
    command += ["--bootstrap-server", broker.bootstrap_servers, "--targets", f"7={good.url}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: bool(all_events(broker, USAGE)), "events")
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
    events = all_events(broker, USAGE)
    assert {(event["user"], event["client_id"], event["broker_id"]) for event in events} == {("alice", "etl", "7")}


BROKERS = [{"broker_id": 1, "host": "B1"}, {"broker_id": 2, "host": "b2"}, {"broker_id": 3, "host": "b2"}]


def test_the_broker_of_a_target_is_named_or_the_one_on_its_host() -> None:
    given = addresses(["http://b1:9404/m,3=http://b2:9405/m", "7=https://b3/x?a=1"])
    assert given[1:] == [Address("3", "http://b2:9405/m"), Address("7", "https://b3/x?a=1")]
    found = with_brokers(given[:2], BROKERS)
    assert found == [ExporterSource("1", "http://b1:9404/m"), ExporterSource("3", "http://b2:9405/m")]


def test_two_exporters_on_one_host_can_be_given_as_the_fix_says() -> None:
    with pytest.raises(UsageError) as refused:
        with_brokers(addresses(["http://b1:1/m,http://b1:2/m"]), BROKERS)
    _, _, fixed = refused.value.fix.partition("--targets ")
    assert [one.broker_id for one in with_brokers(addresses([fixed]), BROKERS)] == ["1", "2"]


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


@pytest.mark.parametrize("options", [(), ("--targets", "b1:9404"), ("--targets", "http://b1/m")])
def test_the_command_refuses_what_cannot_work_before_it_connects(options: tuple[str, ...]) -> None:
    assert kquota("meter", "prometheus", *options).exit_code == 2
