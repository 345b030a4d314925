"""The folder for Spark's temporary files: which process it belongs to, and when it is removed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.stream.executors import remove_left_behind, scratch_folder
from tests.waiting import PATIENCE_SECONDS

MAKE_ONE = """
import sys
from pipeline.stream.executors import scratch_folder
(scratch_folder() / "copy.jar").write_bytes(bytes(1_000))
print(scratch_folder(), flush=True)
sys.stdin.read()
"""


def process_with_a_folder(parent: Path) -> "tuple[subprocess.Popen[str], Path]":
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE_ONE],
        env={**os.environ, "TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_running_one_is_not(tmp_path: Path) -> None:
    running, in_use = process_with_a_folder(tmp_path)
    killed, left_behind = process_with_a_folder(tmp_path)
    try:
        assert in_use.parent == left_behind.parent == tmp_path
        assert remove_left_behind(tmp_path) == 0
        killed.kill()
        killed.communicate()
        assert left_behind.exists()
        assert remove_left_behind(tmp_path) == 1
        assert not left_behind.exists()
        assert (in_use / "copy.jar").exists()
        running.communicate()
        assert list(tmp_path.iterdir()) == []
    finally:
        for process in (killed, running):
            process.kill()
            process.wait(PATIENCE_SECONDS)


@pytest.mark.spark
def test_spark_keeps_its_temporary_files_there_and_no_copies_of_jars(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.extraClassPath")
    assert any(scratch_folder().glob("spark-*"))
    assert not any(scratch_folder().rglob("*.jar"))
