"""Only the driver that started last writes the tables. A restart in its process is the same driver."""

from pathlib import Path

import pytest

from pipeline.errors import Conflict
from pipeline.stream.job_tables import DriverEpoch
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import create_missing


def writers(root: Path) -> dict[str, DeltaRsWriter]:
    return {name: DeltaRsWriter(table_uri(str(root), name), "job") for name in ("usage", "batches")}


def test_a_driver_that_was_fenced_does_not_take_over_again(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    first, second = DriverEpoch(), DriverEpoch()
    first.raise_in(writers(tmp_path), "job")
    first.raise_in(writers(tmp_path), "job")
    second.raise_in(writers(tmp_path), "job")
    with pytest.raises(Conflict, match="another driver"):
        first.raise_in(writers(tmp_path), "job")
    second.raise_in(writers(tmp_path), "job")
    assert writers(tmp_path)["usage"].recorded_version("job") == 4


def test_a_start_that_was_interrupted_between_two_tables_can_be_repeated(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    epoch = DriverEpoch()
    only_usage = {"usage": writers(tmp_path)["usage"]}
    epoch.raise_in(only_usage, "job")
    epoch.raise_in(writers(tmp_path), "job")
    assert {writer.recorded_version("job") for writer in writers(tmp_path).values()} == {2}
