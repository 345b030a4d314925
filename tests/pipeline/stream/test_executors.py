"""What executors get of this project is all that they import."""

import subprocess
from pathlib import Path
from zipfile import ZipFile

from pipeline.stream.query import NEEDED_TO_READ
from pipeline.stream.session import zip_package
from tests.spark_cluster.standalone import python_without_us
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


READER = ("pipeline.stream.usage_reader",)


def test_a_python_with_the_needed_packages_runs_from_the_zip_alone(tmp_path: Path) -> None:
    modules, needed = READER, NEEDED_TO_READ
    python, shipped = python_without_us(tmp_path), zip_package(tmp_path)
    program = (
        f"import sys, {', '.join(modules)}; print({modules[0]}.__file__);"
        "print(sorted({name.split('.')[0] for name in sys.modules if 'site-packages' in"
        " str(getattr(sys.modules[name], '__file__', ''))}))"
    )
    assert "No module named 'pipeline" in answer(python, "", program).stderr
    done = answer(python, str(shipped), program)
    path, loaded = done.stdout.splitlines()
    assert path == f"{shipped}/{modules[0].replace('.', '/')}.py", done.stderr
    for package in needed:
        assert repr(package) in loaded
    for engine in ("pyspark", "pandas", "delta", "kafka", "typer"):
        assert repr(engine) not in loaded


def test_a_second_zip_takes_the_place_of_the_first(tmp_path: Path) -> None:
    first = zip_package(tmp_path)
    names = ZipFile(first).namelist()
    assert {name.split("/")[0] for name in names} == {"pipeline", "purgatory", "quota", "schemas"}
    assert ZipFile(zip_package(tmp_path)).namelist() == names
