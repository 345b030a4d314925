"""Every program of examples/, run as it is, with a real topic."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import broker_classpath, fetch
from pipeline.jvm.java import Java, find_jdk
from pipeline.process import free_ports
from schemas.throttle_record import Message
from tests.integration.throttle_job import ThrottleJob
from tests.throttle_records import CLIENTS, held_until_ms, is_of_another_version, messages
from tests.waiting import PATIENCE_SECONDS, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
READER = EXAMPLES / "ThrottleReader.java"


@pytest.fixture
def job(broker: EmbeddedBroker) -> Iterator[ThrottleJob]:
    with closing(ThrottleJob(broker.bootstrap_servers)) as made:
        yield made


@contextmanager
def running(*command: str, **environ: str) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen(
        command, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def line_with(child: "subprocess.Popen[str]", word: str) -> str:
    assert child.stdout is not None
    for line in child.stdout:
        if word in line:
            return line
    raise AssertionError(child.stderr and child.stderr.read())


def ask_sidecar(address: str, user: str) -> "subprocess.CompletedProcess[str]":
    command = [str(EXAMPLES / "sidecar.sh"), address, user, "c"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def test_the_shell_script_goes_on_when_no_sidecar_answers() -> None:
    done = ask_sidecar("http://127.0.0.1:1", "alice")
    assert (done.returncode, done.stdout) == (0, "go (the side-car does not answer)\n")


@pytest.mark.broker
def test_the_shell_script_holds_off_while_the_sidecar_says_so(broker: EmbeddedBroker, job: ThrottleJob) -> None:
    job.throttle("alice")
    command = [sys.executable, "-m", "pipeline.cli.main", "gate", "--listen", "127.0.0.1:0"]
    command += ["--bootstrap-server", broker.bootstrap_servers]
    with running(*command, KQUOTA_KAFKA__THROTTLE_TOPIC=job.name) as sidecar:
        assert sidecar.stderr is not None
        address = f"http://127.0.0.1:{sidecar.stderr.readline().split()[3].rstrip(',')}"
        wait_until(lambda: ask_sidecar(address, "alice").returncode != 0, "the side-car to know of the throttle")
        done = ask_sidecar(address, "alice")
        assert done.returncode == 75
        throttled = json.loads(done.stdout.removeprefix("throttled: "))
        assert throttled["user"] == "alice"
        assert throttled["reason"]["quota_type"] == "producer_byte_rate"
        assert ask_sidecar(address, "bob").stdout == "go\n"
        job.release("alice")
        assert ask_sidecar(address, "alice").stdout == "go\n"
        assert ask_sidecar(f"{address}/x", "alice").returncode == 1


@pytest.mark.broker
def test_the_producer_holds_off_while_it_is_throttled(broker: EmbeddedBroker, job: ThrottleJob) -> None:
    with ClusterAccess(broker.bootstrap_servers).admin() as admin:
        create_topics(admin, [TopicSpec("orders", "demo", 1, "any", {}, {})])
    command = [sys.executable, "-m", "examples.kafka_producer", broker.bootstrap_servers, "alice", "c", "orders", "20"]
    for for_ms in (4_000, 10_000, 60_000):  # the shorter ones may lapse before a slow machine has started the program
        job.throttle("alice", for_ms=for_ms)
        done = subprocess.run(
            [*command, job.name], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
        )
        words = done.stdout.split()
        assert words[:3] == ["sent", "20", "records,"]
        held_ms = int(words[5])
        if held_ms:
            break
    assert 0 < held_ms <= for_ms


@pytest.mark.broker
def test_the_service_holds_requests_until_the_throttle_ends(broker: EmbeddedBroker, job: ThrottleJob) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "hypercorn", "examples.starlette_service:app", "--bind", f"127.0.0.1:{port}"]
    command += ["--workers", "0"]  # in this very process: a worker of its own would outlive it

    def upload(user: str) -> dict[str, int]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/upload", b"x" * 1_000)
        request.add_header("X-User", user)
        request.add_header("X-Client-Id", "c")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
            stored: dict[str, int] = json.load(answer)
            return stored

    environ = {"KAFKA": broker.bootstrap_servers, "THROTTLE_TOPIC": job.name, "LONGEST_WAIT_MS": "2000"}
    with running(*command, **environ):

        def answers() -> bool:
            with suppress(urllib.error.URLError):
                return bool(upload("bob"))
            return False

        wait_until(answers, "the service to answer")
        waits: list[dict[str, int]] = []

        def has_waited() -> bool:
            job.throttle("alice", for_ms=1_500)  # again, because it lapses on a machine that is slow to notice it
            waits.append(upload("alice"))
            return waits[-1]["waited_ms"] > 0

        wait_until(has_waited, "an upload that is held")
        assert waits[-1]["stored_bytes"] == 1_000
        assert upload("bob") == {"stored_bytes": 1_000, "waited_ms": 0}
        job.throttle("alice", for_ms=1_000_000)
        uploads = iter(lambda: upload("alice"), None)
        with pytest.raises(urllib.error.HTTPError) as late:
            deque(uploads)
        assert late.value.code == 429
        assert 500 <= int(late.value.headers["Retry-After"]) <= 998, "the service itself has waited for 2 s"


@pytest.fixture(scope="module")
def jdk() -> Java:
    found = find_jdk()
    if found is None:
        pytest.skip("the Java example is run from source, which needs a JDK; none in JAVA_HOME or on PATH")
    return found


@pytest.fixture(scope="module")
def classpath() -> str:
    fetch()
    return os.pathsep.join(map(str, broker_classpath()))


@pytest.mark.broker
def test_the_java_reader_says_when_a_client_waits_and_when_it_may_go_on(
    broker: EmbeddedBroker, job: ThrottleJob, jdk: Java, classpath: str
) -> None:
    job.throttle("alice")
    command = [str(jdk.executable), "-XX:TieredStopAtLevel=1", "-cp", classpath, str(READER)]
    with running(*command, broker.bootstrap_servers, job.name, "c", "alice", "c") as reader:
        assert line_with(reader, "alice").startswith("alice/c waits ")
        job.release("alice")
        assert line_with(reader, "alice") == "alice/c may go on\n"


@pytest.fixture(scope="module")
def java_answers(
    jdk: Java, classpath: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["subprocess.Popen[str]"]:
    """The Java reader, asked over its standard input; see `ThrottleReaderAnswers`."""
    classes = str(tmp_path_factory.mktemp("classes"))
    sources = [str(READER), str(Path(__file__).with_name("ThrottleReaderAnswers.java"))]
    subprocess.run([str(jdk.home / "bin" / "javac"), "-cp", classpath, "-d", classes, *sources], check=True)
    command = [str(jdk.executable), "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join([classes, classpath])]
    with subprocess.Popen(
        [*command, "ThrottleReaderAnswers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as child:
        yield child
        child.kill()


@given(sent=st.lists(messages(), max_size=12))
@settings(max_examples=100)
def test_the_java_reader_holds_whom_the_rule_holds(java_answers: "subprocess.Popen[str]", sent: list[Message]) -> None:
    assert java_answers.stdin is not None
    assert java_answers.stdout is not None
    records = [(one.key.decode(), one.value.decode()) for one in sent]
    java_answers.stdin.writelines(json.dumps(line) + "\n" for line in (*records, *CLIENTS, []))
    java_answers.stdin.flush()
    answers = [int(java_answers.stdout.readline()) for _ in (*CLIENTS, [])]
    assert answers == [*(held_until_ms(sent, *client) for client in CLIENTS), sum(map(is_of_another_version, sent))]
