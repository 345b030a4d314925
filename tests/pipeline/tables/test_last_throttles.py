"""Which throttles may still run, by what `throttle_events` has; and how much of it is read to find them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tables.reading import last_throttles
from pipeline.tables.throttles import recent_events, running_throttles
from tests.pipeline.tables.event_table import EventTable

T0_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def events(tmp_path: Path) -> EventTable:
    return EventTable(tmp_path)


def listed(events: EventTable, now_ms: int) -> list[str]:
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


def test_an_early_release_of_a_long_throttle_counts_long_before_its_end(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 3 * DAY_MS), ("b", "throttle", T0_MS, 3 * DAY_MS))
    events.write(("a", "release", T0_MS + 100, 0))
    events.write(("c", "throttle", T0_MS + 2 * DAY_MS, 1_000))
    assert events.running() == (3, ["b", "c"])
    assert listed(events, T0_MS + 2 * DAY_MS) == ["b", "c"]


def test_what_is_overdue_at_a_start_is_taken_up_unless_it_was_over_for_a_day(events: EventTable) -> None:
    events.write(("old", "throttle", T0_MS - DAY_MS - 1, 0), ("overdue", "throttle", T0_MS - DAY_MS, 0))
    events.write(("last", "throttle", T0_MS, 50))
    assert events.running() == (2, ["last", "overdue"])


def test_only_the_rows_of_running_throttles_are_read_with_all_columns(events: EventTable) -> None:
    for start in range(0, 40, 10):
        for client in range(start, start + 10):
            at_ms = T0_MS + client * 1_000
            events.write((f"{client}", "throttle", at_ms, 500), (f"{client}", "release", at_ms + 500, 0))
    events.write(("a", "throttle", T0_MS + 50_000, 500), ("b", "throttle", T0_MS + 50_000, 500))
    assert events.running() == (81, ["a", "b"])
    assert events.table.whole_rows == 2


def test_of_clients_that_are_not_asked_for_no_whole_row_is_read(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 500), ("b", "throttle", T0_MS, 500), ("c", "throttle", T0_MS, 500))
    events.write(("a", "throttle", T0_MS + 100, 900))
    found = last_throttles(events.table, T0_MS, [("client_id", "in", ("a", "b"))])
    assert sorted(found["client_id"].to_pylist()) == ["a", "b"]
    assert events.table.whole_rows == 2, "the row of c is between them"


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
        st.sampled_from("abc"),
        st.sampled_from(["throttle", "release"]),
        st.integers(0, 2 * HOUR_MS),
        st.sampled_from([0, 500, HOUR_MS, DAY_MS, 4 * DAY_MS]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=20)
@given(RECORDS, st.integers(-HOUR_MS, 5 * DAY_MS))
def test_it_is_what_going_through_all_records_comes_to(records: list[tuple[str, str, int, int]], since_ms: int) -> None:
    with TemporaryDirectory() as folder:
        events = EventTable(Path(folder))
        last: dict[str, tuple[str, int]] = {}
        at_ms = T0_MS
        for client_id, action, later_ms, throttle_time_ms in records:
            at_ms += later_ms
            span_ms = throttle_time_ms if action == "throttle" else 0
            events.write((client_id, action, at_ms, span_ms))
            last[client_id] = action, at_ms + span_ms
        found = last_throttles(events.table, T0_MS + since_ms)
        running = listed(events, T0_MS + since_ms - 1)
    expected = {name for name, (action, end) in last.items() if action == "throttle" and end >= T0_MS + since_ms}
    assert sorted(found["client_id"].to_pylist()) == sorted(expected)
    assert sorted(running) == sorted(expected), "the job and the command line read them in ways of their own"
