"""The reporter on Kafka's own classes, without a broker: sums on a hand-set clock, events, classes that differ."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.reporter.__main__ import JAVA_LEVEL, SOURCES, compile_java
from pipeline.jvm.jars import JarStore, LockedJar, jars_of
from pipeline.jvm.java import find_java, find_jdk
from pipeline.meter import reporter
from schemas.usage import UsageEvent
from tests.compatibility.kafka_jars import LOCKED
from tests.pipeline.cli.running import Answer, kquota

CHECK = Path(__file__).with_name("ReporterCheck.java")
LOG4J = (
    "status=error\nappender.c.type=Console\nappender.c.name=c\nappender.c.layout.type=PatternLayout\n"
    "appender.c.layout.pattern=%p %m%n\nrootLogger.level=warn\nrootLogger.appenderRef.c.ref=c\n"
)
OTHER_STAT = "package org.apache.kafka.common.metrics.stats; public abstract class SampledStat {}"


def class_path(clients: str) -> list[Path]:
    """What the reporter is compiled against, and runs with, given the first part of a version of kafka-clients."""
    jars: list[LockedJar] = jars_of()
    kept = [jar for jar in jars if jar.artifact in {"slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl"}]
    kept += [jar for jar in jars if jar.artifact == "kafka-clients" and jar.version.startswith(clients)]
    store = JarStore(kept)
    store.fetch()
    return [store.path_of(jar) for jar in kept]


PARTS = (
    *("sums:1:2:3", "expiry:1:2", "events", "left-out", "exempt", "crowd", "long-names", "odd-sensors", "round"),
    *("turns", "other-field"),
)
Checked = dict[str, list[str]]
"""What each part of ReporterCheck printed."""


@pytest.fixture(scope="module", params=[pytest.param("3.9", marks=pytest.mark.long), LOCKED])
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """All parts with a version of kafka-clients, in one JVM; the last one with another class in Kafka's place."""
    folder, jars = tmp_path_factory.mktemp("reporter"), class_path(request.param)
    compile_java([*SOURCES, CHECK], jars, folder / "own")
    (folder / "SampledStat.java").write_text(OTHER_STAT)
    compile_java([folder / "SampledStat.java"], [], folder / "other")
    (folder / "log4j2.properties").write_text(LOG4J)
    found: Checked = {}
    for parts, before in ((PARTS[:-1], "own"), (PARTS[-1:], "other")):
        log4j = f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"
        path = os.pathsep.join([str(folder / before), str(folder / "own"), *map(str, jars)])
        java = [str(find_java().executable), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", log4j]
        command = [*java, "-cp", path, "io.kquota.reporter.ReporterCheck", *parts]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for part, printed in zip(parts, re.split(r"^== .*\n", done.stdout, flags=re.MULTILINE)[1:], strict=True):
            found[part.partition(":")[0]] = printed.splitlines()
    return found


def test_no_record_is_missed_or_read_twice_whatever_becomes_of_windows_and_sensors(checked: Checked) -> None:
    assert checked["sums"] == ["0 0"] * 3
    assert checked["expiry"] == ["[0, 0, 0] 0 true"] * 2
    assert checked["turns"] == ["10", "10", "3", "0"], "a round looks at those that the one before left"


def test_what_fails_is_one_line_and_the_broker_goes_on(checked: Checked) -> None:
    (line,) = checked["other-field"]
    assert line.startswith("ERROR kquota-reporter is off, the broker goes on: ")
    assert [line.partition(" ")[0] for line in checked["round"]].count("ERROR") == 1
    assert checked["round"][-1] == "0 null 5"


def test_no_client_can_hide_behind_a_name_that_it_can_take(checked: Checked) -> None:
    assert checked["left-out"] == [
        "[ANONYMOUS/kquota-reporter, alice/kquota-reporter, b$b/]",
        "[ANONYMOUS/x, c/x]",  # the first one has a sensor of a client-id alone
        "[ANONYMOUS/etl, ANONYMOUS/kquota-reporter, alice/etl]",
        "[svc/any]",  # the settings do not sign in
        "[ANONYMOUS/any, alice/etl]",
    ]


def test_the_sources_need_nothing_that_is_newer_than_the_class_files(tmp_path: Path) -> None:
    jdk = find_jdk()  # its compiler knows what each release had; the one that makes the jar does not
    if jdk is None:
        pytest.skip("needs a JDK; none in JAVA_HOME or on PATH")
    javac, strict = str(jdk.home / "bin" / "javac"), ["-Xlint:all,-options", "-Werror"]
    command = [javac, "--release", JAVA_LEVEL, *strict, "-d", str(tmp_path)]
    subprocess.run([*command, "-cp", os.pathsep.join(map(str, class_path("3.9"))), *SOURCES], check=True)


def test_events_hold_whole_amounts_and_what_is_left_goes_into_the_next_one(checked: Checked) -> None:
    lines = checked["events"]
    events = [None if line == "nothing" else json.loads(line) for line in lines]
    assert {(event["user"], event["client_id"], event["broker_id"]) for event in events if event} == {
        ('al"ice', "\x01?é", "1")
    }
    fields = ("event_time_ms", "produced_bytes", "fetched_bytes", "io_time_ns", "broker_throttle_ms", "request_count")
    assert [event and tuple(event.get(name) for name in fields) for event in events] == [
        (100, None, None, 0, None, 1),  # a request counts when its first half is there
        (101, None, None, 1, None, 0),
        (102, None, None, 0, None, 1),
        (200, 2**40, None, None, None, 0),
        (200, 5, None, None, None, 0),
        (300, None, 10, None, None, 0),
        None,
        (500, None, 16, None, 1_500, 0),
        None,
    ]


def test_exempt_time_is_of_no_client_and_goes_under_the_reporters_own_user(checked: Checked) -> None:
    event, nothing, *again = checked["exempt"]
    assert again == [event, nothing]
    read = UsageEvent.model_validate_json(event)
    assert (read.user, read.client_id, read.broker_id, read.throttle_exempt) == ("svc", "", "1", True)
    assert (read.io_time_ns, read.request_count, read.produced_bytes) == (2_000, 2, None)
    assert nothing == "nothing"  # the user's own usage is left out


def test_a_user_with_too_many_client_ids_takes_nothing_from_others(checked: Checked) -> None:
    warning, *lines = checked["crowd"]
    assert warning.startswith("WARN kquota-reporter has 50 sensors in sums that clients of one user share, as <others>")
    assert lines == [
        "10001 100 5",  # of 10,050 client-ids with 2 bytes each 50 share a sum
        "1 7 null",  # a further one does, too
        "Sensors 10052 Clients 10002 SummedSensors 51 UnreadableSensors 0 LostEvents 0 ",
        "2 100 11",  # others were quiet, so it has a sum of its own now; what they had is in the shared one
        "Sensors 0 Clients 0 SummedSensors 0 UnreadableSensors 0 LostEvents 0 ",
    ]


def test_names_are_cut_to_what_a_reader_accepts_and_long_ones_do_not_fill_memory(checked: Checked) -> None:
    *events, _, mallory = checked["long-names"]
    read = sorted(map(UsageEvent.model_validate_json, events), key=lambda event: event.produced_bytes or 0)
    assert [(len(event.user.encode()), len(event.client_id.encode()), event.produced_bytes) for event in read] == [
        (5, 32_766, 1),
        (5, 32_767, 2),
        (5, 32_764, 3),
        (32_767, 0, 4),
        (5, 32_767, 5),
    ]
    clients, produced_bytes = map(int, mallory.split())
    assert clients < 100
    assert produced_bytes == 300


def test_sensors_that_can_not_be_read_are_counted_and_keep_no_other_from_being_read(checked: Checked) -> None:
    warning, sums, counts = checked["odd-sensors"]
    assert warning.startswith("WARN kquota-reporter cannot read 1 sensors so far, and goes on without them.")
    assert sums == "{%zz/=3, ANONYMOUS/=3, alice/=3, bob/etl=5}"
    assert counts.startswith("Sensors 4 Clients 4 SummedSensors 0 UnreadableSensors 2 ")


LINES = """\
metric.reporters=org.apache.kafka.common.metrics.JmxReporter,io.kquota.reporter.UsageReporter
kquota.reporter.topic=quota.usage.v1
kquota.reporter.bootstrap.servers=broker:9092
"""


def test_it_writes_the_jar_and_prints_the_server_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked_for(named: str) -> Answer:
        return kquota("meter", "reporter", "--jar", str(tmp_path / named), "--bootstrap-server", "broker:9092")

    jar, libs = tmp_path / "kquota-reporter.jar", tmp_path / "libs"
    monkeypatch.setattr(reporter, "REPORTER_JAR", jar)  # where that of this installation is; not made yet
    libs.mkdir()
    answer = asked_for("libs")
    assert (answer.exit_code, answer.stderr.partition("Fix: ")[2]) == (1, "make ready\n")
    jar.write_bytes(b"a jar")
    assert asked_for("not/there.jar").exit_code == 1
    for named in ("libs", "libs/other.jar"):
        answer = asked_for(named)
        assert (answer.exit_code, answer.stdout) == (0, LINES)
    assert [path.read_bytes() for path in sorted(libs.iterdir())] == [b"a jar"] * 2
