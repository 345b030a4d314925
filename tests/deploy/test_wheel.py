"""The wheel: it holds the four packages with all their files, and nothing else of the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from deploy.reporter.__main__ import make
from pipeline.meter.reporter import REPORTER_JAR
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "quota", "purgatory", "schemas")
LOCK = "pipeline/jvm/jars.lock"


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make(REPORTER_JAR)
    return build(tmp_path_factory.mktemp("wheel"))


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def of_the_checkout() -> set[str]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_has_the_four_packages_the_jar_lock_the_sql_and_nothing_else(
    wheel: Path,
) -> None:
    inside = {name for name in content(wheel) if not PurePosixPath(name).parts[0].endswith(".dist-info")}
    sql = {f"pipeline/tables/sql/{path.name}" for path in (ROOT / "deploy" / "sql").iterdir()}
    assert inside == of_the_checkout() | {LOCK} | sql


def test_what_the_demo_shows_and_starts_from_is_among_them(wheel: Path) -> None:
    inside = content(wheel)
    for needed in ("pipeline/dashboard/static/index.html", "pipeline/stream/log4j2.properties"):
        assert inside[needed]
    assert inside[LOCK] == (ROOT / "deploy" / "jvm" / "jars.lock").read_bytes()


def test_the_reporters_jar_is_among_them_as_its_sources_are_compiled(wheel: Path, tmp_path: Path) -> None:
    jar = tmp_path / "again.jar"
    make(jar)
    assert content(wheel)["pipeline/meter/kquota-reporter.jar"] == jar.read_bytes()


def test_a_second_build_is_the_same_to_the_byte(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == wheel.read_bytes()


def test_its_name_has_the_one_version_of_the_project(wheel: Path) -> None:
    metadata = next(text for name, text in content(wheel).items() if name.endswith(".dist-info/METADATA")).decode()
    (version,) = (line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Version: "))
    assert wheel.name == f"kafka_quota_pipeline-{version}-py3-none-any.whl"
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")
