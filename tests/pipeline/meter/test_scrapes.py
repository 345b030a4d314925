"""Pages of exporters: which lines are sensors, whose they are; and usage from their rates, against Kafka's own rule."""

import random
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

import numpy as np
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.meter.scrapes import FETCHED, PRODUCED, QUOTA_PATTERNS, REQUEST, Page, ScrapedUsage, SensorTable
from quota.arrays import Ints
from quota.rates import SampleWindows
from tests.deploy.commands import DEPLOY
from tests.pipeline.meter.metric_pages import KafkaSensor

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


@pytest.fixture
def sensors() -> SensorTable:
    return SensorTable("1")


def shown(sensors: SensorTable, page: Page) -> dict[tuple[str, str, int], float]:
    """Rates above 0 by user, client-id and what is measured."""
    return {
        (sensors.clients[client].user, sensors.clients[client].client_id, measure): rate
        for (measure, client), rate in zip(sensors.places.tolist(), page.rates.tolist(), strict=True)
        if rate
    }


def test_only_sensors_of_clients_are_read(sensors: SensorTable) -> None:
    page = sensors.read(PAGE)
    assert shown(sensors, page) == {
        ("alice", "etl", PRODUCED): 1.5e6,
        ("alice", "etl", FETCHED): 2000.0,
        ("alice", "etl", REQUEST): 1.25e8,
    }
    assert (page.shown, page.refused, page.reason, page.identity) == (3, 0, "", None)
    assert sensors.read(PAGE + b'process_start_time_seconds{a="b"} 1.73e9\n').identity == b"1.73e9"


@pytest.mark.parametrize(
    "line",
    [
        'kafka_server_quota_byte_rate{type="Produce",user="u",client_id="c"} 5',
        'kafka_server_Produce_byte_rate{client_id="c",user="u",} 5',
        'kafka_server_produce_byte_rate{client_id="c", user="u"} 5.0',
    ],
)
def test_every_naming_scheme_shows_the_same(line: str, sensors: SensorTable) -> None:
    assert shown(sensors, sensors.read(line.encode())) == {("u", "c", PRODUCED): 5.0}


def test_two_lines_of_one_sensor_are_refused_and_the_others_are_read(sensors: SensorTable) -> None:
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
QUOTA = "kafka_server_quota_byte_rate"
USE_OURS = "Fix: put the rules of deploy/prometheus/jmx-quotas.yml before its other rules"


def of_rule(names: tuple[str, ...]) -> str:
    return f"Fix: give that rule the line pattern: '{QUOTA_PATTERNS[names]}' (deploy/"


@pytest.mark.parametrize(
    ("series", "reasons"),
    [
        # What rules that match too much make of names; names that JMX writes else.
        (f'{QUOTA}{{resource="Produce, user=alice",clientId="etl"}}', (of_rule(TWO),)),
        (f'{QUOTA}{{resource="Produce",user="alice, client-id=etl"}}', (of_rule(ONE),)),
        (f'{QUOTA}{{resource="Produce",user="bob",clientId="etl><>byte-rate\\""}}', (of_rule(BOTH),)),
        (f'{QUOTA}{{resource="Produce",clientId="a,b"}}', (of_rule(TWO),)),
        (f'{QUOTA}{{resource="Produce",clientId="\\"etl\\""}}', (of_rule(TWO),)),
        ("kafka_server_produce_user_alice_client_id_etl_byte_rate", ("parts of the metric's name", USE_OURS)),
        ('kafka_server_Produce__user_alice_byte_rate{clientId="etl"}', ("parts of the metric's name", USE_OURS)),
        ('kafka_server_quota_fetch_byte_rate{user="alice",client="etl"}', ("its metric is not known", USE_OURS)),
        ('kafka_server_quota_request_time{resource="Request",principal="alice"}', ("no label of it is", USE_OURS)),
    ],
)
def test_a_quota_line_of_no_known_client_is_refused_with_what_to_mend(
    series: str, reasons: tuple[str, ...], sensors: SensorTable
) -> None:
    page = sensors.read(f"{series} 5\n".encode())
    assert (page.shown, page.refused, sensors.clients) == (0, 1, [])
    assert [reason for reason in reasons if reason not in page.reason] == []


