"""Fetching and checking jars: with sources that are folders, so without network or JVM."""

import hashlib
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.command_line import command_text
from pipeline.errors import Unreachable
from pipeline.jvm.jars import (
    JarSource,
    JarStore,
    JarUnfit,
    LockedJar,
    fetch_missing,
    machine_sources,
    pyspark_jars_folder,
)

CONTENT = {"one-1.jar": b"first jar", "two-2.jar": b"second jar"}


def locked(file_name: str, origin: str = "maven", content: Mapping[str, bytes] = CONTENT) -> LockedJar:
    artifact, _, version = file_name.removesuffix(".jar").partition("-")
    data = content[file_name]
    return LockedJar("spark", "org.x", artifact, version, origin, len(data), hashlib.sha256(data).hexdigest())


ONE, TWO = locked("one-1.jar"), locked("two-2.jar")


@dataclass
class Shelf:
    """A source with these files; fails its first `failures` calls."""

    files: dict[str, bytes]
    failures: int = 0
    name: str = "shelf"
    attempts: int = 3
    calls: list[list[str]] = field(default_factory=list)

    @property
    def source(self) -> JarSource:
        return JarSource(self.name, self.copy, self.attempts)

    def copy(self, jars: Sequence[LockedJar], into: Path) -> str:
        self.calls.append([jar.file_name for jar in jars])
        if len(self.calls) <= self.failures:
            return "429 Too Many Requests"
        for jar in jars:
            if jar.file_name in self.files:
                (into / jar.file_name).write_bytes(self.files[jar.file_name])
        return "" if all(jar.file_name in self.files for jar in jars) else "404 Not Found"


def store(cache: Path, *sources: Shelf, pauses: list[float] | None = None, **environ: str) -> JarStore:
    paused = [] if pauses is None else pauses
    shelves = [shelf.source for shelf in sources]
    return JarStore([ONE, TWO], {"KQUOTA_CACHE": str(cache), **environ}, shelves, paused.append)


def test_fetched_jars_are_kept_under_their_hash(tmp_path: Path) -> None:
    jars = store(tmp_path, Shelf(CONTENT))
    report = jars.fetch()
    assert report.fetched == {ONE: "shelf", TWO: "shelf"}
    assert jars.check(ONE) == tmp_path / "jars" / ONE.sha256 / "one-1.jar"
    assert jars.check(ONE).read_bytes() == b"first jar"


def test_a_second_fetch_uses_no_source(tmp_path: Path) -> None:
    store(tmp_path, Shelf(CONTENT)).fetch()
    shelf = Shelf({})
    report = store(tmp_path, shelf).fetch()
    assert (report.fetched, report.cached, shelf.calls) == ({}, [ONE, TWO], [])


def test_the_next_source_is_asked_only_for_missing_jars(tmp_path: Path) -> None:
    near, far = Shelf({"one-1.jar": b"first jar"}, attempts=1), Shelf(CONTENT, name="far")
    report = store(tmp_path, near, far).fetch()
    assert report.fetched == {ONE: "shelf", TWO: "far"}
    assert far.calls == [["two-2.jar"]]


def test_a_source_that_is_busy_is_asked_again_after_growing_pauses(tmp_path: Path) -> None:
    pauses: list[float] = []
    store(tmp_path, Shelf(CONTENT, failures=2), pauses=pauses).fetch()
    assert pauses == [1.0, 3.0]


def test_many_jars_are_downloaded_some_at_a_time_and_each_download_is_told(tmp_path: Path) -> None:
    content = {f"part{number}-1.jar": b"%d" % number for number in range(30)}
    jars, lines = [locked(name, content=content) for name in content], list[str]()
    near, far = Shelf({}, attempts=1), Shelf(content, name="far")
    JarStore(jars, {"KQUOTA_CACHE": str(tmp_path)}, [near.source, far.source]).fetch(lines.append)
    assert [len(call) for call in far.calls] == [14, 14, 2]
    assert lines == [
        "30 jars from shelf",
        "1 to 14 of 30 jars from far",
        "15 to 28 of 30 jars from far",
        "29 to 30 of 30 jars from far",
    ]


def test_a_first_start_fetches_what_is_missing_and_a_later_one_does_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf(CONTENT)
    with caplog.at_level("INFO"):
        fetch_missing(store(tmp_path, shelf))
        told = list(caplog.messages)
        fetch_missing(store(tmp_path, shelf))
    assert told[0] == (f"2 jars of Spark and the broker, 0 MB, are not in {tmp_path}/jars yet: they are fetched once")
    assert told[1] == "2 jars from shelf"
    assert told == caplog.messages
    assert store(tmp_path).verify() == []


