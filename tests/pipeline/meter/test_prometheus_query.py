"""`kquota meter prometheus --query`: usage of what a Prometheus has scraped."""

import json
import logging
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipeline.clock import Moment, SystemClock
from pipeline.errors import UsageError
from pipeline.meter.scrape_meter import ScrapeMeter
from pipeline.meter.scrape_sources import PrometheusSource, ScrapeFailed
from pipeline.meter.scrapes import NameMap
from pipeline.meter.usage_topic import UsagePublisher
from tests.deploy.running_prometheus import running_prometheus
from tests.fakes.clock import ManualClock
from tests.fakes.usage_topic import MemoryUsageTopic, UsageBroker
from tests.log_messages import messages_of
from tests.pipeline.meter.metric_pages import Exporter, exported, exporter, page
from tests.pipeline.meter.reported_broker import produced_bytes
from tests.waiting import wait_until

LOGGER = "pipeline.meter.scrape_meter"
START_MS = 1_732_000_000_000
BROKERS = [{"broker_id": 1, "host": "B1"}, {"broker_id": 2, "host": "b2"}]
NEVER = Moment(0, 0)


class Metered:
    """A meter of a Prometheus, and what it has stored."""

    def __init__(self, source: PrometheusSource, clock: Any) -> None:
        self.clock, self.broker = clock, UsageBroker()
        publisher = UsagePublisher(MemoryUsageTopic(self.broker), "topic")
        publisher.take_over()
        self.meter = ScrapeMeter([source], NameMap(), publisher, clock, lambda _: True, seed=1)

    def round(self) -> None:
        """One answer more."""
        self.clock.advance(5_000)
        before = self.meter.targets[0].counts.scrapes

        def is_answered() -> bool:
            self.meter.step()
            return self.meter.targets[0].counts.scrapes > before

        wait_until(is_answered, "an answer")
        self.meter.step()

    def sums(self) -> dict[tuple[str, str, str], int]:
        """Produced bytes by broker, user and client-id."""
        return produced_bytes(message.value for message in self.broker.messages)


NO_SAMPLE = "no sample of its quota sensors in the last 60 s"
ODD = 'a,"b"\\\n{x="y"} 5'


def test_a_real_prometheus_gives_the_usage_of_every_broker_and_name(tmp_path: Path) -> None:
    with ExitStack() as stack:
        served = [stack.enter_context(exporter(page(b""))) for _ in range(3)]
        for number, (one, form) in enumerate(zip(served, ("rules", "own", "own"), strict=True), 1):
            one.answer = page(exported(form, "Produce", "byte-rate", "CN=a b", ODD, 1000.0 * number))
        prometheus = stack.enter_context(running_prometheus(tmp_path, scraping(*served)))
        source = PrometheusSource(f"{prometheus.address}?cluster=prod", NameMap.of(["node=broker_id"]), BROKERS)
        metered = Metered(source, SystemClock())

        def is_metered() -> bool:
            metered.meter.step()
            time.sleep(0.02)
            return len(metered.sums()) == 2 and min(metered.sums().values()) > 3_000

        wait_until(is_metered, "usage of both brokers")
        assert set(metered.sums()) == {("1", "CN=a b", ODD), ("2", "CN=a b", ODD)}
        # The same seconds of both: rates are 1 to 2.
        per_second: dict[str, dict[int, int]] = {"1": {}, "2": {}}
        for event in metered.broker.events():
            per_second[event["broker_id"]][event["event_time_ms"]] = event["produced_bytes"]
        both = sorted(set(per_second["1"]) & set(per_second["2"]))[1:-1]
        assert {round(per_second["2"][at] / per_second["1"][at]) for at in both} <= {1, 2, 3}
        served[1].answer = page(b"", status=503)
        wait_until(lambda: not has_sample(prometheus, "2"), "the end of the series")
        assert has_sample(prometheus, "1")


def scraping(first: Exporter, second: Exporter, other: Exporter) -> str:
    """Two brokers of the cluster `prod`, named by a label, and one of another cluster."""
    targets = [
        {"targets": [one.url.split("/")[2]], "labels": {"node": node, "cluster": cluster}}
        for one, node, cluster in ((first, "1", "prod"), (second, "2", "prod"), (other, "1", "dev"))
    ]
    job = {"job_name": "kafka", "static_configs": targets}
    return json.dumps({"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": [job]})


def has_sample(prometheus: Any, node: str) -> bool:
    return bool(prometheus.query(f'{{__name__=~"kafka_.*",node="{node}"}}'))