def test_the_line_to_mend_is_that_of_the_file_of_rules() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "jmx-quotas.yml").read_text("utf-8"))["rules"]
    of_quotas = [rule["pattern"] for rule in rules if "kafka" in rule["pattern"]]
    assert of_quotas == [QUOTA_PATTERNS[names] for names in (BOTH, ONE, TWO)]


def test_names_lose_quotes_only_where_jmx_exporter_wrote_the_page(sensors: SensorTable) -> None:
    names = {r"etl": 5.0, r"\"etl\"": 6.0, r"a,b": 7.0, r"\"a,b\"": 8.0, r"\njmx_scrape_duration_seconds ": 9.0}
    lines = "".join(f'kafka_server_produce_byte_rate{{client_id="{name}"}} {rate}\n' for name, rate in names.items())
    as_it_is = {"etl": 5.0, '"etl"': 6.0, "a,b": 7.0, '"a,b"': 8.0, "\njmx_scrape_duration_seconds ": 9.0}
    of_jmx = {"etl": 5.0, "a,b": 8.0}
    for exporter, charged in (("", as_it_is), ("jmx_scrape_duration_seconds 1\n", of_jmx)):
        page = sensors.read((exporter + lines).encode())
        assert shown(sensors, page) == {("ANONYMOUS", name, PRODUCED): rate for name, rate in charged.items()}
        assert page.refused == len(names) - len(charged)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=30))
@example('""')
@example("\\n")
@example("%41")
@example("a{b} 5")
@example("x" * 300)
def test_any_name_comes_back_as_it_was_without_rules(name: str) -> None:
    def label(value: str) -> str:
        """As ObjectName.quote and then the exporter write it."""
        if not re.fullmatch(r"[a-zA-Z0-9_\-%. \t]*", value):
            value = '"' + re.sub(r'([\\"*?])', r"\\\1", value).replace("\n", "\\n") + '"'
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    sensors = SensorTable("1")
    labels = f'user="{label(quote(name, safe="").replace("~", "%7E"))}",client_id="{label(name)}",'
    page = sensors.read(f"jmx_scrape_duration_seconds 0.1\nkafka_server_Fetch_byte_rate{{{labels}}} 5.0\n".encode())
    assert shown(sensors, page) == {(name, name, FETCHED): 5.0}


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
def test_damaged_labels_are_refused_each_time_and_the_others_are_read(labels: bytes, sensors: SensorTable) -> None:
    page = b'kafka_server_produce_byte_rate{%b} 9\nkafka_server_produce_byte_rate{user="u"} 5\n' % labels
    for _ in range(2):
        read = sensors.read(page)
        assert (read.refused, shown(sensors, read)) == (1, {("u", "", PRODUCED): 5.0})
        assert read.reason


def test_sensors_keep_their_places_and_absent_ones_have_no_rate(sensors: SensorTable) -> None:
    line = b'kafka_server_produce_byte_rate{user="%b"} 5\n'
    sensors.read(line % b"a" + line % b"b")
    page = sensors.read(line % b"c" + line % b"b")
    assert page.rates.tolist() == [0.0, 5.0, 5.0]
    sensors.keep(np.array([False, True, True]))
    assert sensors.read(line % b"c" + line % b"a").rates.tolist() == [0.0, 5.0, 5.0]
    assert [client.user for client in sensors.clients] == ["b", "c", "a"]


def test_lines_that_are_always_new_are_not_remembered_for_ever(sensors: SensorTable) -> None:
    for number in range(3):
        page = sensors.read(b'other_%d 5\nkafka_server_produce_byte_rate{user="u"} 5 %d\n' % (number, number))
        assert shown(sensors, page) == {("u", "", PRODUCED): 5.0}
    assert len(sensors._known) == 1


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1.0", "1e13", "12,5"])
def test_what_is_not_a_rate_charges_nothing_and_has_a_reason(value: str, sensors: SensorTable) -> None:
    line = 'kafka_server_produce_byte_rate{client_id="c",user="u"} '
    page = sensors.read(f'{line}{value}\nkafka_server_fetch_byte_rate{{client_id="c",user="u"}} 7\n'.encode())
    assert shown(sensors, page) == {("u", "c", FETCHED): 7.0}
    assert (page.shown, page.refused) == (1, 1)
    assert page.reason == f"{line.strip()}: {value} is not a rate"


