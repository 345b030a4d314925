"""Rows as mappings: the values that pyarrow gives for the same table, all of one version."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.errors import TableMissing
from pipeline.tables.queries import TableRows
from tests.pipeline.tables.event_table import EventTable

T0_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture
def events(tmp_path: Path) -> EventTable:
    return EventTable(tmp_path)


def rows(events: EventTable) -> TableRows:
    return TableRows(events.table.uri)


def test_the_values_are_those_of_pyarrow_and_instants_are_in_utc(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 5_001), bound=None, tokens=-2.5)
    events.write(("é\n", "release", T0_MS, 0), bound=1.5)
    found = sorted(rows(events).read(), key=lambda row: int(row["publish_seq"]))
    assert found == events.table.read().sort_by("publish_seq").to_pylist()
    assert (found[0]["bound"], found[0]["tokens"], found[1]["client_id"]) == (None, -2.5, "é\n")
    until = found[0]["throttled_until"]
    assert (until, until.tzinfo) == (datetime(2023, 11, 14, 22, 13, 25, 1_000, tzinfo=UTC), UTC)


def test_columns_are_in_the_order_asked_for(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 5_000))
    (row,) = rows(events).read(["user", "action"])
    assert list(row.items()) == [("user", "u"), ("action", "throttle")]
    assert list(rows(events).read()[0]) == events.table.read().column_names


def test_what_is_written_later_is_not_seen(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 5_000))
    before = rows(events)
    events.write(("b", "throttle", T0_MS, 5_000))
    assert (len(before.read()), before.newest_value("publish_seq")) == (1, 0)
    assert (len(rows(events).read()), rows(events).newest_value("publish_seq")) == (2, 1)


@pytest.mark.parametrize("later_ms", [0, 1, 1_999, 2_001, 60_000, HOUR_MS - 1, HOUR_MS + 1, 48 * HOUR_MS])
def test_the_newest_row_that_fits_is_found_however_old_it_is(events: EventTable, later_ms: int) -> None:
    events.write(("old", "throttle", T0_MS - HOUR_MS, 1), ("a", "throttle", T0_MS, 1), ("a", "release", T0_MS, 0))
    events.write(("b", "throttle", T0_MS + later_ms, 1))
    newest = rows(events).newest(["evaluated_at_ms", "publish_seq"], [("client_id", "in", ("a", "old"))])
    assert newest is not None
    assert (newest["client_id"], newest["action"]) == ("a", "release")
    assert rows(events).newest(["evaluated_at_ms"], [("client_id", "=", "c")]) is None


def test_of_each_client_the_last_row_counts_and_only_if_it_meets_the_conditions(events: EventTable) -> None:
    events.write(("a", "throttle", T0_MS, 1), ("b", "throttle", T0_MS, 1), ("a", "release", T0_MS, 0))
    throttles = [("action", "=", "throttle")]
    found = rows(events).last_of_each(["client_id"], "publish_seq", [], throttles)
    assert [row["client_id"] for row in found] == ["b"]
    found = rows(events).last_of_each(["client_id"], "publish_seq", [("publish_seq", "<", 1)], throttles)
    assert [row["client_id"] for row in found] == ["a"]


def test_without_rows_there_is_no_smallest_and_no_newest_one(events: EventTable) -> None:
    empty = rows(events)
    assert (empty.read(), empty.smallest("publish_seq"), empty.newest(["evaluated_at_ms"])) == ([], None, None)
    events.write(("a", "throttle", T0_MS, 1), ("b", "throttle", T0_MS, 1))
    assert rows(events).smallest("publish_seq", [("client_id", "=", "b")]) == 1


def test_a_table_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TableMissing):
        TableRows(str(tmp_path / "nothing"))
