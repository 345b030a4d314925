"""Fetching and checking jars, with an `mvn` that copies from a folder: without network or JVM."""

import hashlib
import re
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.jvm.__main__ import add_hashes
from pipeline.errors import PipelineError, Unreachable
from pipeline.jvm import jars as module
from pipeline.jvm.jars import JarStore, JarUnfit, LockedJar, lock_path, pyspark_jars_folder, read_lock

CONTENT = {"one-1.jar": b"first jar", "two-2.jar": b"second jar"}
_MVN = """#!/bin/sh
# Called in the folder of the download, with the project as `-f`. Fails as often as there are lines in `busy`.
here=$(dirname "$0")
echo "$(grep -c artifactItem\\> pom.xml)" >>"$here/calls"
if [ -s "$here/busy" ]; then
  sed -i 1d "$here/busy"
  printf '[INFO] begins\\n\\033[0m[\\033[1;31mERROR\\033[m] 429  Too Many Requests\\n'
  exit 1
fi
cp "$here"/shelf/* .
"""


def locked(file_name: str) -> LockedJar:
    artifact, _, version = file_name.removesuffix(".jar").partition("-")
    return LockedJar("spark", "org.x", artifact, version, hashlib.sha256(CONTENT[file_name]).hexdigest())


ONE, TWO = locked("one-1.jar"), locked("two-2.jar")


@pytest.fixture
def maven(tmp_path: Path) -> Path:
    """A folder with an `mvn` and with the jars that it brings, in `shelf`; `calls` has a line for each run."""
    folder = tmp_path / "maven"
    (folder / "shelf").mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / "shelf" / name).write_bytes(content)
    (folder / "mvn").write_text(_MVN)
    (folder / "mvn").chmod(0o755)
    return folder


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(module, "sleep", slept.append)
    return slept


def store(maven: Path, **environ: str) -> JarStore:
    cache = str(maven.parent / "cache")
    return JarStore([ONE, TWO], {"KQUOTA_CACHE": cache, "PATH": f"{maven}:/usr/bin:/bin", **environ})


def calls(maven: Path) -> int:
    path = maven / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_fetched_jars_are_kept_under_their_hash(maven: Path) -> None:
    jars, lines = store(maven), list[str]()
    assert jars.fetch(lines.append) == 2
    assert jars.check(ONE) == maven.parent / "cache" / "jars" / ONE.sha256 / "one-1.jar"
    assert jars.check(ONE).read_bytes() == b"first jar"
    assert len(lines) == 1
    assert store(maven).fetch(lines.append) == 0
    assert (len(lines), calls(maven)) == (1, 1), "a second fetch downloads nothing and says nothing"


def test_a_registry_that_is_busy_is_asked_again_after_growing_pauses(maven: Path, pauses: list[float]) -> None:
    (maven / "busy").write_text("1\n2\n")
    assert store(maven).fetch() == 2
    assert pauses == [0, 1, 3]


def test_a_jar_that_does_not_come_is_named_with_the_reason_and_others_stay(maven: Path, pauses: list[float]) -> None:
    (maven / "shelf" / "one-1.jar").unlink()
    jars = store(maven)
    with pytest.raises(Unreachable, match=r"jar 'one-1\.jar' could not be fetched: one-1\.jar did not come") as away:
        jars.fetch()
    assert away.value.exit_code == 6
    assert jars.check(TWO).exists()
    assert len(pauses) == calls(maven) == 3


@pytest.mark.usefixtures("pauses")
def test_a_delivered_jar_with_another_hash_is_not_taken(maven: Path) -> None:
    (maven / "shelf" / "one-1.jar").write_bytes(b"FIRST jar")
    jars = store(maven)
    with pytest.raises(Unreachable, match=r"one-1\.jar has sha256"):
        jars.fetch()
    assert not jars.path_of(ONE).exists()
    assert jars.check(TWO).exists()


@pytest.mark.parametrize("content", [b"first ja", b"firsT jar"])
def test_an_altered_jar_is_found_at_the_check_and_fetched_again(maven: Path, content: bytes) -> None:
    jars = store(maven)
    with pytest.raises(JarUnfit, match=r"'one-1\.jar' is missing at "):
        jars.check(ONE)
    jars.fetch()
    jars.path_of(ONE).write_bytes(content)
    with pytest.raises(JarUnfit, match=f"not the locked {ONE.sha256[:12]}…"):
        jars.check(ONE)
    assert list(jars.verify()) == [ONE]
    assert jars.fetch() == 1
    assert jars.verify() == {}


def test_a_folder_of_jars_is_used_as_it_is_and_never_filled(maven: Path, tmp_path: Path) -> None:
    folder = maven / "shelf"
    jars = store(maven, KQUOTA_JARS_DIR=str(folder))
    assert jars.fetch() == 0
    assert jars.check(ONE) == folder / "one-1.jar"
    with pytest.raises(JarUnfit, match=f"put the locked file into {tmp_path}, or unset KQUOTA_JARS_DIR"):
        store(maven, KQUOTA_JARS_DIR=str(tmp_path)).fetch()
    assert calls(maven) == 0


def test_under_spark_submit_pyspark_is_in_an_archive_and_its_jars_are_in_spark_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("pyspark/__init__.py", "")
    monkeypatch.syspath_prepend(archive)
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert pyspark_jars_folder({"SPARK_HOME": "/opt/spark"}) == Path("/opt/spark/jars")


DIGEST = "ab" * 32


def test_a_line_without_a_hash_gets_the_jars_one(maven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{maven}:/usr/bin:/bin")
    lock = tmp_path / "jars.lock"
    lock.write_text(f"# why\nspark org.x:one:1\n\nbroker org.slf4j:slf4j-api:2.0.17 {DIGEST}\n")
    assert add_hashes(lock) == 1
    assert read_lock(lock) == [ONE, LockedJar("broker", "org.slf4j", "slf4j-api", "2.0.17", DIGEST)]
    assert lock.read_text().startswith("# why\nspark org.x:one:1 ")
    lock.write_text("spark org.x:three:3\n")
    with pytest.raises(Unreachable, match=r"jar 'three-3\.jar' could not be fetched"):
        add_hashes(lock)
    assert lock.read_text() == "spark org.x:three:3\n"


@pytest.mark.parametrize("line", [f"spark a:b:1 {DIGEST} more", f"spark a:b {DIGEST}", "spark a:b:1 abc"])
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"# note\n\n{line}\n")
    with pytest.raises(PipelineError, match=rf"jar lock {lock}, line 3, is not `set group:artifact:version"):
        read_lock(lock)


@pytest.mark.parametrize("lock", ["jvm/jars.lock", "requirements.lock"])
def test_locks_hold_no_addresses(lock: str) -> None:
    text = (lock_path().parents[1] / lock).read_text(encoding="utf-8")
    assert re.findall(r"\S*://\S*", text) == []
    assert not re.search(r"^--?[a-z]", text, re.MULTILINE)  # no options of pip
