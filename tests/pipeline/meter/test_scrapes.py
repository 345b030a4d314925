"""Pages of exporters: which lines are sensors, whose they are; and usage from their rates, against Kafka's own rule."""

import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.meter.scraped_rates import ScrapedUsage
from pipeline.meter.scrapes import FETCHED, PRODUCED, QUOTA_PATTERNS, REQUEST, Page, SensorTable
from quota.rates import SampleWindows
from tests.deploy.commands import DEPLOY
from tests.pipeline.meter.metric_pages import KafkaSensor, exported

PAGE = b"""\
# HELP kafka_server_quota_byte_rate attributes
# TYPE kafka_server_quota_byte_rate gauge
kafka_server_quota_byte_rate{resource="Produce",user="alice",clientId="etl"} 1.5E6
kafka_server_quota_byte_rate{resource="Fetch",user="alice",clientId="etl",} 2000.0 1732000000000
kafka_server_quota_request_time{resource="Request",user="alice",clientId="etl"} 12.5
kafka_server_quota_throttle_time{resource="Produce",user="alice",clientId="etl"} NaN
kafka_server_quota_byte_rate{resource="LeaderReplication"} 7.0
kafka_server_request_exempt_request_time 7.0
kafka_server_quota_byte_rate{resource="ControllerMutation",user="alice",clientId="etl"} 7.0
jvm_threads_current 25.0
"""


def table() -> SensorTable:
    return SensorTable("1")


def shown(sensors: SensorTable, page: Page) -> dict[tuple[str, str, int], float]:
    """Rates above 0 by user, client-id and what is measured."""
    return {
        (sensors.clients[client].user, sensors.clients[client].client_id, measure): rate
        for (measure, client), rate in zip(sensors.places.tolist(), page.rates.tolist(), strict=True)
        if rate
    }


def test_only_sensors_of_clients_are_read() -> None:
    sensors = table()
    page = sensors.read(PAGE)
    assert shown(sensors, page) == {
        ("alice", "etl", PRODUCED): 1.5e6,
        ("alice", "etl", FETCHED): 2000.0,
        ("alice", "etl", REQUEST): 1.25e8,
    }
    assert (page.shown, page.refused, page.reason) == (3, 0, "")


@pytest.mark.parametrize(
    "line",
    [
        'kafka_server_quota_byte_rate{resource="Produce",user="u",clientId="c"} 5',
        'kafka_server_quota_byte_rate{type="Produce",user="u",client_id="c"} 5',
        'kafka_server_Produce_byte_rate{client_id="c",user="u",} 5',
        'kafka_server_produce_byte_rate{client_id="c", user="u"} 5.0',
    ],
)
def test_every_naming_scheme_shows_the_same(line: str) -> None:
    sensors = table()
    assert shown(sensors, sensors.read(line.encode())) == {("u", "c", PRODUCED): 5.0}


def test_two_lines_of_one_sensor_are_refused_and_the_others_are_read() -> None:
    sensors = table()
    lines = (
        b'kafka_server_produce_byte_rate{client_id="c",user="u"} 5\n'
        b'kafka_server_quota_byte_rate{resource="Produce",user="u",clientId="c"} 6\n'
        b'kafka_server_fetch_byte_rate{client_id="c",user="u"} 7\n'
    )
    for _ in range(2):
        page = sensors.read(lines)
        assert shown(sensors, page) == {("u", "c", FETCHED): 7.0}
        assert (page.shown, page.refused) == (1, 2)
        assert page.reason.endswith('client_id="c",user="u"}: another line has its client, too')
    assert shown(sensors, sensors.read(lines[: lines.index(b"\n")])) == {("u", "c", PRODUCED): 5.0}


