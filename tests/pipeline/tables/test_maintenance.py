from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing, table_uri
from pipeline.tables.maintenance import maintain
from schemas.arrow import conform
from schemas.sensor_state_row import SensorStateRow


def state(batch_id: int) -> pa.Table:
    rows = pa.table({"tokens": [float(batch_id)]})
    return conform(
        rows,
        SensorStateRow,
        cluster="c1",
        query_id="q1",
        batch_id=batch_id,
        evaluated_at_ms=1_700_000_000_000,
        broker_id="",
        sensor_user="alice",
        sensor_client_id="",
        quota_type="producer_byte_rate",
        refilled_at_ms=1_700_000_000_000,
    )


def test_upkeep_leaves_rows_and_versions_and_the_job_goes_on(tmp_path: Path) -> None:
    create_missing(str(tmp_path), [TABLES["sensor_state"]])
    uri = table_uri(str(tmp_path), "sensor_state")
    job = DeltaRsWriter(uri, "job")
    job.raise_epoch(1)
    for batch_id in range(10):
        job.append(state(batch_id), {"q1": batch_id}, {})
    upkeep = maintain(uri, many_files=5)
    assert (upkeep.compacted, len(DeltaTable(uri).file_uris())) == (True, 1)
    assert Path(uri, "_delta_log", f"{upkeep.version:020}.checkpoint.parquet").exists()
    assert not job.append(state(9), {"q1": 9}, {})
    assert job.append(state(10), {"q1": 10}, {})
    assert sorted(job.read(["batch_id"])["batch_id"].to_pylist()) == list(range(11))
    assert DeltaRsWriter(uri, "job").recorded_version("q1") == 10


def test_few_files_are_left_as_they_are(tmp_path: Path) -> None:
    create_missing(str(tmp_path), [TABLES["sensor_state"]])
    assert not maintain(table_uri(str(tmp_path), "sensor_state")).compacted
