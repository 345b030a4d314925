"""`kquota throttles tail` on a real topic: committed records, one line each, from where it was told to begin."""

import json
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from pipeline.demo.broker import EmbeddedBroker
from tests.integration.throttle_job import ThrottleJob
from tests.pipeline.cli.running import kquota
from tests.waiting import PATIENCE_SECONDS

COMMAND = [sys.executable, "-m", "pipeline.cli.main", "throttles", "tail"]


@pytest.fixture(scope="module")
def job(broker: EmbeddedBroker) -> Iterator[ThrottleJob]:
    """Alice and bob are throttled, alice twice; then bob is released."""
    with closing(ThrottleJob(broker.bootstrap_servers)) as made:
        made.throttle("alice", "bob")
        made.throttle("alice")
        made.release("bob")
        yield made


@contextmanager
def tail(broker: EmbeddedBroker, job: ThrottleJob, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    command = [*COMMAND, *flags, "--bootstrap-server", broker.bootstrap_servers, "--topic", job.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: "subprocess.Popen[str]", count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


@pytest.mark.broker
def test_each_record_is_one_line_in_the_words_of_the_job(broker: EmbeddedBroker, job: ThrottleJob) -> None:
    with tail(broker, job, "--from-beginning") as process:
        found = lines(process, 4)
    words = [(line.split()[1], line.split()[2]) for line in found]
    assert words == [("throttle", "alice/c"), ("throttle", "bob/c"), ("extend", "alice/c"), ("release", "bob/c")]
    assert "producer_byte_rate O 2.0 > T 1.0 kB/s (quotas v" in found[0]
    assert found[0].rstrip().endswith(" throttles explain first")


@pytest.mark.broker
def test_programs_get_the_records_as_published_and_only_those_that_are_wanted(
    broker: EmbeddedBroker, job: ThrottleJob
) -> None:
    flags = ("--since", "1h", "--user", "bob", "--type", "prod", "-o", "json")
    with tail(broker, job, *flags) as process:
        records = [json.loads(line) for line in lines(process, 2)]
    assert [(one["user"], one["action"], one["publish_seq"]) for one in records] == [
        ("bob", "throttle", 1),
        ("bob", "release", 3),
    ]


@pytest.mark.broker
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_from_now_on_only_new_records_are_told_until_a_signal_ends_it_with_0(
    broker: EmbeddedBroker, job: ThrottleJob, kind: signal.Signals
) -> None:
    with tail(broker, job) as process:
        assert process.stdout is not None
        # It says nothing when it is ready: tell it something until it has heard.
        heard = _told_until_heard(job, process)
        process.send_signal(kind)
        _, told = process.communicate(timeout=PATIENCE_SECONDS)
    verb, user = heard.split()[1:3]
    assert (verb, user.startswith("new-")) == ("throttle", True)
    assert (process.returncode, told) == (0, "")


@pytest.mark.broker
def test_it_ends_when_nobody_reads_it_any_more_without_a_record_to_tell(
    broker: EmbeddedBroker, job: ThrottleJob
) -> None:
    with tail(broker, job, "--from-beginning", "--user", "alice") as process:
        lines(process, 2)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr.read() == ""


@pytest.mark.broker
def test_a_topic_that_is_not_there_is_named(broker: EmbeddedBroker) -> None:
    answer = kquota("throttles", "tail", "--bootstrap-server", broker.bootstrap_servers, "--topic", "no.such.topic")
    assert answer.exit_code != 0
    assert "topic 'no.such.topic' does not exist" in answer.stderr


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("-o", "csv"), "unknown format -o csv; use table, json"),
        (("--since", "1h", "--from-beginning"), "--since and --from-beginning contradict each other"),
        (("--since", "soon"), "cannot read --since soon; use an age"),
        (("--type", "x"), "unknown quota type x; use"),
    ],
)
def test_flags_that_can_not_be_meant_are_refused_before_any_broker_is_asked(flags: tuple[str, ...], told: str) -> None:
    answer = kquota("throttles", "tail", *flags)
    assert answer.exit_code == 2
    assert told in answer.stderr


def _told_until_heard(job: ThrottleJob, process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not selector.select(0.1):
            job.throttle(f"new-{time.time_ns()}")
    return process.stdout.readline()
