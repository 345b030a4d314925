"""Usage from scraped rates, against Kafka's own rate rule on a clock that is set by hand."""

import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.meter.scraped_rates import ScrapedUsage
from quota.rates import SampleWindows
from tests.pipeline.meter.kafka_sensor import KafkaSensor

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


def scraped(requests: Iterable[Request], scrapes_ms: Iterable[int]) -> Scraped:
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
    ratios = [(one := scraped(requests, instants(until_ms, interval_ms, seed))).charged / one.sent for seed in range(2)]
    assert abs(np.mean(ratios) - 1) <= share + extra


@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 10**9)), max_size=40),
    st.lists(st.integers(200, 5_000), min_size=1, max_size=30),
)
def test_a_single_window_is_never_charged_more_than_twice(requests: list[Request], rests_ms: list[int]) -> None:
    """Whatever is sent and whenever it is scraped: the mean of a byte that few scrapes meet is its worst case."""
    one = scraped(requests, np.cumsum([0, *rests_ms]).tolist())
    assert one.charged <= 2 * one.sent + 1


@given(st.lists(st.tuples(st.integers(0, 11_900), st.integers(0, 10**6)), min_size=1, max_size=30), st.integers(1, 999))
def test_what_is_there_is_charged_at_the_next_scrape_to_5_percent(requests: list[Request], first_ms: int) -> None:
    one = scraped([(first_ms + at_ms, size) for at_ms, size in requests], [0, first_ms, first_ms + 5_000])
    at_least, at_most = one.sent * 10.5 / 12, one.sent * 10.5 / 10
    # W is up to 12 s where the windows go back to the first request. Less than a second of it is not taken yet: it
    # waits for the end of its second.
    charged = one.charged + float(one.usage._charged[0])
    assert at_least - 1 <= charged <= at_most + 1


@pytest.mark.parametrize("gap_ms", [11_001, 60_000, 3_600_000])
def test_after_a_gap_at_most_one_window_is_charged(gap_ms: int) -> None:
    requests = on_off(1000, 0, 50, 60 + gap_ms // 1000 + 2)
    one = scraped(requests, instants(50_000))
    last_ms = one.usage._at_ms or 0
    before = one.charged
    one.scrape(last_ms - START_MS + gap_ms)
    assert 0.9 * 220_000 <= one.charged - before <= 220_000
    assert {end_ms // 1000 for end_ms, _ in one.events[-11:]} >= {(last_ms + gap_ms) // 1000 - n for n in range(1, 11)}


def test_a_client_that_was_quiet_before_and_after_a_gap_is_charged_nothing() -> None:
    one = scraped([(30_000, 5_000_000)], [0, 2_000, 4_000, 60_000, 62_000])
    assert (one.sent, one.charged) == (5_000_000, 0)


@pytest.mark.parametrize("interval_ms", [500, 2_000, 5_000])
def test_each_second_has_one_event_and_whole_bytes(interval_ms: int) -> None:
    one = scraped(on_off(1000, 0, 7, 60), range(0, 60_000, interval_ms))
    ends_ms = [end_ms for end_ms, _ in one.events]
    assert ends_ms == sorted(set(ends_ms))
    assert {end_ms % 1000 for end_ms in ends_ms} == {999}
    assert np.diff(ends_ms).tolist() == [1000] * (len(ends_ms) - 1)
    assert {type(used) for _, used in one.events} == {int}


def test_a_steady_client_is_charged_evenly_so_that_no_rate_peaks() -> None:
    one = scraped(on_off(1000, 0, 10, 120), instants(120_000))
    late = [used for end_ms, used in one.events if end_ms > START_MS + 60_000]
    assert max(late) <= 1.03 * 100_000
    assert min(late) >= 0.94 * 100_000


def test_fractions_are_carried() -> None:
    usage = ScrapedUsage()
    usage.grow(1)
    charged = 0
    for second in range(1001):
        usage.observe(np.array([0.3]), START_MS + 1000 * second)
        charged += int(usage.take(START_MS + 1000 * second)[1].sum())
    assert charged == pytest.approx(300, rel=0.03)


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


def test_clocks_that_stand_or_go_back_charge_nothing() -> None:
    usage = ScrapedUsage()
    usage.grow(1)
    for at_ms in (START_MS, START_MS, START_MS - 5_000):
        usage.observe(np.array([1e9]), at_ms)
        assert not usage.take(at_ms)[1].sum()


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