START_MS = 1_732_000_000_000
Request = tuple[int, int]
"""When, in ms since the start, and how many bytes."""


class Scraped:
    """One sensor, scraped at some instants."""

    def __init__(self, requests: Iterable[Request], scrapes_ms: Iterable[int] = ()) -> None:
        self._left = sorted(requests, reverse=True)
        self._sensor = KafkaSensor()
        self.usage = new_usage(1)
        self.sent = self.charged = self.at_ms = 0
        self.events: list[tuple[int, int]] = []
        for at_ms in scrapes_ms:
            self.scrape(at_ms)

    def scrape(self, at_ms: int) -> None:
        self.at_ms = at_ms
        while self._left and self._left[-1][0] <= at_ms:
            when_ms, size_bytes = self._left.pop()
            self._sensor.record(size_bytes, START_MS + when_ms)
            self.sent += size_bytes
        ends_ms, used = shows(self.usage, self._sensor.rate(START_MS + at_ms), at_ms)
        self.events += zip(ends_ms.tolist(), used[:, 0].tolist(), strict=True)
        self.charged += int(used.sum())


def new_usage(sensors: int) -> ScrapedUsage:
    usage = ScrapedUsage()
    usage.grow(sensors)
    return usage


def shows(usage: ScrapedUsage, rate: float, at_ms: int) -> tuple[Ints, Ints]:
    """What is charged when all sensors show a rate."""
    usage.observe(np.full(len(usage), rate), START_MS + at_ms)
    return usage.take(START_MS + at_ms)


def instants(until_ms: int, interval_ms: int = 2_000, seed: int = 1) -> Iterator[int]:
    times, at_ms = random.Random(seed), 0
    while at_ms < until_ms:
        yield at_ms
        at_ms += round(interval_ms * times.uniform(0.75, 1.25))


def on_off(on_ms: int, off_ms: int, gap_ms: int, seconds: int) -> list[Request]:
    period_ms = on_ms + off_ms
    return [(at_ms, 1_000) for at_ms in range(100, 1000 * seconds, gap_ms) if at_ms % period_ms < on_ms]


def test_the_model_of_a_sensor_shows_the_engines_rate_where_windows_begin_alike() -> None:
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
        pytest.param(on_off(1000, 0, 1000, 300), 0.03, id="one a second"),
        pytest.param(on_off(1, 4999, 1, 900), 0.03, id="one in 5 s"),
        pytest.param(on_off(1_000, 29_000, 20, 900), 0.07, id="1 s in 30 s"),
        pytest.param(on_off(12_000, 12_000, 20, 900), 0.07, id="12 s in 24 s"),
    ],
)
@pytest.mark.parametrize(("interval_ms", "extra"), [(2_000, 0.0), (5_000, 0.01)])
def test_long_run_sums_are_right(requests: list[Request], share: float, interval_ms: int, extra: float) -> None:
    until_ms = requests[-1][0] + 30_000
    clients = [Scraped(requests, instants(until_ms, interval_ms, seed)) for seed in range(2)]
    assert abs(np.mean([one.charged / one.sent for one in clients]) - 1) <= share + extra


@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 10**9)), max_size=40),
    st.lists(st.integers(200, 5_000), min_size=1, max_size=30),
)
def test_a_single_window_is_never_charged_more_than_twice(requests: list[Request], rests_ms: list[int]) -> None:
    """Whatever is sent and whenever it is scraped: the mean of a byte that few scrapes meet is its worst case."""
    one = Scraped(requests, np.cumsum([0, *rests_ms]).tolist())
    assert one.charged <= 2 * one.sent + 1


