from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.fs import DeltaStorageHandler

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.reading import TimeSlices, read_table
from pipeline.tables.upkeep import trim

READS: dict[str, Callable[[str], Any]] = {
    "read_table": read_table,
    "read_table with a condition": lambda uri: read_table(uri, ["at_ms"], [("at_ms", ">=", 3)]),
    "a slice": lambda uri: TimeSlices(uri, "at_ms", dictionaries=["name"]).read(["name"], 0, 99),
    "the span": lambda uri: TimeSlices(uri, "at_ms").span(),
    "the writer's read": lambda uri: DeltaRsWriter(uri, "job").read(),
    "trim": lambda uri: trim(uri, "at_ms", 2),
}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "a folder, é 100%" / "table")
    for first in (0, 3):
        rows = {"at_ms": range(first, first + 3), "name": ["n"] * 3, "date": [date(1970, 1, 1)] * 3}
        write_deltalake(uri, pa.table(rows), mode="append", partition_by=["date"])
    return uri


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_no_file_of_a_local_table_is_read_through_python(
    uri: str, read: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = DeltaStorageHandler.open_input_file

    def open_input_file(handler: DeltaStorageHandler, path: str) -> pa.PythonFile:
        opened.append(path)
        return real(handler, path)

    monkeypatch.setattr(DeltaStorageHandler, "open_input_file", open_input_file)
    read(uri)
    assert opened == []


def test_all_rows_are_read_from_a_folder_with_special_characters(uri: str) -> None:
    assert sorted(read_table(uri)["at_ms"].to_pylist()) == [0, 1, 2, 3, 4, 5]
    assert TimeSlices(uri, "at_ms", dictionaries=["name"]).read(["name"], 1, 3)["name"].to_pylist() == ["n", "n"]
