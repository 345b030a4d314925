"""The reporter on Kafka's own classes, without a broker: sums on a hand-set clock, events, classes that differ."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.reporter.__main__ import JAVA_LEVEL, SOURCES, compile_java
from pipeline.errors import PipelineError
from pipeline.jvm.jars import JarStore, LockedJar, jars_of
from pipeline.jvm.java import find_java, find_jdk

CHECK = Path(__file__).with_name("ReporterCheck.java")
LOG4J = (
    "status=error\nappender.c.type=Console\nappender.c.name=c\nappender.c.layout.type=PatternLayout\n"
    "appender.c.layout.pattern=%p %m%n\nrootLogger.level=warn\nrootLogger.appenderRef.c.ref=c\n"
)
OTHER_STAT = "package org.apache.kafka.common.metrics.stats; public abstract class SampledStat {}"
SEEDS = ("1", "2", "3")
"""All in one JVM, whose start takes longer than they do."""

Check = Callable[..., list[str]]


def class_path(clients: str) -> list[Path]:
    """What the reporter is compiled against, and runs with, given the first part of a version of kafka-clients."""
    jars: list[LockedJar] = jars_of()
    kept = [jar for jar in jars if jar.artifact in {"slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl"}]
    kept += [jar for jar in jars if jar.artifact == "kafka-clients" and jar.version.startswith(clients)]
    store = JarStore(kept)
    store.fetch()
    return [store.path_of(jar) for jar in kept]


@pytest.fixture(scope="module", params=["3.9", "4.3"])
def check(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Runs a part of ReporterCheck with a version of kafka-clients; returns the lines it prints."""
    folder, jars = tmp_path_factory.mktemp("reporter"), class_path(request.param)
    compile_java([*SOURCES, CHECK], jars, folder / "own")
    (folder / "SampledStat.java").write_text(OTHER_STAT)
    compile_java([folder / "SampledStat.java"], [], folder / "other")
    (folder / "log4j2.properties").write_text(LOG4J)

    def run(*arguments: str, before: str = "own") -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"
        path = os.pathsep.join([str(folder / before), str(folder / "own"), *map(str, jars)])
        java = [str(find_java().executable), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", log4j]
        command = [*java, "-cp", path, "io.kquota.reporter.ReporterCheck", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    return run


def test_the_sources_need_nothing_that_is_newer_than_the_class_files(tmp_path: Path) -> None:
    jdk = find_jdk()  # its compiler knows what each release had; the one that makes the jar does not
    if jdk is None:
        pytest.skip("needs a JDK; none in JAVA_HOME or on PATH")
    command = [
        str(jdk.home / "bin" / "javac"),
        "--release",
        JAVA_LEVEL,
        "-Xlint:all,-options",
        "-Werror",
        "-d",
        str(tmp_path),
    ]
    subprocess.run([*command, "-cp", os.pathsep.join(map(str, class_path("3.9"))), *SOURCES], check=True)


def test_sources_that_do_not_compile_say_where(tmp_path: Path) -> None:
    (tmp_path / "Odd.java").write_text("class Odd { int one = two; }")
    with pytest.raises(PipelineError, match=r"does not compile: .*Odd\.java.*two cannot be resolved"):
        compile_java([tmp_path / "Odd.java"], [], tmp_path)


def test_no_record_is_missed_or_read_twice_whatever_becomes_of_the_windows(check: Check) -> None:
    assert check("sums", *SEEDS) == ["0 0"] * len(SEEDS)


def test_sums_stay_exact_and_memory_bounded_when_sensors_expire_and_come_back(check: Check) -> None:
    assert check("expiry", *SEEDS[:2]) == ["[0, 0, 0] 0 true"] * 2


def test_events_hold_whole_amounts_and_what_is_left_goes_into_the_next_one(check: Check) -> None:
    lines = check("events")
    events = [None if line == "nothing" else json.loads(line) for line in lines]
    assert {(event["user"], event["client_id"], event["broker_id"]) for event in events if event} == {
        ('al"ice', "\x01?é", "1")
    }
    fields = ("event_time_ms", "produced_bytes", "fetched_bytes", "io_time_ns", "broker_throttle_ms", "request_count")
    assert [event and tuple(event.get(name) for name in fields) for event in events] == [
        (100, None, None, 0, None, 0),
        (101, None, None, 1, None, 1),
        (102, None, None, 0, None, 0),
        (200, 2**40, None, None, None, 0),
        (200, 5, None, None, None, 0),
        (300, None, 10, None, None, 0),
        None,
        (500, None, 16, None, 1_500, 0),
        None,
    ]


def test_a_quota_metric_of_another_class_switches_it_off_with_one_line(check: Check) -> None:
    lines = [line for line in check("other-class") if line.startswith("ERROR")]
    assert len(lines) == 1
    assert lines[0].startswith("ERROR kquota-reporter is off, the broker goes on: ")
    assert "ClassCastException" in lines[0]


def test_a_kafka_without_the_field_switches_it_off_with_one_line(check: Check) -> None:
    (line,) = check("other-field", before="other")
    assert line.startswith("ERROR kquota-reporter is off, the broker goes on: Kafka's classes are not as this release")
    assert "NoSuchFieldException: samples" in line


def test_it_follows_so_many_sensors_and_warns_once_of_more(check: Check) -> None:
    assert check("full") == [
        "WARN kquota-reporter follows 200000 sensors and no more: the usage of further clients is not reported"
    ]
