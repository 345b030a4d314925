"""Which throttles may still run, by what `throttle_events` has; and how much of it is read to find them."""

from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tables.reading import TimeSlices, last_throttles, read_table
from pipeline.tables.throttles import recent_events, running_throttles
from tests.pipeline.tables.event_table import EventTable


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A hundred rows, one per ms from 1 000 on, then ten rows, one per 100 ms from 2 000 on."""
    for times_ms in (range(1_000, 1_100), range(2_000, 3_000, 100)):
        write_deltalake(str(tmp_path), pa.table({"at_ms": list(times_ms)}), mode="append")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "rows"),
    [(0, 10_000, 110), (1_000, 1_100, 100), (1_050, 2_000, 50), (0, 1_000, 0), (2_000, 2_450, 5), (5_000, 9_000, 0)],
)
def test_rows_of_a_range_are_estimated_from_the_files_alone(uri: str, start_ms: int, end_ms: int, rows: int) -> None:
    assert TimeSlices(uri, "at_ms").estimated_rows(start_ms, end_ms) == pytest.approx(rows, abs=1)


def test_a_slice_has_the_rows_that_meet_further_conditions(tmp_path: Path) -> None:
    for time_epoch, times_ms in ((0, range(1_000, 1_100)), (1, range(900, 950))):
        rows = pa.table({"at_ms": list(times_ms), "time_epoch": [time_epoch] * len(times_ms)})
        write_deltalake(str(tmp_path), rows, mode="append")
    table = TimeSlices(str(tmp_path), "at_ms")
    assert table.last_time(0, 9_999) == 1_099
    assert table.read(["at_ms"], 0, 1_010, [("time_epoch", "=", 0)]).num_rows == 10


@pytest.fixture
def special_uri(tmp_path: Path) -> str:
    special_uri = str(tmp_path / "a folder, é 100%" / "table")
    for first in (0, 3):
        rows = {"at_ms": range(first, first + 3), "name": ["n"] * 3, "date": [date(1970, 1, 1)] * 3}
        write_deltalake(special_uri, pa.table(rows), mode="append", partition_by=["date"])
    return special_uri


def test_all_rows_are_read_from_a_folder_with_special_characters(special_uri: str) -> None:
    assert sorted(read_table(special_uri)["at_ms"].to_pylist()) == [0, 1, 2, 3, 4, 5]
    assert TimeSlices(special_uri, "at_ms", dictionaries=["name"]).read(["name"], 1, 3)["name"].to_pylist() == [
        "n",
        "n",
    ]


T0_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def events(tmp_path: Path) -> EventTable:
    return EventTable(tmp_path)


def listed(events: EventTable, now_ms: int) -> list[str | None]:
    return [row["client_id"] for row in running_throttles(events.root, now_ms)]


def test_a_new_outbox_has_no_record_and_no_throttle(events: EventTable) -> None:
    assert events.running() == (-1, [])
    assert listed(events, T0_MS) == []
    assert recent_events(events.root, 5) == []


def test_a_client_is_throttled_by_its_last_record_only(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 5_000), ("b", "throttle", T0_MS, 9_000), ("c", "throttle", T0_MS, 7_000))
    events.write(("a", "release", T0_MS + 100, 0), ("c", "throttle", T0_MS + 100, 9_000))
    assert events.running() == (4, ["b", "c"])
    assert listed(events, T0_MS + 8_999) == ["c", "b"]
    assert listed(events, T0_MS + 9_000) == ["c"]
    assert listed(events, T0_MS + 9_100) == []


def test_a_user_is_held_for_each_quota_type_beside_its_clients(events: EventTable) -> None:
    events.write((None, "throttle", T0_MS, 5_000), quota_type="producer_byte_rate")
    events.write((None, "throttle", T0_MS, 5_000), quota_type="request_percentage")
    events.write(("", "throttle", T0_MS, 5_000), quota_type="consumer_byte_rate")
    events.write((None, "throttle", T0_MS + 100, 9_000), quota_type="request_percentage")
    events.write((None, "release", T0_MS + 200, 0), quota_type="producer_byte_rate")
    events.write(("", "throttle", T0_MS + 300, 5_000), quota_type="producer_byte_rate")
    _, running = events.outbox.newest()
    held = sorted(zip(running["publish_seq"].to_pylist(), running["client_id"].to_pylist(), strict=True))
    assert held == [(3, None), (5, "")]
    rows = running_throttles(events.root, T0_MS + 1_000)
    assert [row["publish_seq"] for row in rows] == [3, 5], "the job and the command line agree"


def test_an_early_release_of_a_long_throttle_counts_long_before_its_end(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 3 * DAY_MS), ("b", "throttle", T0_MS, 3 * DAY_MS))
    events.write(("a", "release", T0_MS + 100, 0))
    events.write(("c", "throttle", T0_MS + 2 * DAY_MS, 1_000))
    assert events.running() == (3, ["b", "c"])
    assert listed(events, T0_MS + 2 * DAY_MS) == ["b", "c"]


def test_the_newest_records_are_read_without_the_older_ones(events: EventTable) -> None:
    for number in range(5):
        events.write((f"{number}", "throttle", T0_MS + number, 500))
    assert [row["client_id"] for row in recent_events(events.root, 3)] == ["4", "3", "2"]
    assert [row["client_id"] for row in recent_events(events.root, 9)] == ["4", "3", "2", "1", "0"]


def test_a_gap_in_the_numbers_hides_no_record(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 500), ("b", "throttle", T0_MS, 500))
    events.seq += 100
    events.write(("c", "throttle", T0_MS + 5, 500))
    assert [row["client_id"] for row in recent_events(events.root, 2)] == ["c", "b"]


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([("a", "produce"), ("a", "fetch"), ("", "fetch"), (None, "produce"), (None, "fetch")]),
        st.sampled_from(["throttle", "release"]),
        st.integers(0, 2 * HOUR_MS),
        st.sampled_from([0, 500, HOUR_MS, DAY_MS, 4 * DAY_MS]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=20)
@given(RECORDS, st.integers(-HOUR_MS, 5 * DAY_MS))
def test_it_is_what_going_through_all_records_comes_to(
    records: list[tuple[tuple[str | None, str], str, int, int]], since_ms: int
) -> None:
    with TemporaryDirectory() as folder:
        events = EventTable(Path(folder))
        last: dict[tuple[str | None, str], tuple[str, int]] = {}
        at_ms = T0_MS
        for (client_id, quota_type), action, later_ms, throttle_time_ms in records:
            at_ms += later_ms
            span_ms = throttle_time_ms if action == "throttle" else 0
            events.write((client_id, action, at_ms, span_ms), quota_type=quota_type)
            last[client_id, quota_type if client_id is None else ""] = action, at_ms + span_ms
        found = last_throttles(events.table, T0_MS + since_ms)
        running = listed(events, T0_MS + since_ms - 1)
    expected = [name for (name, _), (action, end) in last.items() if action == "throttle" and end >= T0_MS + since_ms]
    assert sorted(found["client_id"].to_pylist(), key=str) == sorted(expected, key=str)
    assert sorted(running, key=str) == sorted(expected, key=str), (
        "the job and the command line read them in ways of their own"
    )
