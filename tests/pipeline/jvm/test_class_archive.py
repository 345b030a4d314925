"""Where the class archive of a Java and a program's jars belongs, who makes it, and when it is used."""

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pipeline.demo import class_archives
from pipeline.jvm.java import class_archive, find_java, make_archive, options_to_make, store_archive
from pipeline.settings.model import SparkSettings
from pipeline.stream.session import jvm_settings


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A Java of a version, and a folder of jars, with a cache of their own; gives the archive's path."""
    monkeypatch.setenv("KQUOTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    (tmp_path / "jars").mkdir()
    (tmp_path / "java").mkdir()

    def archive(version: str) -> Path:
        (tmp_path / "java" / "release").write_text(f'JAVA_VERSION="{version}"')
        return class_archive("spark", tmp_path / "java", [tmp_path / "jars"])

    return archive


def test_another_java_and_other_jars_have_another_archive(place: Callable[[str], Path], tmp_path: Path) -> None:
    archive = place("17.0.15")
    assert archive == place("17.0.15")
    assert archive != place("17.0.16")
    place("17.0.15")
    (tmp_path / "jars" / "new.jar").touch()
    assert archive != class_archive("spark", tmp_path / "java", [tmp_path / "jars"])


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
        store_archive(draft, archive, [jars])
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
    options = jvm_settings(SparkSettings(), [], starts_local=True, scratch=None)["spark.driver.extraJavaOptions"]
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
    monkeypatch.setattr(class_archives, "find_java", lambda: java)
    monkeypatch.setattr(class_archives, "spark_jars", list)
    monkeypatch.setattr("pipeline.stream.session.pyspark_jars_folder", lambda: tmp_path / "jars")
    archive = class_archive("spark", java.home, [tmp_path / "jars"])
    archive.parent.mkdir(parents=True)
    archive.write_bytes(bytes(3_000_000))
    assert class_archives.make_spark_archive() == "3 MB, kept"


def test_the_same_jars_in_another_order_have_another_archive(place: Callable[[str], Path], tmp_path: Path) -> None:
    place("25")
    jars = [tmp_path / "jars", tmp_path / "java"]
    assert len({class_archive("broker", tmp_path / "java", order) for order in (jars, jars[::-1], jars[:1])}) == 3


def test_makers_that_work_at_once_do_not_disturb_each_other(place: Callable[[str], Path], tmp_path: Path) -> None:
    archive, jars = place("17"), [tmp_path / "jars"]
    all_have_begun = Barrier(3)

    def train(draft: Path) -> None:
        draft.write_bytes(bytes(1_000_000))
        all_have_begun.wait(60)
        draft.write_bytes(bytes(2_000_000))

    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(make_archive, archive, jars, train) for _ in range(3)]
    assert [future.result() for future in made] == ["2 MB"] * 3
    assert archive.stat().st_size == 2_000_000
    assert sorted(path.name for path in archive.parent.iterdir()) == ["made-for", "spark.jsa"]


def test_a_full_disk_or_an_unwritable_cache_leaves_no_archive_and_no_error(
    place: Callable[[str], Path], tmp_path: Path
) -> None:
    archive, jars = place("17"), [tmp_path / "jars"]

    def fill_the_disk(draft: Path) -> None:
        draft.write_bytes(b"begun")
        raise OSError(errno.ENOSPC, "No space left on device")

    assert make_archive(archive, jars, fill_the_disk) == "none: [Errno 28] No space left on device"
    assert make_archive(archive, jars, lambda _draft: "the JVM died") == "none: the JVM died"
    assert list(archive.parent.iterdir()) == []
    archive.parent.rmdir()
    archive.parent.touch()
    assert make_archive(archive, jars, Path.touch).startswith("none: ")


def test_an_archive_goes_when_one_of_its_jars_is_gone(place: Callable[[str], Path], tmp_path: Path) -> None:
    kept, gone = tmp_path / "jars" / "kept.jar", tmp_path / "jars" / "gone.jar"
    kept.touch()
    gone.touch()
    place("17")
    of_both, of_one = (class_archive("broker", tmp_path / "java", jars) for jars in ([kept, gone], [kept]))
    make_archive(of_both, [kept, gone], Path.touch)
    gone.unlink()
    make_archive(of_one, [kept], Path.touch)
    assert [of_both.exists(), of_one.exists()] == [False, True]


def test_what_a_killed_maker_has_left_is_deleted_an_hour_later(place: Callable[[str], Path], tmp_path: Path) -> None:
    archive = place("25")
    old, young = archive.parent / "draft-old", archive.parent / "draft-young"
    for draft in (old, young):
        (draft / "broker").mkdir(parents=True)
    os.utime(old, (time.time() - 3_700,) * 2)

    def train(draft: Path) -> None:
        draft.touch()

    make_archive(archive, [tmp_path / "jars"], train)
    assert {path.name for path in archive.parent.iterdir()} == {archive.name, "made-for", "draft-young"}


@pytest.mark.parametrize(
    ("starts_local", "own", "expected"),
    [
        (True, {}, {"spark.driver.extraClassPath": "/a.jar:/b.jar"}),
        (True, {"spark.driver.extraClassPath": "/c", "spark.jars": "/d.jar"},
         {"spark.driver.extraClassPath": "/a.jar:/b.jar:/c", "spark.jars": "/d.jar"}),
        (False, {}, {"spark.jars": "/a.jar,/b.jar"}),
        (False, {"spark.driver.extraClassPath": "/c", "spark.jars": "/d.jar"},
         {"spark.driver.extraClassPath": "/c", "spark.jars": "/a.jar,/b.jar,/d.jar"}),
    ],
)  # fmt: skip
def test_jars_are_on_the_class_path_of_one_jvm_and_are_sent_to_executors_elsewhere(
    starts_local: bool, own: dict[str, str], expected: dict[str, str]
) -> None:
    settings = jvm_settings(
        SparkSettings(conf=own), [Path("/a.jar"), Path("/b.jar")], starts_local=starts_local, scratch=None
    )
    assert {key: settings[key] for key in ("spark.driver.extraClassPath", "spark.jars") if key in settings} == expected