@given(st.lists(st.tuples(st.integers(0, 11_900), st.integers(0, 10**6)), min_size=1, max_size=30), st.integers(1, 999))
def test_what_is_there_is_charged_at_the_next_scrape_to_5_percent(requests: list[Request], first_ms: int) -> None:
    one = Scraped([(first_ms + at_ms, size) for at_ms, size in requests], [0, first_ms, first_ms + 5_000])
    at_least, at_most = one.sent * 10.5 / 12, one.sent * 10.5 / 10
    # W is up to 12 s where the windows go back to the first request. Less than a second of it is not taken yet: it
    # waits for the end of its second.
    charged = one.charged + float(one.usage._charged[0])
    assert at_least - 1 <= charged <= at_most + 1


@pytest.mark.parametrize("gap_ms", [11_001, 60_000, 3_600_000])
def test_after_a_gap_at_most_one_window_is_charged(gap_ms: int) -> None:
    one = Scraped(on_off(1000, 0, 50, 60 + gap_ms // 1000 + 2), instants(50_000))
    before = one.charged
    one.scrape(one.at_ms + gap_ms)
    assert 0.9 * 220_000 <= one.charged - before <= 220_000
    last_second = (START_MS + one.at_ms) // 1000
    assert {end_ms // 1000 for end_ms, _ in one.events[-11:]} >= {last_second - n for n in range(1, 11)}


def test_what_is_taken_late_is_dated_in_the_last_minute_and_nothing_is_lost() -> None:
    late, other, total = new_usage(1), new_usage(1), 0
    for at_ms in range(0, 301_000, 2_000):
        late.observe(np.array([1e6]), START_MS + at_ms)
        total += int(shows(other, 1e6, at_ms)[1].sum())
    ends_ms, used = late.take(START_MS + 300_000)
    assert (len(ends_ms), int(ends_ms[0])) == (60, START_MS + 300_000 - 60_000 + 999)
    assert int(used.sum()) == total


def test_sensors_that_come_and_go_change_no_other() -> None:
    usage, alone, place = new_usage(3), new_usage(1), 1
    for second in range(0, 40, 2):
        if second == 20:
            usage.grow(5)
        if second == 30:
            usage.keep(np.array([False, True, False, False, True]))
            place = 0
        of_all, of_one = (shows(one, 7e5, second * 1000)[1] for one in (usage, alone))
        assert (of_all[:, place] == of_one[:, 0]).all()


def test_a_sensor_is_settled_when_nothing_of_it_is_left() -> None:
    one, settled = Scraped([(2_500, 1_000_000)]), []
    for at_ms in range(0, 40_000, 2_000):
        one.scrape(at_ms)
        settled.append(bool(one.usage.is_settled[0]))
    assert not any(settled[2:8])
    assert settled[-1]


def test_a_steady_client_is_charged_evenly_and_fractions_are_carried() -> None:
    one = Scraped(on_off(1000, 0, 10, 120), instants(120_000))
    late = [used for end_ms, used in one.events if end_ms > START_MS + 60_000]
    assert 0.94 * 100_000 <= min(late) <= max(late) <= 1.03 * 100_000
    usage = new_usage(1)
    charged = sum(int(shows(usage, 0.3, 1000 * second)[1].sum()) for second in range(1001))
    assert charged == pytest.approx(300, rel=0.03)


@pytest.mark.parametrize("interval_ms", [500, 5_000])
def test_each_second_has_one_event_and_a_clock_that_stands_charges_nothing(interval_ms: int) -> None:
    one = Scraped(on_off(1000, 0, 7, 60), range(0, 60_000, interval_ms))
    ends_ms = [end_ms for end_ms, _ in one.events]
    assert {end_ms % 1000 for end_ms in ends_ms} == {999}
    assert np.diff(ends_ms).tolist() == [1000] * (len(ends_ms) - 1)
    usage = new_usage(1)
    assert not any(shows(usage, 1e9, at_ms)[1].sum() for at_ms in (0, 0, -5_000))
