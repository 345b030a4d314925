"""A release: its files, built twice; its wheel; and the list of all its parts, exactly the entries of the locks."""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from deploy.release.__main__ import IMAGE_LOCK, LOCK, ROOT, list_of_parts, make_release
from deploy.reporter.__main__ import make
from pipeline.meter.reporter import REPORTER_JAR
from tests.deploy.commands import VERSION, locked
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.long

JARS = (ROOT / "deploy" / "jvm" / "jars.lock").read_text("utf-8")


@pytest.fixture(scope="module")
def text() -> str:
    pytest.importorskip("cyclonedx_py", reason="needs cyclonedx-bom")
    return list_of_parts(LOCK)


def parts(text: str, kind: str) -> dict[str, set[str]]:
    found = {}
    for part in json.loads(text)["components"]:
        if part["purl"].startswith(f"pkg:{kind}/"):
            hashes = part.get("hashes") or [one for each in part["externalReferences"] for one in each["hashes"]]
            found[part["purl"].removeprefix(f"pkg:{kind}/")] = {digest["content"] for digest in hashes}
    assert found
    return found


PACKAGES = ("pipeline", "quota", "purgatory", "schemas")


def wheel_in(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make(REPORTER_JAR)
    return wheel_in(tmp_path_factory.mktemp("wheel"))


def test_a_second_build_is_the_same_to_the_byte(wheel: Path, tmp_path: Path) -> None:
    assert wheel_in(tmp_path).read_bytes() == wheel.read_bytes()


def test_the_list_has_every_package_and_jar_of_the_locks_with_its_hashes_and_nothing_else(text: str) -> None:
    assert parts(text, "pypi") == locked(LOCK)
    jars = [line.split() for line in JARS.splitlines() if line and not line.startswith("#")]
    wanted = {re.sub(r":(.*):(.*)", r"/\1@\2?type=jar", jar[1]): {jar[-1]} for jar in jars}
    assert parts(text, "maven") == wanted
    references = [part["bom-ref"] for part in json.loads(text)["components"]]
    assert len(references) == len(set(references)) == len(locked(LOCK)) + len(wanted)


def test_a_release_has_all_its_files_with_their_sums_and_the_parts_of_the_image(tmp_path: Path, text: str) -> None:
    released = {path.name: path.read_bytes() for path in make_release(tmp_path / "dist")}
    sources, image = f"kafka_quota_pipeline-{VERSION}.tar.gz", f"kquota-image-{VERSION}.cdx.json"
    assert sorted(released) == [
        "SHA256SUMS",
        f"kafka-quota-pipeline-{VERSION}.cdx.json",
        f"kafka_quota_pipeline-{VERSION}-py3-none-any.whl",
        sources,
        image,
        f"kquota-reporter-{VERSION}.jar",
    ]
    assert released[f"kafka-quota-pipeline-{VERSION}.cdx.json"].decode() == text
    sums = dict(line.split("  ")[::-1] for line in released.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in released.items()}
    with tarfile.open(fileobj=io.BytesIO(released[sources])) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"deploy/image/Dockerfile", "deploy/image/make.sh", "deploy/requirements.lock", ".dockerignore"} <= names
    assert parts(released[image].decode(), "pypi") == locked(IMAGE_LOCK)
    assert '"pytest"' not in released[image].decode()


def test_the_wheel_has_the_four_packages_the_jars_the_sql_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        found = {name: opened.read(name) for name in opened.namelist()}
    inside = {name for name in found if not PurePosixPath(name).parts[0].endswith(".dist-info")}
    sql = {f"pipeline/tables/sql/{path.name}" for path in (ROOT / "deploy" / "sql").iterdir()}
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    of_the_checkout = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert inside == of_the_checkout | {"pipeline/jvm/jars.lock"} | sql
    assert found["pipeline/jvm/jars.lock"].decode() == JARS
    jar = tmp_path / "again.jar"
    make(jar)
    assert found["pipeline/meter/kquota-reporter.jar"] == jar.read_bytes(), "as its sources are compiled"
