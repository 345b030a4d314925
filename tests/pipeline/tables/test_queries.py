"""Rows as mappings: the values that pyarrow gives for the same table, all of one version."""

from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tables.delta_rs import DeltaRsWriter
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
from schemas.arrow import conform
from schemas.rows import BatchRow
from schemas.throttle_record import holds
from tests.pipeline.tables.factories import EventTable, filled, job_writer

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


@pytest.mark.parametrize("later_ms", [0, 1, 1_999, 2_001, 60_000, HOUR_MS - 1, HOUR_MS + 1, 48 * HOUR_MS])
def test_the_newest_row_that_fits_is_found_however_old_it_is(events: EventTable, later_ms: int) -> None:
    events.write(("old", "throttle", T0_MS - HOUR_MS, 1), ("a", "throttle", T0_MS, 1), ("a", "release", T0_MS, 0))
    events.write(("b", "throttle", T0_MS + later_ms, 1))
    newest = rows(events).newest(["evaluated_at_ms", "publish_seq"], [("client_id", "in", ("a", "old"))])
    assert newest is not None
    assert (newest["client_id"], newest["action"]) == ("a", "release")
    assert rows(events).newest(["evaluated_at_ms"], [("client_id", "=", "c")]) is None


BATCH_MS = 1_700_000_000_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def batches(tmp_path: Path) -> DeltaRsWriter:
    return job_writer(tmp_path, "batches")


def append(
    writer: DeltaRsWriter, batch_id: int, evaluated_at_ms: int, processed_at_ms: int = BATCH_MS, time_epoch: int = 0
) -> None:
    times = {"evaluated_at_ms": evaluated_at_ms, "processed_at_ms": processed_at_ms}
    row = filled(BatchRow, **times, batch_id=batch_id, time_epoch=time_epoch)
    writer.append(conform(pa.Table.from_pylist([row]), BatchRow, cluster="c", query_id="q"), {"q": batch_id}, {})


def test_the_newest_batch_is_the_last_one_of_the_newest_instant(batches: DeltaRsWriter, tmp_path: Path) -> None:
    append(batches, 0, BATCH_MS, BATCH_MS + 5)
    append(batches, 1, BATCH_MS + DAY_MS, BATCH_MS + DAY_MS + 500)
    append(batches, 2, BATCH_MS + DAY_MS, BATCH_MS + DAY_MS + 5)
    append(batches, 3, BATCH_MS - DAY_MS, BATCH_MS + 9 * DAY_MS)
    newest = newest_batch(batches)
    assert newest is not None
    assert newest["batch_id"] == 2
    assert newest == newest_batch_under(str(tmp_path))
    assert sorted(newest_rows(batches)["batch_id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(("epoch_of_last", "newest"), [(1, 3), (0, 2)])
def test_a_newer_time_epoch_is_newer(batches: DeltaRsWriter, compacted: bool, epoch_of_last: int, newest: int) -> None:
    append(batches, 0, BATCH_MS)
    append(batches, 1, BATCH_MS + 2)
    append(batches, 2, BATCH_MS - DAY_MS, time_epoch=1)
    append(batches, 3, BATCH_MS - DAY_MS + 1, time_epoch=epoch_of_last)
    if compacted:
        DeltaTable(batches.uri).optimize.compact()
    found = newest_batch(batches)
    assert found is not None
    assert found["batch_id"] == newest


# Slices of time, and common questions.


def test_all_rows_are_read_from_a_folder_with_special_characters(tmp_path: Path) -> None:
    uri = str(tmp_path / "a folder, é 100%" / "table")
    for first in (0, 3):
        rows = {"at_ms": range(first, first + 3), "name": ["n"] * 3, "date": [date(1970, 1, 1)] * 3}
        write_deltalake(uri, pa.table(rows), mode="append", partition_by=["date"])
    assert sorted(read_table(uri)["at_ms"].to_pylist()) == [0, 1, 2, 3, 4, 5]
    assert TimeSlices(uri, "at_ms", dictionaries=["name"]).read(["name"], 1, 3)["name"].to_pylist() == ["n", "n"]
    ranges = ((0, 9), (1, 5), (0, 3), (6, 9))
    assert [TimeSlices(uri, "at_ms").estimated_rows(*ends) for ends in ranges] == [6, 4, 3, 0]


def listed(events: EventTable, now_ms: int) -> list[str | None]:
    return [row["client_id"] for row in running_throttles(events.root, now_ms)]


def test_an_early_release_of_a_long_throttle_counts_long_before_its_end(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 3 * DAY_MS), ("b", "throttle", T0_MS, 3 * DAY_MS))
    events.write(("a", "release", T0_MS + 100, 0))
    events.write(("c", "throttle", T0_MS + 2 * DAY_MS, 1_000))
    assert events.running() == (3, ["b", "c"])
    assert listed(events, T0_MS + 2 * DAY_MS) == ["b", "c"]
    assert listed(events, T0_MS + 2 * DAY_MS + 999) == ["b", "c"]
    assert listed(events, T0_MS + 2 * DAY_MS + 1_000) == ["b"]


def test_the_newest_records_are_found_also_over_a_gap_in_their_numbers(events: EventTable) -> None:
    for number in range(5):
        events.seq += 100 * (number == 2)
        events.write((f"{number}", "throttle", T0_MS + number, 500))
    assert [row["client_id"] for row in recent_events(events.root, 3)] == ["4", "3", "2"]
    assert [row["client_id"] for row in recent_events(events.root, 4)] == ["4", "3", "2", "1"]
    assert [row["client_id"] for row in recent_events(events.root, 9)] == ["4", "3", "2", "1", "0"]


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([("a", "produce"), ("a", "fetch"), ("", "fetch"), (None, "produce"), (None, "fetch")]),
        st.sampled_from(["throttle", "release"]),
        st.integers(0, 2 * HOUR_MS),
        st.sampled_from([0, 500, HOUR_MS, DAY_MS, 4 * DAY_MS]),
    ),
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
