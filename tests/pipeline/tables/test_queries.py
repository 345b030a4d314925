"""Rows as mappings: the values that pyarrow gives for the same table, all of one version."""

from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import TableMissing
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import (
    StoredTable,
    TimeSlices,
    last_throttles,
    newest_batch,
    newest_batch_under,
    newest_rows,
    read_table,
)
from pipeline.tables.throttles import recent_events, running_throttles
from schemas.arrow import arrow_schema, conform
from schemas.rows import BatchRow
from schemas.throttle_record import holds
from tests.pipeline.tables.event_table import EventTable

T0_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture
def events(tmp_path: Path) -> EventTable:
    return EventTable(tmp_path)


def rows(events: EventTable) -> StoredTable:
    return StoredTable(events.table.uri)


def test_the_values_are_those_of_pyarrow_and_instants_are_in_utc(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 5_001), bound=None, tokens=-2.5)
    events.write(("é\n", "release", T0_MS, 0), bound=1.5)
    found = sorted(rows(events).rows(), key=lambda row: int(row["publish_seq"]))
    assert found == events.table.read().sort_by("publish_seq").to_pylist()
    assert (found[0]["bound"], found[0]["tokens"], found[1]["client_id"]) == (None, -2.5, "é\n")
    until = found[0]["throttled_until"]
    assert (until, until.tzinfo) == (datetime(2023, 11, 14, 22, 13, 25, 1_000, tzinfo=UTC), UTC)


def test_the_records_that_hold_a_client_are_those_of_the_rule_of_readers(events: EventTable) -> None:
    """Names with quotes, brackets and nothing in them; null is not the empty client-id."""
    names: list[str | None] = [None, "", "a", "it's", "[b]", "*"]
    for name in names:
        for excepted in [[], [""], ["a", "it's"], ["[b]"]] if name is None else [None]:
            events.write((name, "throttle", T0_MS, 1), except_client_ids=excepted)
    for name in names[1:]:
        found = rows(events).rows(None, [("client_id", "holds", name)])
        expected = [row["publish_seq"] for row in rows(events).rows() if holds(row, "u", name)]
        assert sorted(row["publish_seq"] for row in found) == sorted(expected)


def test_what_is_written_later_is_not_seen(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 5_000))
    before = rows(events)
    events.write(("b", "throttle", T0_MS, 5_000))
    assert (len(before.rows()), before.newest_value("publish_seq")) == (1, 0)
    assert (len(rows(events).rows()), rows(events).newest_value("publish_seq")) == (2, 1)


@pytest.mark.parametrize("later_ms", [0, 1, 1_999, 2_001, 60_000, HOUR_MS - 1, HOUR_MS + 1, 48 * HOUR_MS])
def test_the_newest_row_that_fits_is_found_however_old_it_is(events: EventTable, later_ms: int) -> None:
    events.write(("old", "throttle", T0_MS - HOUR_MS, 1), ("a", "throttle", T0_MS, 1), ("a", "release", T0_MS, 0))
    events.write(("b", "throttle", T0_MS + later_ms, 1))
    newest = rows(events).newest(["evaluated_at_ms", "publish_seq"], [("client_id", "in", ("a", "old"))])
    assert newest is not None
    assert (newest["client_id"], newest["action"]) == ("a", "release")
    assert rows(events).newest(["evaluated_at_ms"], [("client_id", "=", "c")]) is None


def test_a_table_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TableMissing):
        StoredTable(str(tmp_path / "nothing"))


BATCH_MS = 1_700_000_000_000
DAY_MS = 24 * HOUR_MS


def opened(root: Path) -> DeltaRsWriter:
    create_missing(str(root), [TABLES["batches"]])
    writer = DeltaRsWriter(table_uri(str(root), "batches"), "job")
    writer.raise_epoch(1)
    return writer


def append(
    writer: DeltaRsWriter, batch_id: int, evaluated_at_ms: int, processed_at_ms: int, time_epoch: int = 0
) -> None:
    zero = {field.name: 0 for field in arrow_schema(BatchRow) if field.type == pa.int64() and not field.nullable}
    text = {field.name: "" for field in arrow_schema(BatchRow) if field.type == pa.string() and not field.nullable}
    times = {"evaluated_at_ms": evaluated_at_ms, "processed_at_ms": processed_at_ms}
    row = {**zero, **text, **times, "batch_id": batch_id, "time_epoch": time_epoch}
    writer.append(conform(pa.Table.from_pylist([row]), BatchRow, cluster="c", query_id="q"), {"q": batch_id}, {})


def test_the_newest_batch_is_the_last_processed_of_those_with_the_newest_instant(tmp_path: Path) -> None:
    batches = opened(tmp_path)
    append(batches, 0, BATCH_MS, BATCH_MS + 5)
    append(batches, 1, BATCH_MS + DAY_MS, BATCH_MS + DAY_MS + 500)
    append(batches, 2, BATCH_MS + DAY_MS, BATCH_MS + DAY_MS + 5)
    append(batches, 3, BATCH_MS - DAY_MS, BATCH_MS + 9 * DAY_MS)
    newest = newest_batch(batches)
    assert newest is not None
    assert newest["batch_id"] == 1
    assert newest == newest_batch_under(str(tmp_path))
    assert sorted(newest_rows(batches)["batch_id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(("epoch_of_last", "newest"), [(1, 3), (0, 2)])
def test_a_batch_of_a_newer_time_epoch_is_newer_although_its_instant_is_before(
    tmp_path: Path, compacted: bool, epoch_of_last: int, newest: int
) -> None:
    batches = opened(tmp_path)
    append(batches, 0, BATCH_MS, BATCH_MS)
    append(batches, 1, BATCH_MS + 2, BATCH_MS)
    append(batches, 2, BATCH_MS - DAY_MS, BATCH_MS, time_epoch=1)
    append(batches, 3, BATCH_MS - DAY_MS + 1, BATCH_MS, time_epoch=epoch_of_last)
    if compacted:
        DeltaTable(batches.uri).optimize.compact()
    for found in (newest_batch(batches), newest_batch_under(str(tmp_path))):
        assert found is not None
        assert found["batch_id"] == newest


# Slices of time, and common questions.


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
