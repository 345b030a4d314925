import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.errors import Conflict
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.upkeep import clean, compact, trim
from schemas.arrow import conform
from schemas.rows import SensorStateRow

NOON_MS = 1_699_963_200_000 + 43_200_000
DAY_MS = 86_400_000


def state(batch_id: int, evaluated_at_ms: int = NOON_MS) -> pa.Table:
    rows = pa.table({"tokens": [float(batch_id)]})
    return conform(
        rows,
        SensorStateRow,
        cluster="c1",
        query_id="q1",
        batch_id=batch_id,
        evaluated_at_ms=evaluated_at_ms,
        broker_id="",
        sensor_user="alice",
        sensor_client_id="",
        quota_type="producer_byte_rate",
        refilled_at_ms=NOON_MS,
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES["sensor_state"]])
    return table_uri(str(tmp_path), "sensor_state")


@pytest.fixture
def job(uri: str) -> DeltaRsWriter:
    writer = DeltaRsWriter(uri, "job")
    writer.raise_epoch(1)
    return writer


def kept(job: DeltaRsWriter) -> list[int]:
    return sorted(job.read(["batch_id"])["batch_id"].to_pylist())


def test_compaction_and_cleaning_keep_rows_and_versions_and_the_job_can_continue(uri: str, job: DeltaRsWriter) -> None:
    for batch_id in range(10):
        job.append(state(batch_id), {"q1": batch_id}, {})
    assert compact(uri, many_files=5)
    clean(uri)
    assert len(DeltaTable(uri).file_uris()) == 1
    assert Path(uri, "_delta_log", f"{DeltaTable(uri).version():020}.checkpoint.parquet").exists()
    assert not job.append(state(9), {"q1": 9}, {})
    assert job.append(state(10), {"q1": 10}, {})
    assert kept(job) == list(range(11))
    assert DeltaRsWriter(uri, "job").recorded_version("q1") == 10


def test_a_table_with_few_files_is_not_compacted(uri: str, job: DeltaRsWriter) -> None:
    job.append(state(0), {"q1": 0}, {})
    version = DeltaTable(uri).version()
    assert not compact(uri, many_files=1)
    assert DeltaTable(uri).version() == version


@pytest.mark.parametrize(
    ("before_ms", "left"),
    [
        (NOON_MS - DAY_MS, [0, 1, 2, 3]),  # nothing is older; a row at this instant stays
        (NOON_MS - DAY_MS + 1, [1, 2, 3]),
        (NOON_MS, [1, 2, 3]),
        (NOON_MS + 1, [2, 3]),
        (NOON_MS + 2, [3]),
        (NOON_MS + DAY_MS, []),
    ],
)
def test_trimming_deletes_the_rows_before_the_instant_and_no_others(
    uri: str, job: DeltaRsWriter, before_ms: int, left: list[int]
) -> None:
    for batch_id, at_ms in enumerate((NOON_MS - DAY_MS, NOON_MS, NOON_MS + 1, NOON_MS + 2)):
        job.append(state(batch_id, at_ms), {"q1": batch_id}, {})
    compact(uri, many_files=0)
    assert trim(uri, "evaluated_at_ms", before_ms) == 4 - len(left)
    assert kept(job) == left
    version = DeltaTable(uri).version()
    assert trim(uri, "evaluated_at_ms", before_ms) == 0
    assert DeltaTable(uri).version() == version, "nothing to delete, no commit"


def test_upkeep_while_the_job_writes_loses_no_rows(uri: str, job: DeltaRsWriter) -> None:
    def write() -> None:
        for batch_id in range(60):
            job.append(state(batch_id, NOON_MS + batch_id), {"q1": batch_id}, {})
            time.sleep(0.03)

    writing = Thread(target=write)
    writing.start()
    trimmed = 0
    while writing.is_alive():
        with suppress(Conflict):  # on a slow machine other commits come first at every attempt; the next round does it
            trimmed += trim(uri, "evaluated_at_ms", NOON_MS + 20)
            compact(uri, many_files=3)
    writing.join()
    trimmed += trim(uri, "evaluated_at_ms", NOON_MS + 20)
    assert trimmed == 20
    assert kept(job) == list(range(20, 60))
