"""The view Client: rates, gaps and bands; whose usage a chart sums up; what is read of a client that was held for long.

bin      0     1     2     3     4        window = 2 bins
sum     100   300    0     -    200       - is a bin without usage
rate     ·    200   150    0    100       per second, at the end of each bin
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.dashboard.client import (
    MOST_POINTS,
    RANGES,
    Span,
    bands,
    bands_of_minutes,
    client_document,
    has_data,
    rates,
    read_throttles,
    step_ms,
)
from pipeline.dashboard.reader import TablesReader
from pipeline.tables.address import table_uri
from pipeline.tables.layout import TABLES, create_missing
from schemas.arrow import conform
from schemas.throttle_record import ThrottleByMinuteRow
from tests.pipeline.dashboard.lived_tables import LivedTables, Sender
from tests.pipeline.dashboard.shop import START_MS, quota, reader_of
from tests.pipeline.tables.event_table import EventTable

SUMS = {0: 100.0, 1_000: 300.0, 2_000: 0.0, 4_000: 200.0}


def test_a_rate_is_the_sum_over_the_window_before_it() -> None:
    assert rates(SUMS, 1_000, 5_000, 1_000, 2_000, "producer_byte_rate") == [200.0, 150.0, 0.0, 100.0]


def test_a_window_shorter_than_a_step_is_a_step() -> None:
    assert rates(SUMS, 0, 5_000, 1_000, 500, "producer_byte_rate") == [100.0, 300.0, 0.0, 0.0, 200.0]


def test_request_time_is_in_percent_of_one_thread() -> None:
    assert rates({0: 5e8}, 0, 1_000, 1_000, 1_000, "request_percentage") == [50.0]


def test_where_the_job_did_not_work_nothing_is_known() -> None:
    worked = [10_000, 11_000, 80_000]
    known = has_data(worked, 0, 100_000, 5_000)
    ends = range(5_000, 105_000, 5_000)
    assert [end for end, is_known in zip(ends, known, strict=True) if not is_known] == [*range(25_000, 70_000, 5_000),
                                                                                     95_000, 100_000]  # fmt: skip


def test_without_batches_nothing_is_known() -> None:
    assert has_data([], 0, 3_000, 1_000) == [False] * 3


@pytest.mark.parametrize(
    ("span_ms", "step"),
    [
        (60_000, 1_000),
        (360_000, 1_000),
        (360_001, 2_000),
        (900_000, 5_000),
        (86_400_000, 300_000),
        (604_800_000, 1_800_000),
    ],
)
def test_a_step_is_round_and_gives_no_more_points_than_fit(span_ms: int, step: int) -> None:
    assert step_ms(span_ms) == step
    assert span_ms / step_ms(span_ms) <= MOST_POINTS


def test_no_step_is_shorter_than_a_sample_window() -> None:
    assert step_ms(60_000, least_ms=5_000) == 5_000


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


def spans(*events: dict[str, Any], since_ms: int = 0) -> list[tuple[int, int, int]]:
    return [(band["start_ms"], band["end_ms"], band["records"]) for band in bands(events, since_ms)]


def test_records_that_follow_one_another_are_one_band() -> None:
    assert spans(event(2, 900, 1_000), event(1, 0, 1_000)) == [(0, 1_900, 2)]


def test_a_release_cuts_the_band_and_the_next_throttle_is_another_one() -> None:
    assert spans(event(1, 0, 1_000), event(2, 400, 0), event(3, 500, 100)) == [(0, 400, 1), (500, 600, 1)]


def test_throttles_of_a_client_and_of_its_user_are_bands_of_their_own() -> None:
    own, of_user = event(1, 0, 1_000), event(2, 100, 5_000, None)
    assert spans(own, of_user, event(3, 400, 0)) == [(0, 400, 1), (100, 5_100, 1)]


def test_a_throttle_at_the_instant_of_a_release_is_another_band() -> None:
    assert spans(event(1, 0, 1_000), event(2, 400, 0), event(3, 400, 100)) == [(0, 400, 1), (400, 500, 1)]


def test_a_gap_divides_bands() -> None:
    assert spans(event(1, 0, 1_000), event(2, 1_001, 500)) == [(0, 1_000, 1), (1_001, 1_501, 1)]


def test_what_ended_before_the_range_is_left_out() -> None:
    assert spans(event(1, 0, 1_000), event(2, 5_000, 500), since_ms=1_000) == [(5_000, 5_500, 1)]


@pytest.mark.parametrize(
    ("minutes", "step_ms", "expected"),
    [
        ([], 60_000, []),
        ([(0, 1)], 60_000, [(0, 60_000, 3)]),
        ([(0, 0)], 60_000, []),  # told of in that minute, and not held
        ([(60_000, 1), (0, 1)], 60_000, [(0, 120_000, 6)]),
        ([(0, 1), (120_000, 1)], 60_000, [(0, 60_000, 3), (120_000, 180_000, 3)]),
        ([(0, 1), (120_000, 1)], 60_001, [(0, 180_000, 6)]),  # a gap shorter than a step cannot be seen
    ],
)
def test_minutes_become_bands(
    minutes: list[tuple[int, int]], step_ms: int, expected: list[tuple[int, int, int]]
) -> None:
    found = bands_of_minutes([(start_ms, "producer_byte_rate", held_ms, 3) for start_ms, held_ms in minutes], step_ms)
    assert [(band["start_ms"], band["end_ms"], band["records"]) for band in found] == expected


def test_minutes_of_two_quota_types_are_bands_of_their_own() -> None:
    found = bands_of_minutes([(0, "producer_byte_rate", 1, 1), (60_000, "consumer_byte_rate", 1, 1)], 60_000)
    assert [(band["quota_type"], band["start_ms"]) for band in found] == [
        ("producer_byte_rate", 0),
        ("consumer_byte_rate", 60_000),
    ]


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
    document = client_document(reader, state, ("a", "x"), RANGES["15m"])
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


HOUR_MS = 3_600_000
END_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
MINUTE_MS = 60_000
ABOUT = {"user": "o'brien", "quota_type": "producer_byte_rate", "cause": "renewed", "decision_id": "d"}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TablesReader:
    """Held for a minute every ten, for 50 hours; four records each time. Minutes up to an hour before the end."""
    root: Path = tmp_path_factory.mktemp("held")
    create_missing(str(root), [TABLES["throttle_by_minute"]])
    events = EventTable(root)
    begins = range(END_MS - 50 * HOUR_MS, END_MS, 10 * MINUTE_MS)
    records = [("etl", "throttle", begin + at, 15_000) for begin in begins for at in range(0, MINUTE_MS, 15_000)]
    events.write(*records, **ABOUT)
    minutes = pa.table({"minute_start_ms": [begin for begin in begins if begin < END_MS - HOUR_MS]})
    names = {"user": "o'brien", "client_id": "etl", "broker_id": "", "quota_type": "producer_byte_rate", "owner": "ops"}
    counts = {"held_ms": 45_000, "throttle_count": 0, "renewal_count": 4}
    rows = conform(minutes, ThrottleByMinuteRow, cluster="c", **names, **counts)
    write_deltalake(table_uri(str(root), "throttle_by_minute"), rows, mode="append")
    return reader_of(str(root))


def span(hours: int, bin_ms: int) -> Span:
    return Span(END_MS - hours * HOUR_MS, END_MS, bin_ms)


def test_of_a_short_span_the_bands_are_those_of_the_records(reader: TablesReader) -> None:
    found = read_throttles(reader, ("o'brien", "etl"), span(2, 30_000))
    # One that began up to ten minutes before the span may run in it.
    assert (found["records_total"], found["has_more"]) == (4 * 13, False)
    assert [band["end_ms"] - band["start_ms"] for band in found["bands"]] == [MINUTE_MS] * 12


def test_of_a_long_span_the_newest_records_are_read_and_the_bands_are_minutes(reader: TablesReader) -> None:
    found = read_throttles(reader, ("o'brien", "etl"), span(48, 600_000))
    assert (found["records_total"], found["has_more"]) == (1_000, True)
    assert found["records"][0]["throttled_until_ms"] == END_MS - 9 * MINUTE_MS
    assert sum(band["records"] for band in found["bands"]) == 47 * 6 * 4
    starts = [band["start_ms"] for band in found["bands"]]
    assert starts == sorted(starts)
    assert starts[0] == END_MS - 48 * HOUR_MS


def test_another_client_was_never_held(reader: TablesReader) -> None:
    found = read_throttles(reader, ("o'brien", ""), span(48, 600_000))
    assert (found["records"], found["bands"], found["has_more"]) == ([], [], False)
