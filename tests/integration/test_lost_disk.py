"""A disk with tables and checkpoint is lost, or a topic; docs/upgrade.md says how the job comes back."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

from pipeline.demo.broker import EmbeddedBroker
from tests.integration.running_job import RunningJob, running_job, usage
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

BOUND = ("--user-defaults", "--add-config", "producer_byte_rate=1kB/s", "--reason", "test")


@pytest.fixture(scope="module")
def job(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """A job that has throttled somebody, and was killed. Its quotas are in a file."""
    with running_job("lost", tmp_path_factory.mktemp("lost"), broker.bootstrap_servers) as made:
        succeed(made, "quotas", "alter", *BOUND)
        made.start()
        made.send(usage("before", 500_000))
        made.wait_for_record(user="before", action="throttle")
        (made.folder / "quotas.yaml").write_text(succeed(made, "quotas", "export"))
        made.kill()
        yield made


def succeed(job: RunningJob, *arguments: str) -> str:
    done = job.command(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def make_anew(job: RunningJob, topic: str) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=job.bootstrap_servers)
    with closing(admin):
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics(), "the topic to be gone")
    job.create_topics()


def throttles_and_stops(job: RunningJob, user: str) -> dict[str, Any]:
    """A user is throttled, no number is missing on the topic, and the job ends well; returns the throttle."""
    job.send(usage(user, 500_000))
    record = job.wait_for_record(user=user, action="throttle")
    numbers = [one["publish_seq"] for one in job.records()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert job.stop() == 0
    return record


def start_as_told(job: RunningJob, before: str) -> None:
    """The job refuses to start; start it with the command that follows these words, which doctor prints, too."""
    refused = job.command("run")
    assert (refused.returncode, "was deleted and made anew" in refused.stderr) == (5, True), refused.stderr
    fix = refused.stderr.strip().partition(before)[2]
    assert f"{before}{fix}" in job.command("doctor").stdout
    program, job.program = job.program, ("/bin/sh", "-c", f"exec {fix}")
    job.start()
    job.program = program


def used_by(job: RunningJob, user: str) -> int:
    rows = job.table("usage", ["user", "produced_bytes"]).to_pylist()
    return sum(row["produced_bytes"] for row in rows if row["user"] == user)


def test_other_tables_are_refused_and_once_the_topic_is_taken_the_checkpoint(job: RunningJob) -> None:
    shutil.rmtree(job.folder / "tables")
    succeed(job, "tables", "create")
    refused = job.command("run")
    assert refused.returncode == 4
    assert "start this one once with --take-topic" in refused.stderr
    refused = job.command("run", "--take-topic")
    assert refused.returncode == 5
    assert "it belongs to a query that has not written them" in refused.stderr
    assert str(job.folder / "checkpoint") in refused.stderr


def test_with_quotas_of_a_file_and_a_new_checkpoint_it_counts_the_rest_of_the_topic(job: RunningJob) -> None:
    shutil.rmtree(job.folder / "checkpoint")
    succeed(job, "quotas", "apply", "-f", str(job.folder / "quotas.yaml"), "--reason", "the disk was lost")
    before = job.records()
    job.start("--take-topic")
    throttles_and_stops(job, "after")
    assert job.records()[: len(before)] == before
    assert [used_by(job, user) for user in ("before", "after")] == [500_000, 500_000], "each once"


def test_usage_that_was_deleted_unread_is_refused_until_the_checkpoint_is_given_up(job: RunningJob) -> None:
    job.send(*[usage("unread", 1) for _ in range(100)])
    with closing(KafkaAdminClient(bootstrap_servers=job.bootstrap_servers)) as admin:
        admin.delete_records({TopicPartition(job.usage_topic, partition): -1 for partition in range(4)})
    refused = job.command("run")
    assert refused.returncode == 5
    assert "are deleted" in refused.stderr
    assert f"delete the checkpoint {job.folder / 'checkpoint'}" in refused.stderr
    assert "ERROR checkpoint" in job.command("doctor").stdout
    shutil.rmtree(job.folder / "checkpoint")
    since = len(job.log)
    job.start(wait=False)
    job.wait_for_line("usage is missing and will not be counted", since)
    job.wait_for_line("running; trigger", since)
    throttles_and_stops(job, "again")


def test_after_the_loss_of_the_throttle_topic_the_printed_command_goes_on_numbering(job: RunningJob) -> None:
    last_seq = job.records()[-1]["publish_seq"]
    make_anew(job, f"{job.name}.throttle")
    start_as_told(job, "once with --take-topic: ")
    assert throttles_and_stops(job, "later")["publish_seq"] > last_seq


def test_a_usage_topic_made_anew_is_read_from_its_first_message_as_printed(job: RunningJob) -> None:
    job.start()
    job.send(usage("old", 500_000))
    job.wait_for_record(user="old", action="throttle")
    make_anew(job, job.usage_topic)
    job.send(*[usage("first", 1_000) for _ in range(100)])  # more than the old topic had
    assert job.process is not None
    assert job.process.wait(PATIENCE_SECONDS) == 5
    assert not used_by(job, "first")
    start_as_told(job, "with a new checkpoint: ")
    throttles_and_stops(job, "last")
    assert used_by(job, "first") == 100_000