def test_a_jar_that_no_source_has_is_named_with_every_attempt(tmp_path: Path) -> None:
    with pytest.raises(Unreachable) as unavailable:
        store(tmp_path, Shelf({}, attempts=1), Shelf({}, failures=3, name="far")).fetch()
    assert str(unavailable.value).startswith(
        "jar 'one-1.jar' and 1 more could not be fetched; tried shelf: 404 Not Found; far: 429 Too Many Requests"
    )
    assert unavailable.value.exit_code == 6


def test_why_maven_failed_is_one_line_without_its_colours(tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text(
        "#!/bin/sh\nprintf '[INFO] begins\\n\\033[0m[\\033[1;31mERROR\\033[m] transfer  failed\\n'; exit 1\n"
    )
    maven.chmod(0o755)
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    (by_maven,) = machine_sources(None, environ)
    assert by_maven.copy([ONE], tmp_path) == "[ERROR] transfer failed"


def test_a_delivered_jar_with_another_hash_is_not_taken(tmp_path: Path) -> None:
    jars = store(tmp_path, Shelf({**CONTENT, "one-1.jar": b"FIRST jar"}))
    with pytest.raises(Unreachable, match=r"one-1\.jar has sha256"):
        jars.fetch()
    assert not jars.path_of(ONE).exists()
    assert jars.check(TWO).exists()


def test_a_missing_jar_is_found_at_the_check(tmp_path: Path) -> None:
    with pytest.raises(JarUnfit) as missing:
        store(tmp_path).check(ONE)
    path = tmp_path / "jars" / ONE.sha256 / "one-1.jar"
    fetch = command_text("jars", "fetch", about="program")
    assert str(missing.value) == f"jar 'one-1.jar' is missing at {path}. Fix: {fetch}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"first ja", "it has 8 bytes, not 9 bytes"),
        (b"firsT jar", f"not sha256 {ONE.sha256[:12]}…"),
    ],
)
def test_an_altered_jar_is_found_at_the_check_and_fetched_again(tmp_path: Path, content: bytes, message: str) -> None:
    jars = store(tmp_path, Shelf(CONTENT))
    jars.fetch()
    jars.path_of(ONE).write_bytes(content)
    with pytest.raises(JarUnfit, match=message):
        jars.check(ONE)
    assert [type(problem) for problem in jars.verify()] == [JarUnfit]
    assert jars.fetch().fetched == {ONE: "shelf"}
    assert jars.verify() == []


def test_a_folder_of_jars_is_used_as_it_is(tmp_path: Path) -> None:
    folder, shelf = tmp_path / "baked in", Shelf(CONTENT)
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    jars = store(tmp_path / "cache", shelf, KQUOTA_JARS_DIR=str(folder))
    assert jars.fetch().cached == [ONE, TWO]
    assert jars.check(ONE) == folder / "one-1.jar"
    assert shelf.calls == []


def test_a_folder_of_jars_is_never_filled(tmp_path: Path) -> None:
    shelf = Shelf(CONTENT)
    with pytest.raises(JarUnfit, match=f"put the locked file into {tmp_path}, or unset KQUOTA_JARS_DIR"):
        store(tmp_path / "cache", shelf, KQUOTA_JARS_DIR=str(tmp_path)).fetch()
    assert shelf.calls == []


def test_jars_of_pyspark_are_never_fetched(tmp_path: Path) -> None:
    shelf = Shelf(CONTENT)
    environ, pyspark_jars = {"KQUOTA_CACHE": str(tmp_path / "cache")}, tmp_path / "pyspark" / "jars"
    jars = JarStore([locked("one-1.jar", "pyspark")], environ, [shelf.source], pyspark_jars=pyspark_jars)
    with pytest.raises(JarUnfit, match=r"reinstall it: .* -m pip install --force-reinstall --no-deps pyspark"):
        jars.fetch()
    assert shelf.calls == []
    pyspark_jars.mkdir(parents=True)
    (pyspark_jars / "one-1.jar").write_bytes(CONTENT["one-1.jar"])
    assert jars.check(jars.locked[0]) == pyspark_jars / "one-1.jar"


def test_pysparks_jars_are_in_its_package() -> None:
    folder = pyspark_jars_folder({"SPARK_HOME": "/elsewhere"})
    assert folder is not None
    assert list(folder.glob("spark-sql_*.jar"))


def test_under_spark_submit_pyspark_is_in_an_archive_and_its_jars_are_in_spark_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("pyspark/__init__.py", "")
    monkeypatch.syspath_prepend(archive)
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert pyspark_jars_folder({"SPARK_HOME": "/opt/spark"}) == Path("/opt/spark/jars")
