"""What `kquota doctor` says of a checkpoint without a JVM."""

from pathlib import Path

import pytest

from pipeline.job.diagnosis import Diagnosis, diagnose
from pipeline.settings.model import Settings, StreamSettings, TablesSettings
from pipeline.tables.layout import create_missing
from tests.pipeline.stream.test_checkpoint import write_checkpoint


def findings(root: Path, checkpoint: str) -> list[Diagnosis]:
    tables = TablesSettings(root=str(root / "tables"))
    create_missing(tables.root)
    settings = Settings(tables=tables, stream=StreamSettings(checkpoint=checkpoint), run_dir=root)
    return [finding for finding in diagnose(settings) if finding.subject == "checkpoint"]


@pytest.mark.parametrize("checkpoint", ["s3://bucket/checkpoint", "abfss://container@account/checkpoint"])
def test_a_checkpoint_that_only_spark_can_read_is_said_to_be_unchecked(tmp_path: Path, checkpoint: str) -> None:
    (finding,) = findings(tmp_path, checkpoint)
    assert finding.severity == "warning"
    assert finding.text.startswith(f"not looked at: only Spark can read {checkpoint}")


@pytest.mark.parametrize("is_uri", [False, True])
def test_a_checkpoint_on_this_disk_is_compared_with_the_tables(tmp_path: Path, is_uri: bool) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint = folder.as_uri() if is_uri else str(folder)
    assert findings(tmp_path, checkpoint) == [
        Diagnosis("ok", "checkpoint", f"none at {checkpoint}: the job begins where its tables end")
    ]
    write_checkpoint(folder, planned=3, committed=3)
    (finding,) = findings(tmp_path, checkpoint)
    assert finding.severity == "error"
    assert f"'checkpoint' {checkpoint} must have written these tables" in finding.text
