"""The jar lock: its text, and the committed file."""

import re
from pathlib import Path

import pytest

from deploy.jvm.__main__ import format_lock, jars_of_pom
from pipeline.errors import PipelineError
from pipeline.jvm.jars import LockedJar, lock_path, read_lock

DIGEST = "ab" * 32


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    jars = [
        LockedJar("spark", "io.delta", "delta-storage", "4.4.0", "maven", 7, DIGEST, note="why this version"),
        LockedJar("broker", "org.slf4j", "slf4j-api", "2.0.17", "pyspark", 8, DIGEST),
    ]
    (tmp_path / "jars.lock").write_text(format_lock(jars))
    assert read_lock(tmp_path / "jars.lock") == jars


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"spark a:b:1 maven 7 {DIGEST} more", "has 6 fields, not 5"),
        (f"peer a:b:1 maven 7 {DIGEST}", "set 'peer' is none of spark, broker, s3"),
        (f"spark a:b maven 7 {DIGEST}", "coordinates 'a:b' are not group:artifact:version"),
        (f"spark a:b:1 https://x 7 {DIGEST}", "origin 'https://x' is none of maven, pyspark"),
        (f"spark a:b:1 maven -7 {DIGEST}", "bytes '-7' is not a whole number"),
        ("spark a:b:1 maven 7 abc", "sha256 'abc' is not 64 hex digits"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, reason: str) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"# note\n\n{line}\n")
    with pytest.raises(PipelineError, match=re.escape(reason)) as invalid:
        read_lock(lock)
    assert invalid.value.message.startswith(f"jar lock {lock}, line 3,")


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
    assert [(jar.jar_set, jar.coordinates, jar.origin, jar.note) for jar in read_lock()] == [
        (jar.jar_set, jar.coordinates, jar.origin, jar.note) for jar in named
    ]


def test_a_version_that_differs_says_why() -> None:
    odd = next(jar for jar in read_lock() if jar.artifact == "spark-token-provider-kafka-0-10_2.13")
    assert odd.version == "4.0.0"
    assert odd.note
