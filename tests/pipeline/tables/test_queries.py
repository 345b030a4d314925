"""Rows as mappings: the values that pyarrow gives for the same table, all of one version."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.errors import TableMissing
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.queries import StoredTable, newest_batch, newest_batch_under, newest_rows
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
DAY_MS = 86_400_000


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
