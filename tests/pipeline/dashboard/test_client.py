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
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from tests.pipeline.dashboard.shop import START_MS, LivedTables, Sender, quota, reader_of
from tests.pipeline.tables.factories import EventTable

SUMS = {0: 100.0, 1_000: 300.0, 2_000: 0.0, 4_000: 200.0}


@pytest.mark.parametrize(
    ("sums", "span", "window_ms", "quota_type", "expected"),
    [
        (SUMS, Span(1_000, 5_000, 1_000), 2_000, "producer_byte_rate", [200.0, 150.0, 0.0, 100.0]),
        (SUMS, Span(0, 5_000, 1_000), 500, "producer_byte_rate", [100.0, 300.0, 0.0, 0.0, 200.0]),
        ({0: 5e8}, Span(0, 1_000, 1_000), 1_000, "request_percentage", [50.0]),
    ],
    ids=["of a window", "a window shorter than a step is a step", "request time is in percent of one thread"],
)
def test_a_rate_is_the_sum_over_the_window_before_it(
    sums: dict[int, float], span: Span, window_ms: int, quota_type: str, expected: list[float]
) -> None:
    assert rates(sums, span, window_ms, quota_type) == expected


ENDS = range(5_000, 105_000, 5_000)


@pytest.mark.parametrize(
    ("worked", "unknown"),
    [([10_000, 11_000, 80_000], [*range(25_000, 70_000, 5_000), 95_000, 100_000]), ([], [*ENDS])],
)
def test_where_the_job_did_not_work_nothing_is_known(worked: list[int], unknown: list[int]) -> None:
    known = has_data(worked, Span(0, 100_000, 5_000))
    assert [end for end, is_known in zip(ENDS, known, strict=True) if not is_known] == unknown


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


@pytest.mark.parametrize(
    ("events", "since_ms", "found"),
    [
        ([event(2, 900, 1_000), event(1, 0, 1_000)], 0, [(0, 1_900)]),
        ([event(1, 0, 1_000), event(2, 400, 0), event(3, 500, 100)], 0, [(0, 400), (500, 600)]),
        ([event(1, 0, 1_000), event(2, 400, 0), event(3, 400, 100)], 0, [(0, 400), (400, 500)]),
        ([event(1, 0, 1_000), event(2, 100, 5_000, None), event(3, 400, 0)], 0, [(0, 400), (100, 5_100)]),
        ([event(1, 0, 1_000), event(2, 1_001, 500)], 0, [(0, 1_000), (1_001, 1_501)]),
        ([event(1, 0, 1_000), event(2, 5_000, 500)], 1_000, [(5_000, 5_500)]),
    ],
    ids=[
        "records that follow one another are one band",
        "a release cuts it",
        "a throttle at the instant of a release is another one",
        "throttles of a client and of its user are bands of their own",
        "a gap divides bands",
        "what ended before the range is left out",
    ],
)
def test_bands_are_times_of_a_hold(events: list[dict[str, Any]], since_ms: int, found: list[tuple[int, int]]) -> None:
    assert [(band["start_ms"], band["end_ms"]) for band in bands(events, since_ms)] == found


THREE_CLIENTS = (
    Sender("a", "x", lambda _: {"produced_bytes": 1_000, "fetched_bytes": 100}),
    Sender("a", "y", lambda _: {"produced_bytes": 3_000, "fetched_bytes": 100}),
    Sender("b", "x", lambda _: {"produced_bytes": 5_000, "fetched_bytes": 500}),
)


def newest(values: list[float | None]) -> float:
    return [value for value in values if value is not None][-1]


def test_a_series_is_of_all_clients_of_the_sensor_and_without_a_quota_of_the_client(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, [quota("a", "", producer_byte_rate=1e6)], THREE_CLIENTS, START_MS)
    tables.live(15)
    reader = reader_of(tables.root)
    document = client_document(reader, reader.look(tables.now_ms), ("a", "x"))
    series = document["series"]
    produced, fetched = series["producer_byte_rate"], series["consumer_byte_rate"]
    assert newest(produced["observed"]) == pytest.approx(4_000)
    assert newest(produced["own"]) == pytest.approx(1_000)
    assert newest(fetched["observed"]) == pytest.approx(100), "whoever has the same client-id"
    assert fetched["own"] is None
    assert document["large_requests"] == []
    QuotaTable(tables.root).alter([QuotaChange("a", "", {"producer_byte_rate": 1.0})], local_audit("a small bound"))
    reader = reader_of(tables.root)
    (advice,) = client_document(reader, reader.look(tables.now_ms), ("a", "x"))["large_requests"]
    assert advice.startswith("one produce request of a/x had at least ")


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
