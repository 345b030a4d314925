"""Which throttles may still run, by what `throttle_events` has; and how much of it is read to find them."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.last_throttles import last_throttles
from pipeline.tables.layout import TABLES, create_missing, table_uri
from pipeline.tables.port import Condition
from pipeline.tables.throttle_history import recent_events, running_throttles
from pipeline.tables.throttle_outbox import DeltaOutbox
from schemas.arrow import arrow_schema, conform
from schemas.throttle_event_row import ThrottleEventRow

T0_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class ReadingWriter(DeltaRsWriter):
    """Notes how many rows with all columns each read returns."""

    whole_rows = 0

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        rows = super().read(columns, where)
        self.whole_rows += rows.num_rows if columns is None else 0
        return rows


class Events:
    """A table `throttle_events` and its outbox."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        create_missing(self.root, [TABLES["throttle_events"]])
        self.table = ReadingWriter(table_uri(self.root, "throttle_events"), "job")
        self.table.raise_epoch(1)
        self.outbox = DeltaOutbox(self.table, "job")
        self.seq = 0

    def write(self, *records: tuple[str, str, int, int]) -> None:
        """Append records (client-id, action, wall clock when written, throttle time) in one commit."""
        filled: dict[str, Any] = {
            field.name: 0 if field.type == pa.int64() else 0.0 if field.type == pa.float64() else ""
            for field in arrow_schema(ThrottleEventRow)
            if not field.nullable and field.type in (pa.int64(), pa.float64(), pa.string())
        }
        rows = []
        for client_id, action, written_ms, throttle_time_ms in records:
            end_ms = written_ms + throttle_time_ms
            own = {"client_id": client_id, "action": action, "evaluated_at_ms": written_ms, "publish_seq": self.seq}
            rows.append({**filled, **own, "throttle_time_ms": throttle_time_ms, "throttled_until_ms": end_ms})
            self.seq += 1
        table = conform(pa.Table.from_pylist(rows), ThrottleEventRow, cluster="c", query_id="q", user="u")
        self.outbox.append(table, {"job:publish": self.seq - 1}, {})

    def running(self) -> tuple[int, list[str]]:
        highest, rows = self.outbox.newest()
        return highest, sorted(rows["client_id"].to_pylist())


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path)


def listed(events: Events, now_ms: int) -> list[str]:
    return [row["client_id"] for row in running_throttles(events.root, now_ms)]


def test_a_new_outbox_has_no_record_and_no_throttle(events: Events) -> None:
    assert events.running() == (-1, [])
    assert listed(events, T0_MS) == []
    assert recent_events(events.root, 5) == []


def test_a_client_is_throttled_by_its_last_record_only(events: Events) -> None:
    events.write(("a", "throttle", T0_MS, 5_000), ("b", "throttle", T0_MS, 9_000), ("c", "throttle", T0_MS, 7_000))
    events.write(("a", "release", T0_MS + 100, 0), ("c", "throttle", T0_MS + 100, 9_000))
    assert events.running() == (4, ["b", "c"])
    assert listed(events, T0_MS + 8_999) == ["c", "b"]
    assert listed(events, T0_MS + 9_000) == ["c"]
    assert listed(events, T0_MS + 9_100) == []


def test_an_early_release_of_a_long_throttle_counts_long_before_its_end(events: Events) -> None:
    events.write(("a", "throttle", T0_MS, 3 * DAY_MS), ("b", "throttle", T0_MS, 3 * DAY_MS))
    events.write(("a", "release", T0_MS + 100, 0))
    events.write(("c", "throttle", T0_MS + 2 * DAY_MS, 1_000))
    assert events.running() == (3, ["b", "c"])
    assert listed(events, T0_MS + 2 * DAY_MS) == ["b", "c"]


def test_what_is_overdue_at_a_start_is_taken_up_unless_it_was_over_for_a_day(events: Events) -> None:
    events.write(("old", "throttle", T0_MS - DAY_MS - 1, 0), ("overdue", "throttle", T0_MS - DAY_MS, 0))
    events.write(("last", "throttle", T0_MS, 50))
    assert events.running() == (2, ["last", "overdue"])


def test_only_the_rows_of_running_throttles_are_read_with_all_columns(events: Events) -> None:
    for start in range(0, 40, 10):
        for client in range(start, start + 10):
            at_ms = T0_MS + client * 1_000
            events.write((f"{client}", "throttle", at_ms, 500), (f"{client}", "release", at_ms + 500, 0))
    events.write(("a", "throttle", T0_MS + 50_000, 500), ("b", "throttle", T0_MS + 50_000, 500))
    assert events.running() == (81, ["a", "b"])
    assert events.table.whole_rows == 2


def test_the_newest_records_are_read_without_the_older_ones(events: Events) -> None:
    for number in range(5):
        events.write((f"{number}", "throttle", T0_MS + number, 500))
    assert [row["client_id"] for row in recent_events(events.root, 3)] == ["4", "3", "2"]
    assert [row["client_id"] for row in recent_events(events.root, 9)] == ["4", "3", "2", "1", "0"]


def test_a_gap_in_the_numbers_hides_no_record(events: Events) -> None:
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
        events = Events(Path(folder))
        last: dict[str, tuple[str, int]] = {}
        at_ms = T0_MS
        for client_id, action, later_ms, throttle_time_ms in records:
            at_ms += later_ms
            span_ms = throttle_time_ms if action == "throttle" else 0
            events.write((client_id, action, at_ms, span_ms))
            last[client_id] = action, at_ms + span_ms
        found = last_throttles(events.table, T0_MS + since_ms)
    expected = {name for name, (action, end) in last.items() if action == "throttle" and end >= T0_MS + since_ms}
    assert sorted(found["client_id"].to_pylist()) == sorted(expected)