def answer_of(*series: tuple[dict[str, str], list[tuple[float, str]]]) -> bytes:
    result = [{"metric": labels, "values": values} for labels, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


def of(instance: str, user: str = "alice", **labels: str) -> dict[str, str]:
    return {"__name__": "kafka_server_produce_byte_rate", "instance": instance, "user": user, **labels}


def source(url: str = "http://p:9090", *pairs: str) -> PrometheusSource:
    return PrometheusSource(url, NameMap.of(pairs), BROKERS)


def test_samples_of_one_broker_and_instant_are_a_page_with_its_time() -> None:
    first, second = START_MS / 1000, START_MS / 1000 + 5.25
    found = source().read(
        answer_of(
            (of("b1:9404"), [(first, "1"), (second, "2")]),
            (of("B2", client_id="x"), [(first, "3")]),
            (of("b1:9404", "bob"), [(second, "4")]),
        ),
        NEVER,
    )
    shown = [(one.broker_id, one.at.wall_ms - START_MS, one.page.decode()) for one in found.pages]
    name = "kafka_server_produce_byte_rate"
    assert shown == [
        ("1", 0, f'{name}{{user="alice"}} 1\n'),
        ("2", 0, f'{name}{{user="alice",client_id="x"}} 3\n'),
        ("1", 5_250, f'{name}{{user="alice"}} 2\n{name}{{user="bob"}} 4\n'),
    ]
    assert found.left_out == ""


def test_a_page_is_of_jmx_exporter_if_it_was_scraped_with_it_and_other_programs_make_no_page() -> None:
    first, second = START_MS / 1000, START_MS / 1000 + 5.25
    own = {"__name__": "jmx_scrape_duration_seconds"}
    found = source().read(
        answer_of(
            ({**own, "instance": "b1:9404"}, [(first, "0.1")]),
            (of("b1:9404"), [(first, "1"), (second, "2")]),
            ({**own, "instance": "b1:7071"}, [(first + 1, "0.1")]),
            ({**own, "instance": "connect:9404"}, [(first, "0.1")]),
        ),
        NEVER,
    )
    name = 'kafka_server_produce_byte_rate{user="alice"}'
    pages = [one.page.decode() for one in found.pages]
    assert pages == [f"{name} 1\njmx_scrape_duration_seconds 1\n", f"{name} 2\n"]
    assert found.left_out == ""


@pytest.mark.parametrize(
    ("labels", "pairs", "first"),
    [
        (of("b9:9404"), (), "instance='b9:9404'"),
        ({"__name__": "kafka_server_produce_byte_rate"}, (), "instance=''"),
        (of("b1:9404", node="7"), ("node=broker_id",), "node='7'"),
    ],
)
def test_a_series_of_no_broker_is_left_out_and_named(
    labels: dict[str, str], pairs: tuple[str, ...], first: str
) -> None:
    found = source("http://p:9090", *pairs).read(answer_of((labels, [(1.0, "5")])), NEVER)
    assert found.pages == []
    assert found.left_out.startswith(f"series of no broker: 1, the first has {first}. Fix: --map LABEL=broker_id")


@pytest.mark.parametrize(
    ("seen_ago_ms", "range_ms"), [([], 60_000), ([20_000], 21_000), ([1_000], 15_000), ([-9_000], 15_000)]
)
def test_it_asks_for_what_was_not_seen_yet(seen_ago_ms: list[int], range_ms: int) -> None:
    url = source("http://p:9090/mimir/").address(START_MS, [START_MS - ago for ago in seen_ago_ms])
    assert url.startswith("http://p:9090/mimir/api/v1/query?query=%7B__name__%3D~%22%28%3Fi%3A")
    assert url.endswith(f"%5B{range_ms}ms%5D")


class Samples:
    """Answers with the samples of a client with 1 000 B/s, of broker 1, that were taken so far."""

    def __init__(self, clock: ManualClock, apart_ms: int) -> None:
        self._clock, self._apart_ms, self._from_ms = clock, apart_ms, clock.wall_ms - 60_000
        self.is_away = False

    def __call__(self, handler: Any) -> None:
        taken = range(self._from_ms, self._clock.wall_ms, self._apart_ms)[-12:]
        values = [(ms / 1000, "1000") for ms in taken]
        page(b"<html>" if self.is_away else answer_of((of("b1:9404"), values)))(handler)


def test_samples_that_are_far_apart_are_charged_a_window_each_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(START_MS)
    with exporter(Samples(clock, 30_000)) as served:
        metered = Metered(source(served.url.removesuffix("/metrics")), clock)
        for _ in range(25):
            metered.round()
    assert 30_000 <= metered.sums()["1", "alice", ""] <= 48_000
    told = [line for line in messages_of(caplog, LOGGER) if line.startswith("broker 1")]
    url = served.url.removesuffix("/metrics")
    assert told == [
        f"broker 1 at {url}: samples 30 s apart, of which 11 s are charged. Fix: scrape it every 5 s or less"
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"up 1\n",
        b'{"data":null}',
        b'{"data":{"resultType":"vector","result":[]}}',
        b'{"data":{"resultType":"matrix","result":[{"metric":{"instance":"b1","__name__":"x"},"values":[["a","5"]]}]}}',
        b"[" * 100_000,
    ],
    ids=range(5),
)
def test_what_is_no_answer_of_a_prometheus_fails_in_one_line(body: bytes) -> None:
    with pytest.raises(ScrapeFailed, match=r"^it did not answer as a Prometheus does$"):
        source().read(body, NEVER)


@pytest.mark.parametrize("url", ["p:9090", "ftp://p", "1=http://p:9090", "http://", "http://p:9090?a-b=c"])
def test_what_is_no_address_of_a_prometheus_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a Prometheus"):
        source(url)


@pytest.mark.parametrize("away", [range(0), range(4, 9)], ids=["always there", "away for a while"])
def test_samples_are_charged_once_and_those_before_the_start_not_at_all(
    away: range, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(START_MS)
    with exporter(samples := Samples(clock, 5_000)) as served, caplog.at_level(logging.INFO):
        metered = Metered(source(served.url.removesuffix("/metrics")), clock)
        for number in range(13):
            samples.is_away = number in away
            metered.round()
    # 60 s, less the window at the start, which may be from before.
    assert 48_000 <= metered.sums()["1", "alice", ""] <= 60_000
    told = [line.partition(" is ") for line in messages_of(caplog, LOGGER)]
    assert ("broker 2 at " + served.url.removesuffix("/metrics"), " is ", "not metered: " + NO_SAMPLE) in told
    again = "metered again; of what was not scraped meanwhile at most one window is charged"
    expected = ["not metered: it answered HTML", again] if away else []
    assert [why for who, _, why in told if who.startswith("broker 1")] == expected
