from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.queries import newest_batch, newest_batch_under, newest_rows
from schemas.arrow import arrow_schema, conform
from schemas.rows import BatchRow

NOON_MS = 1_700_000_000_000
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
    append(batches, 0, NOON_MS, NOON_MS + 5)
    append(batches, 1, NOON_MS + DAY_MS, NOON_MS + DAY_MS + 500)
    append(batches, 2, NOON_MS + DAY_MS, NOON_MS + DAY_MS + 5)
    append(batches, 3, NOON_MS - DAY_MS, NOON_MS + 9 * DAY_MS)
    newest = newest_batch(batches)
    assert newest is not None
    assert newest["batch_id"] == 1
    assert newest == newest_batch_under(str(tmp_path))
    assert sorted(newest_rows(batches, ["batch_id"])["batch_id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(("epoch_of_last", "newest"), [(1, 3), (0, 2)])
def test_a_batch_of_a_newer_time_epoch_is_newer_although_its_instant_is_before(
    tmp_path: Path, compacted: bool, epoch_of_last: int, newest: int
) -> None:
    batches = opened(tmp_path)
    append(batches, 0, NOON_MS, NOON_MS)
    append(batches, 1, NOON_MS + 2, NOON_MS)
    append(batches, 2, NOON_MS - DAY_MS, NOON_MS, time_epoch=1)
    append(batches, 3, NOON_MS - DAY_MS + 1, NOON_MS, time_epoch=epoch_of_last)
    if compacted:
        DeltaTable(batches.uri).optimize.compact()
    for found in (newest_batch(batches), newest_batch_under(str(tmp_path))):
        assert found is not None
        assert found["batch_id"] == newest


def test_a_table_without_rows_has_no_newest_batch(tmp_path: Path) -> None:
    assert newest_batch(opened(tmp_path)) is None
    assert newest_batch_under(str(tmp_path)) is None
