"""What executors get is all that a replay imports of this project."""

import subprocess
from pathlib import Path
from zipfile import ZipFile

from pipeline.replay.shipped_package import NEEDED, zip_package
from tests.spark_cluster.programs import python_without_us
from tests.waiting import PATIENCE_SECONDS


def answer(python: Path, search_path: str, program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(python), "-c", program],
        cwd=python.parent,
        env={"PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_a_python_with_the_needed_packages_replays_from_the_zip_alone(tmp_path: Path) -> None:
    python, shipped = python_without_us(tmp_path), zip_package(tmp_path)
    program = "import pipeline.replay.part_replay as replay; print(replay.__file__)"
    assert "No module named 'pipeline" in answer(python, "", program).stderr
    done = answer(python, str(shipped), program)
    assert done.stdout.strip() == f"{shipped}/pipeline/replay/part_replay.py", done.stderr


def test_what_is_said_to_be_needed_is_what_a_replay_loads(tmp_path: Path) -> None:
    program = (
        "import sys, pipeline.replay.part_replay, pipeline.replay.usage_batches;"
        "print(sorted({name.split('.')[0] for name in sys.modules if 'site-packages' in"
        " str(getattr(sys.modules[name], '__file__', ''))}))"
    )
    loaded = answer(python_without_us(tmp_path), str(zip_package(tmp_path)), program).stdout
    for package in NEEDED:
        assert repr(package) in loaded
    for engine in ("pyspark", "delta", "kafka", "typer"):
        assert repr(engine) not in loaded


def test_a_second_zip_takes_the_place_of_the_first(tmp_path: Path) -> None:
    first = zip_package(tmp_path)
    names = ZipFile(first).namelist()
    assert {name.split("/")[0] for name in names} == {"pipeline", "purgatory", "quota", "schemas"}
    assert ZipFile(zip_package(tmp_path)).namelist() == names
