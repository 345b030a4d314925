"""Which options the embedded broker's JVM gets for a class archive."""

from pathlib import Path

import pytest

from pipeline.demo import broker as broker_java
from pipeline.demo.broker import BrokerOptions
from pipeline.jvm.java import Java


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> Java:
    """A Java of a version and a class path of one jar, reached by a symbolic link; the cache is empty."""
    monkeypatch.setenv("KQUOTA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "release").write_text(f'JAVA_VERSION="{version}"')
    (tmp_path / "kafka.jar").touch()
    (tmp_path / "link.jar").symlink_to(tmp_path / "kafka.jar")
    found = Java(tmp_path, version, tmp_path / "bin" / "java", has_compiler=False, origin="JAVA_HOME")
    monkeypatch.setattr(broker_java, "find_java", lambda: found)
    monkeypatch.setattr(broker_java, "broker_classpath", lambda: [tmp_path / "link.jar"])
    return found


@pytest.mark.parametrize(
    ("version", "used", "made"),
    [
        (17, "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit"),
        (24, "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit"),
        (25, "-XX:AOTCache", "-XX:AOTCacheOutput"),
    ],
)
def test_the_broker_starts_from_an_archive_that_is_there_except_to_make_one(java: Java, used: str, made: str) -> None:
    archive = broker_java.broker_archive(java, broker_java.broker_jars())
    log4j2 = java.home / "log4j2.properties"
    assert not any(used in option for option in broker_java.broker_java(BrokerOptions(), log4j2))
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f"{used}={archive}" in broker_java.broker_java(BrokerOptions(), log4j2)
    trains = BrokerOptions(archive_draft=archive.with_name("draft") / archive.name)
    assert not any(used in option for option in broker_java.broker_java(trains, log4j2))
    assert broker_java.training_options(trains) == [f"{made}={trains.archive_draft}"]
    assert broker_java.training_options(BrokerOptions()) == []


@pytest.mark.parametrize("version", [17])
def test_the_class_path_has_no_symbolic_links_which_an_archive_would_not_fit(java: Java) -> None:
    command = broker_java.broker_java(BrokerOptions(), java.home / "log4j2.properties")
    assert command[-1] == str(java.home / "kafka.jar")


@pytest.mark.parametrize("version", [17])
def test_an_archive_option_of_the_caller_comes_last_and_so_wins(java: Java) -> None:
    archive = broker_java.broker_archive(java, broker_java.broker_jars())
    archive.parent.mkdir(parents=True)
    archive.touch()
    command = broker_java.broker_java(BrokerOptions(java_options=("-Xshare:off",)), java.home / "log4j2.properties")
    assert command.index("-Xshare:off") > command.index(f"-XX:SharedArchiveFile={archive}")
