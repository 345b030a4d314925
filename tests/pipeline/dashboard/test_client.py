"""The view Client: rates, gaps and bands; whose usage a chart sums up; what is read of a client that was held for long.

bin      0     1     2     3     4        window = 2 bins
sum     100   300    0     -    200       - is a bin without usage
rate     ·    200   150    0    100       per second, at the end of each bin
"""

from pathlib import Path
from typing import Any

import pytest

from pipeline.dashboard.client import Span, bands, client_document, has_data, rates, read_throttles, span_of
from pipeline.dashboard.reader import TablesReader
from tests.pipeline.dashboard.lived_tables import LivedTables, Sender
from tests.pipeline.dashboard.shop import START_MS, quota, reader_of
from tests.pipeline.tables.event_table import EventTable

SUMS = {0: 100.0, 1_000: 300.0, 2_000: 0.0, 4_000: 200.0}


def test_a_rate_is_the_sum_over_the_window_before_it() -> None:
    assert rates(SUMS, Span(1_000, 5_000, 1_000), 2_000, "producer_byte_rate") == [200.0, 150.0, 0.0, 100.0]


def test_a_window_shorter_than_a_step_is_a_step() -> None:
    assert rates(SUMS, Span(0, 5_000, 1_000), 500, "producer_byte_rate") == [100.0, 300.0, 0.0, 0.0, 200.0]


def test_request_time_is_in_percent_of_one_thread() -> None:
    assert rates({0: 5e8}, Span(0, 1_000, 1_000), 1_000, "request_percentage") == [50.0]


def test_where_the_job_did_not_work_nothing_is_known() -> None:
    worked = [10_000, 11_000, 80_000]
    known = has_data(worked, Span(0, 100_000, 5_000))
    ends = range(5_000, 105_000, 5_000)
    assert [end for end, is_known in zip(ends, known, strict=True) if not is_known] == [*range(25_000, 70_000, 5_000),
                                                                                     95_000, 100_000]  # fmt: skip


def test_without_batches_nothing_is_known() -> None:
    assert has_data([], Span(0, 3_000, 1_000)) == [False] * 3


def event(seq: int, at_ms: int, for_ms: int, client_id: str | None = "c") -> dict[str, Any]:
    return {
        "broker_id": "",
        "user": "u",
        "client_id": client_id,
        "publish_seq": seq,
        "action": "throttle" if for_ms else "release",
        "throttle_time_ms": for_ms,
        "throttled_until_ms": at_ms + for_ms,
        "quota_type": "producer_byte_rate",
        "decision_id": f"d{seq}",
    }


def spans(*events: dict[str, Any], since_ms: int = 0) -> list[tuple[int, int]]:
    return [(band["start_ms"], band["end_ms"]) for band in bands(events, since_ms)]


def test_records_that_follow_one_another_are_one_band() -> None:
    assert spans(event(2, 900, 1_000), event(1, 0, 1_000)) == [(0, 1_900)]


def test_a_release_cuts_the_band_and_the_next_throttle_is_another_one() -> None:
    assert spans(event(1, 0, 1_000), event(2, 400, 0), event(3, 500, 100)) == [(0, 400), (500, 600)]


def test_throttles_of_a_client_and_of_its_user_are_bands_of_their_own() -> None:
    own, of_user = event(1, 0, 1_000), event(2, 100, 5_000, None)
    assert spans(own, of_user, event(3, 400, 0)) == [(0, 400), (100, 5_100)]


def test_a_throttle_at_the_instant_of_a_release_is_another_band() -> None:
    assert spans(event(1, 0, 1_000), event(2, 400, 0), event(3, 400, 100)) == [(0, 400), (400, 500)]


def test_a_gap_divides_bands() -> None:
    assert spans(event(1, 0, 1_000), event(2, 1_001, 500)) == [(0, 1_000), (1_001, 1_501)]


def test_what_ended_before_the_range_is_left_out() -> None:
    assert spans(event(1, 0, 1_000), event(2, 5_000, 500), since_ms=1_000) == [(5_000, 5_500)]


THREE_CLIENTS = (
    Sender("a", "x", lambda _: {"produced_bytes": 1_000, "fetched_bytes": 100}),
    Sender("a", "y", lambda _: {"produced_bytes": 3_000, "fetched_bytes": 100}),
    Sender("b", "x", lambda _: {"produced_bytes": 5_000, "fetched_bytes": 500}),
)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a/x, where the user a has a bound of bytes produced, and nobody has one of bytes fetched."""
    folder: Path = tmp_path_factory.mktemp("series")
    tables = LivedTables(folder, [quota("a", "", producer_byte_rate=1e6)], THREE_CLIENTS, START_MS)
    tables.live(15)
    reader = reader_of(tables.root)
    state = reader.look(tables.now_ms)
    document = client_document(reader, state, ("a", "x"))
    return dict(document["series"])


def newest(values: list[float | None]) -> float:
    return [value for value in values if value is not None][-1]


def test_under_a_quota_it_is_that_of_all_clients_of_the_sensor_and_its_own(series: dict[str, Any]) -> None:
    produced = series["producer_byte_rate"]
    assert newest(produced["observed"]) == pytest.approx(4_000)
    assert newest(produced["own"]) == pytest.approx(1_000)


def test_without_a_quota_it_is_its_own_whoever_has_the_same_client_id(series: dict[str, Any]) -> None:
    fetched = series["consumer_byte_rate"]
    assert newest(fetched["observed"]) == pytest.approx(100)
    assert fetched["own"] is None


END_MS = 1_700_000_100_000
MINUTE_MS = 60_000
ABOUT = {"user": "o'brien", "quota_type": "producer_byte_rate", "cause": "renewed", "decision_id": "d"}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TablesReader:
    """Held for a minute every five, for two hours; four records each time."""
    root: Path = tmp_path_factory.mktemp("held")
    begins = range(END_MS - 120 * MINUTE_MS, END_MS, 5 * MINUTE_MS)
    records = [("etl", "throttle", begin + at, 15_000) for begin in begins for at in range(0, MINUTE_MS, 15_000)]
    EventTable(root).write(*records, **ABOUT)
    return reader_of(str(root))


def test_the_bands_are_those_of_the_records_of_a_quarter_of_an_hour(reader: TablesReader) -> None:
    span = span_of(reader, END_MS)
    assert (span.since_ms, span.until_ms, span.step_ms) == (END_MS - 15 * MINUTE_MS, END_MS, 5_000)
    found = read_throttles(reader, ("o'brien", "etl"), span)
    assert [band["start_ms"] for band in found["bands"]] == [END_MS - ago * MINUTE_MS for ago in (15, 10, 5)]
    assert [band["end_ms"] - band["start_ms"] for band in found["bands"]] == [MINUTE_MS] * 3
    assert found["records"][0]["throttled_until_ms"] == END_MS - 4 * MINUTE_MS


def test_a_throttle_that_began_before_the_span_may_run_in_it(reader: TablesReader) -> None:
    span = span_of(reader, END_MS + 30_000)
    assert read_throttles(reader, ("o'brien", "etl"), span)["bands"][0]["start_ms"] < span.since_ms


def test_another_client_was_never_held(reader: TablesReader) -> None:
    found = read_throttles(reader, ("o'brien", ""), span_of(reader, END_MS))
    assert (found["records"], found["bands"]) == ([], [])