ONE, TWO, BOTH = ("user",), ("client_id",), ("user", "client_id")


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        # Public files of rules: the one of a client-id before that of both, the one of a user before that of both, and
        # jmx_exporter's own order with clients that call themselves `x, user=bob, client-id=y` and `x, client-id=y`.
        ('resource="Produce, user=alice",clientId="etl",', TWO),
        ('resource="Produce",user="alice, client-id=etl",', ONE),
        (r'resource="Produce, user=mallory, client-id=\"x",user="bob",clientId="y\"",', BOTH),
        (r'resource="Produce",user="mallory, client-id=\"x",clientId="y\"",', BOTH),
        # The rules of before, without both ends: `kafka.server<type=Produce, user=bob, client-id=etl><>byte-rate`.
        (r'resource="Produce",user="bob",clientId="etl><>byte-rate\""', BOTH),
        (r'resource="Produce",clientId="\"x"', TWO),
        ('resource="Produce",clientId="a,b"', TWO),
        (r'resource="Produce",clientId="\"etl\""', TWO),
        (r'resource="Produce",user="\"bob\"",clientId="etl"', BOTH),
    ],
)
def test_a_line_that_rules_made_of_several_names_is_refused_with_the_line_to_mend(
    labels: str, rule: tuple[str, ...]
) -> None:
    sensors = table()
    page = sensors.read(f"kafka_server_quota_byte_rate{{{labels}}} 5\n".encode())
    assert (page.shown, page.refused, sensors.clients) == (0, 1, [])
    assert f"Fix: give that rule the line pattern: '{QUOTA_PATTERNS[rule]}' (deploy/" in page.reason


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        (
            "kafka_server_produce_user_alice_client_id_etl_byte_rate",
            "its exporter makes user and client-id parts of the metric's name. Fix: put the rules of deploy/",
        ),
        (
            'kafka_server_Produce__user_alice_byte_rate{clientId="etl"}',
            "its exporter makes user and client-id parts of the metric's name. Fix: put the rules of deploy/",
        ),
        (
            'kafka_server_quota_fetch_byte_rate{user="alice",client="etl"}',
            "its metric is not known. Fix: put the rules of deploy/",
        ),
        (
            'kafka_server_quota_request_time{resource="Request",principal="alice"}',
            "no label of it is known to be a user or client-id. Fix: put the rules of deploy/",
        ),
    ],
)
def test_a_quota_line_that_cannot_be_read_is_refused_with_its_reason(series: str, reason: str) -> None:
    page = table().read(f"{series} 5\n".encode())
    assert (page.shown, page.refused) == (0, 1)
    assert reason in page.reason


def test_the_line_to_mend_is_that_of_the_file_of_rules() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "jmx-quotas.yml").read_text("utf-8"))["rules"]
    of_quotas = [rule["pattern"] for rule in rules if "kafka" in rule["pattern"]]
    assert of_quotas == [QUOTA_PATTERNS[names] for names in (BOTH, ONE, TWO)]


def test_names_lose_quotes_only_where_jmx_exporter_wrote_the_page() -> None:
    lines = (
        rb'kafka_server_produce_byte_rate{client_id="etl"} 5',
        rb'kafka_server_produce_byte_rate{client_id="\"etl\""} 6',
        rb'kafka_server_produce_byte_rate{client_id="a,b"} 7',
        rb'kafka_server_produce_byte_rate{client_id="\"a,b\""} 8',
        rb'kafka_server_produce_byte_rate{client_id="\njmx_scrape_duration_seconds "} 9',
    )
    sensors = table()
    as_it_is = {"etl": 5.0, '"etl"': 6.0, "a,b": 7.0, '"a,b"': 8.0, "\njmx_scrape_duration_seconds ": 9.0}
    for exporter, charged, refused in (
        (b"", as_it_is, 0),
        (b"jmx_scrape_duration_seconds 1\n", {"etl": 5.0, "a,b": 8.0}, 3),
    ):
        page = sensors.read(exporter + b"\n".join(lines) + b"\n")
        assert shown(sensors, page) == {("ANONYMOUS", name, PRODUCED): rate for name, rate in charged.items()}
        assert page.refused == refused


