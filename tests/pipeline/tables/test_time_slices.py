from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from pipeline.errors import TableMissing
from pipeline.tables.reading import TimeSlices


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


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), Schema([Field("at_ms", PrimitiveType("long"))]))
    assert TimeSlices(str(tmp_path), "at_ms").estimated_rows(0, 10) == 0


def test_an_older_version_can_be_read(uri: str) -> None:
    assert TimeSlices(uri, "at_ms", version=0).read(["at_ms"], 0, 10_000).num_rows == 100
    assert TimeSlices(uri, "at_ms").version == 1


def test_the_rows_of_one_time_epoch_are_asked_for_as_those_of_all(tmp_path: Path) -> None:
    for time_epoch, times_ms in ((0, range(1_000, 1_100)), (1, range(900, 950))):
        rows = pa.table({"at_ms": list(times_ms), "time_epoch": [time_epoch] * len(times_ms)})
        write_deltalake(str(tmp_path), rows, mode="append")
    whole = TimeSlices(str(tmp_path), "at_ms")
    for table, last_ms in ((whole, 1_099), (TimeSlices(str(tmp_path), "at_ms", time_epoch=1), 949), (whole, 1_099)):
        assert (table.first_time(0, 9_999), table.last_time(0, 9_999)) == (900, last_ms)
    assert whole.read(["at_ms"], 0, 1_010, [("time_epoch", "=", 0)]).num_rows == 10


def test_a_missing_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TableMissing):
        TimeSlices(str(tmp_path / "none"), "at_ms")
