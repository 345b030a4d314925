"""Where the class archive of a Java and Spark's jars belongs, and when it is used."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.jvm.class_archive import class_archive, options_to_make, store_archive
from pipeline.jvm.java import find_java
from pipeline.settings.model import SparkSettings
from pipeline.stream import class_archive_making
from pipeline.stream.session import _session_conf


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A Java of a version, and a folder of jars, with a cache of their own; gives the archive's path."""
    monkeypatch.setenv("KQUOTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    (tmp_path / "jars").mkdir()
    (tmp_path / "java").mkdir()

    def archive(version: str) -> Path:
        (tmp_path / "java" / "release").write_text(f'JAVA_VERSION="{version}"')
        return class_archive(tmp_path / "java", tmp_path / "jars")

    return archive


def test_another_java_and_other_jars_have_another_archive(place: Callable[[str], Path], tmp_path: Path) -> None:
    archive = place("17.0.15")
    assert archive == place("17.0.15")
    assert archive != place("17.0.16")
    place("17.0.15")
    (tmp_path / "jars" / "new.jar").touch()
    assert archive != class_archive(tmp_path / "java", tmp_path / "jars")


def test_a_new_archive_takes_its_place_and_those_of_jars_that_are_gone_are_removed(
    place: Callable[[str], Path], tmp_path: Path
) -> None:
    gone, own = tmp_path / "gone", tmp_path / "jars"
    gone.mkdir()
    kept = []
    for version, jars in (("17", gone), ("21", own), ("25", own)):
        archive = place(version)
        archive.parent.mkdir(parents=True)
        draft = archive.with_suffix(".draft")
        draft.write_text(version)
        store_archive(draft, archive, jars)
        kept.append(archive)
        if jars == gone:
            gone.rmdir()
    assert [archive.exists() for archive in kept] == [False, True, True]
    assert kept[2].read_text() == "25"


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    ("version", "option"), [("17", "SharedArchiveFile"), ("24", "SharedArchiveFile"), ("25", "AOTCache")]
)
def test_the_session_starts_from_an_archive_that_is_there(
    place: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    option: str,
    is_there: bool,
) -> None:
    archive = place(version)
    monkeypatch.setattr("pipeline.stream.session.pyspark_jars_folder", lambda: tmp_path / "jars")
    if is_there:
        archive.parent.mkdir(parents=True)
        archive.touch()
    options = _session_conf(SparkSettings(), [], checkpoint_is_local=True, scratch=None)[
        "spark.driver.extraJavaOptions"
    ]
    assert (f"-XX:{option}={archive}" in options.split()) == is_there


@pytest.mark.parametrize(("version", "option"), [("24", "ArchiveClassesAtExit"), ("25", "AOTCacheOutput")])
def test_a_training_run_writes_the_kind_that_its_java_reads(
    place: Callable[[str], Path], version: str, option: str
) -> None:
    draft = place(version).with_name("draft") / place(version).name
    assert options_to_make(draft) == [f"-XX:{option}={draft}"]


def test_an_archive_that_is_there_is_kept(
    place: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = find_java()
    monkeypatch.setattr(class_archive_making, "find_java", lambda: java)
    monkeypatch.setattr(class_archive_making, "pyspark_jars_folder", lambda: tmp_path / "jars")
    archive = class_archive(java.home, tmp_path / "jars")
    archive.parent.mkdir(parents=True)
    archive.write_bytes(bytes(3_000_000))
    assert class_archive_making.make() == "3 MB, kept"
