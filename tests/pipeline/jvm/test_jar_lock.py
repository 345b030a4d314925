"""The jar lock: its text, and the committed file."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.jvm.__main__ import format_lock, jars_of_pom
from pipeline.errors import PipelineError
from pipeline.jvm.jars import LockedJar, lock_path, read_lock

DIGEST = "ab" * 32


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    jars = [
        LockedJar("spark", "io.delta", "delta-storage", "4.4.0", "maven", 7, DIGEST),
        LockedJar("broker", "org.slf4j", "slf4j-api", "2.0.17", "pyspark", 8, DIGEST),
    ]
    (tmp_path / "jars.lock").write_text(format_lock(jars, notes={jars[0].coordinates: "why this version"}))
    assert read_lock(tmp_path / "jars.lock") == jars
    assert "# why this version\nspark io.delta" in (tmp_path / "jars.lock").read_text()


@pytest.mark.parametrize(
    "line",
    [
        f"spark a:b:1 maven 7 {DIGEST} more",
        f"spark a:b maven 7 {DIGEST}",
        f"spark a:b:1 https://x 7 {DIGEST}",
        f"spark a:b:1 maven -7 {DIGEST}",
        "spark a:b:1 maven 7 abc",
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"# note\n\n{line}\n")
    with pytest.raises(PipelineError) as invalid:
        read_lock(lock)
    assert invalid.value.message.startswith(f"jar lock {lock}, line 3, is not `set group:artifact:version")


def test_a_missing_lock_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"jars\.lock cannot be read \(No such file or directory\)"):
        read_lock(tmp_path / "jars.lock")


@pytest.mark.parametrize("lock", ["jvm/jars.lock", "jvm/pom.xml", "requirements.lock"])
def test_locks_hold_no_addresses(lock: str) -> None:
    text = (lock_path().parents[1] / lock).read_text(encoding="utf-8")
    addresses = [found for found in re.findall(r"\S*://\S*", text) if "maven.apache.org/POM/" not in found]
    assert addresses == []
    assert not re.search(r"^--?[a-z]", text, re.MULTILINE)  # no options of pip


def test_the_lock_holds_what_the_manifest_names() -> None:
    named = jars_of_pom(lock_path().with_name("pom.xml"))
    assert [replace(jar, size_bytes=0, sha256="") for jar in read_lock()] == list(named)
    text = lock_path().read_text(encoding="utf-8")
    assert [
        note for jar, note in named.items() if note and f"# {note}\n{jar.jar_set} {jar.coordinates} " not in text
    ] == []


def test_a_version_that_differs_says_why() -> None:
    named = jars_of_pom(lock_path().with_name("pom.xml"))
    odd = next(jar for jar in named if jar.artifact == "spark-token-provider-kafka-0-10_2.13")
    assert odd.version == "4.0.0"
    assert named[odd]
