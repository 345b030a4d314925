"""Rows of the job lie in the partition of the day they were evaluated at, whatever day a client's event has."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.reading import TimeSlices, read_table
from pipeline.tables.upkeep import compact, trim
from schemas.arrow import conform
from schemas.usage import UsageRow

DAY_MS = 86_400_000
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2


def usage(batch_id: int, evaluated_at_ms: int, *starts_ms: int) -> pa.Table:
    names = {"broker_id": "", "user": "u", "client_id": "c", "request_count": 1}
    rows = [{"sample_start_ms": start_ms, "last_event_ms": start_ms, **names} for start_ms in starts_ms]
    same = {"batch_id": batch_id, "evaluated_at_ms": evaluated_at_ms}
    return conform(pa.Table.from_pylist(rows), UsageRow, cluster="c", query_id="q", quota_version=1, **same)


def of_the_sample_day(rows: pa.Table) -> pa.Table:
    """Rows as they were written while `date` was the day of `sample_start_ms`."""
    days = [datetime.fromtimestamp(at_ms / 1000, UTC).date() for at_ms in rows["sample_start_ms"].to_pylist()]
    return rows.set_column(rows.column_names.index("date"), rows.schema.field("date"), pa.array(days))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES["usage"]])
    return table_uri(str(tmp_path), "usage")


def test_events_of_many_days_in_one_batch_are_one_file(uri: str) -> None:
    writer = DeltaRsWriter(uri, "job")
    writer.raise_epoch(1)
    writer.append(usage(0, NOON_MS, *(NOON_MS - DAY_MS * days for days in range(400))), {"q": 0}, {})
    assert len(DeltaTable(uri).file_uris()) == 1
    assert read_table(uri, ["date"])["date"].unique().to_pylist() == [
        datetime.fromtimestamp(NOON_MS / 1000, UTC).date()
    ]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_table_with_rows_in_the_partition_of_their_sample_is_kept_up(uri: str, compacted: bool) -> None:
    old = of_the_sample_day(usage(0, NOON_MS, NOON_MS - 2 * DAY_MS, NOON_MS))
    write_deltalake(uri, old, mode="append")
    write_deltalake(uri, of_the_sample_day(usage(1, NOON_MS + 5, NOON_MS - DAY_MS)), mode="append")
    writer = DeltaRsWriter(uri, "job")
    writer.raise_epoch(1)
    writer.append(usage(2, NOON_MS + 6, NOON_MS - DAY_MS, NOON_MS), {"q": 2}, {})
    if compacted:
        compact(uri, many_files=0)
    assert sorted(read_table(uri, ["batch_id"])["batch_id"].to_pylist()) == [0, 0, 1, 2, 2]
    assert TimeSlices(uri, "evaluated_at_ms").read(["batch_id"], NOON_MS + 5, NOON_MS + 7).num_rows == 3
    assert [trim(uri, "evaluated_at_ms", NOON_MS + later_ms) for later_ms in (0, 5, 6, 7)] == [0, 2, 1, 2]
