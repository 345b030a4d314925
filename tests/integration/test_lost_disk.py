"""A disk with tables and checkpoint is lost, or a topic; docs/upgrade.md says how the job comes back."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
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


def test_other_tables_are_refused_and_with_the_topic_taken_those_without_the_past_of_the_checkpoint(
    job: RunningJob,
) -> None:
    shutil.rmtree(job.folder / "tables")
    succeed(job, "tables", "create")
    refused = job.command("run")
    assert refused.returncode == 4
    assert "start this one once with --take-topic" in refused.stderr
    refused = job.command("run", "--take-topic")
    assert refused.returncode == 5
    assert "it belongs to a query that has not written them" in refused.stderr
    assert str(Path(job.folder) / "checkpoint") in refused.stderr


def test_with_quotas_of_a_file_and_a_new_checkpoint_it_goes_on_after_the_topic(
    job: RunningJob,
) -> None:
    shutil.rmtree(job.folder / "checkpoint")
    succeed(job, "quotas", "apply", "-f", str(job.folder / "quotas.yaml"), "--reason", "the disk was lost")
    before = job.records()
    job.start("--take-topic")
    job.send(usage("after", 500_000))
    job.wait_for_record(user="after", action="throttle")
    records = job.records()
    assert records[: len(before)] == before
    assert [record["publish_seq"] for record in records] == list(range(len(records)))
    assert job.stop() == 0


def test_what_is_left_on_the_usage_topic_is_counted_again_once(job: RunningJob) -> None:
    rows = job.table("usage", ["user", "produced_bytes"]).to_pylist()
    sums = {user: sum(row["produced_bytes"] for row in rows if row["user"] == user) for user in ("before", "after")}
    assert sums == {"before": 500_000, "after": 500_000}


def test_usage_that_was_deleted_unread_is_refused_until_the_checkpoint_is_given_up(job: RunningJob) -> None:
    job.send(*[usage("unread", 1) for _ in range(100)])
    admin: Any = KafkaAdminClient(bootstrap_servers=job.bootstrap_servers)
    topic = f"{job.name}.usage"
    admin.delete_records({TopicPartition(topic, partition): -1 for partition in range(4)})
    admin.close()
    refused = job.command("run")
    assert refused.returncode == 5
    assert "are deleted" in refused.stderr
    assert f"delete the checkpoint {job.folder / 'checkpoint'}" in refused.stderr
    told = job.command("doctor")
    assert "ERROR checkpoint" in told.stdout
    shutil.rmtree(job.folder / "checkpoint")
    since = len(job.log)
    job.start(wait=False)
    job.wait_for_line("usage is missing and will not be counted", since)
    job.wait_for_line("running; trigger", since)
    job.send(usage("again", 500_000))
    job.wait_for_record(user="again", action="throttle")
    numbers = [record["publish_seq"] for record in job.records()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert job.stop() == 0


def test_after_the_loss_of_the_throttle_topic_the_printed_command_numbers_its_records_on(job: RunningJob) -> None:
    last_seq = job.records()[-1]["publish_seq"]
    make_anew(job, f"{job.name}.throttle")
    refused = job.command("run")
    assert (refused.returncode, "was deleted and made anew" in refused.stderr) == (5, True), refused.stderr
    fix = refused.stderr.strip().partition("once with --take-topic: ")[2]
    assert f"once with --take-topic: {fix}" in job.command("doctor").stdout
    program, job.program = job.program, ("/bin/sh", "-c", f"exec {fix}")
    job.start()
    job.program = program
    job.send(usage("later", 500_000))
    record = job.wait_for_record(user="later", action="throttle")
    assert record["publish_seq"] > last_seq
    numbers = [record["publish_seq"] for record in job.records()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert job.stop() == 0


def test_a_usage_topic_made_anew_is_begun_at_its_first_message_by_the_printed_command(job: RunningJob) -> None:
    job.start()
    job.send(usage("old", 500_000))
    job.wait_for_record(user="old", action="throttle")
    make_anew(job, job.usage_topic)
    job.send(*[usage("first", 1_000) for _ in range(100)])  # more than the old topic had
    assert job.process is not None
    assert job.process.wait(PATIENCE_SECONDS) == 5
    assert "first" not in job.table("usage", ["user"])["user"].to_pylist()
    refused = job.command("run")
    assert (refused.returncode, "was deleted and made anew" in refused.stderr) == (5, True), refused.stderr
    fix = refused.stderr.strip().partition("with a new checkpoint: ")[2]
    assert f"with a new checkpoint: {fix}" in job.command("doctor").stdout
    job.program = ("/bin/sh", "-c", f"exec {fix}")
    job.start()
    job.send(usage("last", 500_000))
    job.wait_for_record(user="last", action="throttle")
    rows = job.table("usage", ["user", "produced_bytes"]).to_pylist()
    assert sum(row["produced_bytes"] for row in rows if row["user"] == "first") == 100_000
    assert job.stop() == 0
