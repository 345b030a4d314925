"""One driver a job on a folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import Conflict
from pipeline.job.lock import JobLock

HOLD = """
import sys, time
from pathlib import Path
from pipeline.job.lock import JobLock
with JobLock(Path(sys.argv[1]), "nightly", *sys.argv[2:]):
    print("held", flush=True)
    time.sleep(3_600)
"""


def test_a_second_driver_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"held\n"
            with pytest.raises(Conflict, match=f"process {first.pid}") as refused, JobLock(tmp_path, "nightly"):
                pass
            assert refused.value.exit_code == 4
        finally:
            first.kill()


def test_the_lock_of_a_killed_driver_is_free(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        first.kill()
    with JobLock(tmp_path, "nightly"):
        pass


def test_jobs_of_other_names_share_a_folder(tmp_path: Path) -> None:
    with JobLock(tmp_path, "one"), JobLock(tmp_path, "two"):
        pass


def test_a_second_driver_on_the_tables_is_refused_whatever_its_name_and_run_folder(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "one"), str(tables)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"held\n"
            second = JobLock(tmp_path / "two", "other", str(tables))
            with pytest.raises(Conflict, match=f"process {first.pid}") as refused, second:
                pass
            assert f"({tables}/" in refused.value.message
            with JobLock(tmp_path / "two", "other"):
                pass
        finally:
            first.kill()


def test_tables_in_a_store_have_no_lock_beside_them(tmp_path: Path) -> None:
    with JobLock(tmp_path, "one", "s3://bucket/tables"), JobLock(tmp_path, "two", "s3://bucket/tables"):
        pass
