"""What is read of a client that was held for a long time: the newest records, and its minutes for the rest."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.dashboard.client import Span, read_throttles
from pipeline.dashboard.reader import TablesReader
from pipeline.process import JobSigns
from pipeline.tables.address import table_uri
from pipeline.tables.layout import TABLES, create_missing
from schemas.arrow import conform
from schemas.throttle_record import ThrottleByMinuteRow
from tests.pipeline.tables.event_table import EventTable

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
    return TablesReader(str(root), JobSigns(lambda: None))


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