@pytest.mark.parametrize(
    "labels",
    [
        b'client_id="c" user="u',
        b'client_id="c",user="\xff"',
        b'user="%ff",client_id=""',
        b'user="' + b"x" * 40_000 + b'"',
        b'client_id=c,user="u"',
    ],
)
def test_damaged_labels_are_refused_each_time_and_the_other_lines_are_read(labels: bytes) -> None:
    sensors = table()
    page = b'kafka_server_produce_byte_rate{%b} 9\nkafka_server_produce_byte_rate{user="u"} 5\n' % labels
    for _ in range(2):
        read = sensors.read(page)
        assert (read.refused, shown(sensors, read)) == (1, {("u", "", PRODUCED): 5.0})
        assert read.reason


@given(
    st.sampled_from(["rules", "own"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=30),
)
@example("own", '""')
@example("own", "\\n")
@example("own", "%41")
@example("own", "a{b} 5")
@example("own", "x" * 300)
def test_any_name_comes_back_as_it_was(form: str, name: str) -> None:
    sensors = table()
    page = sensors.read(exported(form, "Fetch", "byte-rate", name, name, 5.0))
    assert shown(sensors, page) == {(name, name, FETCHED): 5.0}


def test_sensors_keep_their_places_and_absent_ones_have_no_rate() -> None:
    sensors = table()
    line = b'kafka_server_produce_byte_rate{user="%b"} 5\n'
    sensors.read(line % b"a" + line % b"b")
    page = sensors.read(line % b"c" + line % b"b")
    assert page.rates.tolist() == [0.0, 5.0, 5.0]
    sensors.keep(np.array([False, True, True]))
    assert sensors.read(line % b"c" + line % b"a").rates.tolist() == [0.0, 5.0, 5.0]
    assert [client.user for client in sensors.clients] == ["b", "c", "a"]


def test_lines_that_are_always_new_are_read_and_not_remembered_for_ever() -> None:
    sensors = table()
    for number in range(8):
        lines = b"".join(b"other_%d 5 %d\n" % (at, number) for at in range(4_000))
        page = sensors.read(lines + b'kafka_server_produce_byte_rate{user="u"} 5 %d\n' % number)
        assert shown(sensors, page) == {("u", "", PRODUCED): 5.0}
    assert len(sensors._known) == 1


def test_pages_of_one_process_are_known_by_its_start() -> None:
    started = b'process_start_time_seconds{a="b"} 1.73e9\n'
    assert (table().read(PAGE + started).identity, table().read(PAGE).identity) == (b"1.73e9", None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1.0", "1e13", "12,5"])
def test_what_is_not_a_rate_charges_nothing_and_has_a_reason(value: str) -> None:
    sensors = table()
    line = 'kafka_server_produce_byte_rate{client_id="c",user="u"} '
    page = sensors.read(f'{line}{value}\nkafka_server_fetch_byte_rate{{client_id="c",user="u"}} 7\n'.encode())
    assert shown(sensors, page) == {("u", "c", FETCHED): 7.0}
    assert (page.shown, page.refused) == (1, 1)
    assert page.reason == f"{line.strip()}: {value} is not a rate"


START_MS = 1_732_000_000_000
Request = tuple[int, int]
"""When, in ms since the start, and how many bytes."""


class Scraped:
    """One sensor, scraped now and then."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._left = sorted(requests, reverse=True)
        self._sensor = KafkaSensor()
        self.usage = ScrapedUsage()
        self.usage.grow(1)
        self.sent = 0
        self.charged = 0
        self.events: list[tuple[int, int]] = []

    def scrape(self, at_ms: int) -> None:
        while self._left and self._left[-1][0] <= at_ms:
            when_ms, size_bytes = self._left.pop()
            self._sensor.record(size_bytes, START_MS + when_ms)
            self.sent += size_bytes
        self.usage.observe(np.array([self._sensor.rate(START_MS + at_ms)]), START_MS + at_ms)
        ends_ms, used = self.usage.take(START_MS + at_ms)
        self.events += zip(ends_ms.tolist(), used[:, 0].tolist(), strict=True)
        self.charged += int(used.sum())


def scraped_at(requests: Iterable[Request], scrapes_ms: Iterable[int]) -> Scraped:
    one = Scraped(requests)
    for at_ms in scrapes_ms:
        one.scrape(at_ms)
    return one


def instants(until_ms: int, interval_ms: int = 2_000, seed: int = 1) -> Iterator[int]:
    times, at_ms = random.Random(seed), 0
    while at_ms < until_ms:
        yield at_ms
        at_ms += round(interval_ms * times.uniform(0.75, 1.25))


def on_off(on_ms: int, off_ms: int, gap_ms: int, seconds: int) -> list[Request]:
    period_ms = on_ms + off_ms
    return [(at_ms, 1_000) for at_ms in range(100, 1000 * seconds, gap_ms) if at_ms % period_ms < on_ms]


def test_the_model_of_a_sensor_shows_the_rate_of_the_engine_where_windows_begin_alike() -> None:
    sensor, windows = KafkaSensor(), SampleWindows(0, 11, 1000, newest=START_MS // 1000)
    windows.grow(1)
    for second in [*range(14), 20, 21, 40]:
        windows.advance(START_MS // 1000 + second)
        for within_ms in (0, 300, 999):
            now_ms = START_MS + second * 1000 + within_ms
            sensor.record(500, now_ms)
            windows.add(slice(0, 1), now_ms // 1000, np.array([500]), np.array([now_ms]))
            assert sensor.rate(now_ms) == windows.observed(np.array([0]), now_ms)[0][0]


@pytest.mark.parametrize(
    ("requests", "share"),
    [
        pytest.param(on_off(1000, 0, 20, 300), 0.03, id="all the time"),
        pytest.param(on_off(1000, 0, 500, 300), 0.03, id="two a second"),
        pytest.param(on_off(1000, 0, 1000, 300), 0.03, id="one a second"),
        pytest.param(on_off(1, 4999, 1, 900), 0.03, id="one in 5 s"),
        pytest.param(on_off(1_000, 29_000, 20, 900), 0.07, id="1 s in 30 s"),
        pytest.param(on_off(3_000, 7_000, 20, 900), 0.07, id="3 s in 10 s"),
        pytest.param(on_off(12_000, 12_000, 20, 900), 0.07, id="12 s in 24 s"),
    ],
)
@pytest.mark.parametrize("interval_ms", [2_000, 5_000])
def test_long_run_sums_are_right(requests: list[Request], share: float, interval_ms: int) -> None:
    extra = 0.0 if interval_ms == 2_000 else 0.01
    until_ms = requests[-1][0] + 30_000
    ratios = [
        (one := scraped_at(requests, instants(until_ms, interval_ms, seed))).charged / one.sent for seed in range(2)
    ]
    assert abs(np.mean(ratios) - 1) <= share + extra


@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 10**9)), max_size=40),
    st.lists(st.integers(200, 5_000), min_size=1, max_size=30),
)
def test_a_single_window_is_never_charged_more_than_twice(requests: list[Request], rests_ms: list[int]) -> None:
    """Whatever is sent and whenever it is scraped: the mean of a byte that few scrapes meet is its worst case."""
    one = scraped_at(requests, np.cumsum([0, *rests_ms]).tolist())
    assert one.charged <= 2 * one.sent + 1


@given(st.lists(st.tuples(st.integers(0, 11_900), st.integers(0, 10**6)), min_size=1, max_size=30), st.integers(1, 999))
def test_what_is_there_is_charged_at_the_next_scrape_to_5_percent(requests: list[Request], first_ms: int) -> None:
    one = scraped_at([(first_ms + at_ms, size) for at_ms, size in requests], [0, first_ms, first_ms + 5_000])
    at_least, at_most = one.sent * 10.5 / 12, one.sent * 10.5 / 10
    # W is up to 12 s where the windows go back to the first request. Less than a second of it is not taken yet: it
    # waits for the end of its second.
    charged = one.charged + float(one.usage._charged[0])
    assert at_least - 1 <= charged <= at_most + 1


@pytest.mark.parametrize("gap_ms", [11_001, 60_000, 3_600_000])
def test_after_a_gap_at_most_one_window_is_charged(gap_ms: int) -> None:
    requests = on_off(1000, 0, 50, 60 + gap_ms // 1000 + 2)
    one = scraped_at(requests, instants(50_000))
    last_ms = one.usage._at_ms or 0
    before = one.charged
    one.scrape(last_ms - START_MS + gap_ms)
    assert 0.9 * 220_000 <= one.charged - before <= 220_000
    assert {end_ms // 1000 for end_ms, _ in one.events[-11:]} >= {(last_ms + gap_ms) // 1000 - n for n in range(1, 11)}


def test_what_is_taken_late_is_dated_in_the_last_minute_and_nothing_is_lost() -> None:
    one, other = (ScrapedUsage() for _ in range(2))
    for usage in (one, other):
        usage.grow(1)
    total = 0
    for second in range(0, 301, 2):
        for usage in (one, other):
            usage.observe(np.array([1e6]), START_MS + 1000 * second)
        total += int(other.take(START_MS + 1000 * second)[1].sum())
    ends_ms, used = one.take(START_MS + 300_000)
    assert (len(ends_ms), int(ends_ms[0])) == (60, START_MS + 300_000 - 60_000 + 999)
    assert int(used.sum()) == total


def test_sensors_that_come_and_go_change_no_other() -> None:
    usage, alone = ScrapedUsage(), ScrapedUsage()
    alone.grow(1)
    usage.grow(3)
    for second in range(0, 40, 2):
        if second == 20:
            usage.grow(5)
        if second == 30:
            usage.keep(np.array([False, True, False, False, True]))
        rates = np.full(len(usage), 7e5)
        usage.observe(rates, START_MS + second * 1000)
        alone.observe(np.array([7e5]), START_MS + second * 1000)
        of_all, of_one = (one.take(START_MS + second * 1000)[1] for one in (usage, alone))
        if second < 30:
            assert (of_all[:, 1] == of_one[:, 0]).all()
    assert (of_all[:, 0] == of_one[:, 0]).all()


def test_a_sensor_is_settled_when_nothing_of_it_is_left() -> None:
    one = Scraped([(2_500, 1_000_000)])
    settled = []
    for at_ms in range(0, 40_000, 2_000):
        one.scrape(at_ms)
        settled.append(bool(one.usage.is_settled[0]))
    assert settled == sorted(settled[:2], reverse=True) + settled[2:]
    assert not any(settled[2:8])
    assert settled[-1]


def test_a_steady_client_is_charged_evenly_so_that_no_rate_peaks_and_fractions_are_carried() -> None:
    one = scraped_at(on_off(1000, 0, 10, 120), instants(120_000))
    late = [used for end_ms, used in one.events if end_ms > START_MS + 60_000]
    assert 0.94 * 100_000 <= min(late) <= max(late) <= 1.03 * 100_000
    usage = ScrapedUsage()
    usage.grow(1)
    charged = 0
    for second in range(1001):
        usage.observe(np.array([0.3]), START_MS + 1000 * second)
        charged += int(usage.take(START_MS + 1000 * second)[1].sum())
    assert charged == pytest.approx(300, rel=0.03)


@pytest.mark.parametrize("interval_ms", [500, 5_000])
def test_each_second_has_one_event_and_a_clock_that_stands_or_goes_back_charges_nothing(interval_ms: int) -> None:
    one = scraped_at(on_off(1000, 0, 7, 60), range(0, 60_000, interval_ms))
    ends_ms = [end_ms for end_ms, _ in one.events]
    assert {end_ms % 1000 for end_ms in ends_ms} == {999}
    assert np.diff(ends_ms).tolist() == [1000] * (len(ends_ms) - 1)
    usage = ScrapedUsage()
    usage.grow(1)
    for at_ms in (START_MS, START_MS, START_MS - 5_000):
        usage.observe(np.array([1e9]), at_ms)
        assert not usage.take(at_ms)[1].sum()
