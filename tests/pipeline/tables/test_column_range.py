from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from pipeline.tables.opening import newest_value, oldest_in, open_table


def test_the_newest_and_the_oldest_of_all_files_is_found_without_opening_them(tmp_path: Path) -> None:
    for at_ms in (5, 90, 7):
        write_deltalake(tmp_path / "t", pa.table({"at_ms": [at_ms - 1, at_ms]}), mode="append")
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    assert newest_value(str(tmp_path / "t"), "at_ms") == 90
    assert oldest_in(open_table(str(tmp_path / "t")), "at_ms") == 4


def test_without_rows_or_without_a_table_there_is_no_value(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"at_ms": pa.array([], pa.int64())}))
    assert newest_value(str(tmp_path / "t"), "at_ms") is None
    assert oldest_in(open_table(str(tmp_path / "t")), "at_ms") is None
    assert newest_value(str(tmp_path / "nowhere"), "at_ms") is None
