"""A second driver from another machine, and usage that is gone: what the job prints, and how it ends."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

from pipeline.demo.broker import EmbeddedBroker
from tests.faults.rig import Rig, rig
from tests.integration.running_job import RunningJob, usage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def rigged(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig("take-over", tmp_path_factory.mktemp("take-over"), broker.bootstrap_servers) as made:
        made.start(wait=False)
        made.job.wait_for_line("running; trigger")
        yield made


def sequences(job: RunningJob) -> list[int]:
    return [record["publish_seq"] for record in job.records()]


def test_a_driver_from_another_folder_takes_over_and_the_first_one_ends(rigged: Rig, tmp_path: Path) -> None:
    first = rigged.job
    first.send(usage("before", 500_000))
    first.wait_for_record(user="before", action="throttle")
    second = RunningJob(first.name, first.folder, first.bootstrap_servers, {**first.overrides})
    second.overrides["KQUOTA_RUN_DIR"] = str(tmp_path)
    refused = second.command("run")
    assert refused.returncode == 4, "another run folder does not help: the tables are locked too"
    assert f"is held by process {first.process.pid if first.process else None}" in refused.stderr
    # A driver on another machine does not see the lock. Epoch and transactional id are for that case.
    (first.folder / "tables" / ".kquota-job.lock").unlink()
    try:
        second.start()
        second.send(usage("after", 500_000))
        second.wait_for_record(user="after", action="throttle")
        assert rigged.await_death() == 4
        assert [line for line in first.log if "another driver" in line or "has fenced this one" in line]
        assert not [line for line in first.log if "Traceback" in line]
        assert second.process is not None
        assert second.process.poll() is None
        assert sequences(second) == list(range(len(sequences(second))))
    finally:
        assert second.stop() == 0


def test_usage_that_was_deleted_unread_is_refused_until_the_checkpoint_is_given_up(rigged: Rig) -> None:
    job = rigged.job
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
    assert sequences(job) == list(range(len(sequences(job))))


def test_a_checkpoint_of_another_job_and_tables_of_another_job_are_refused(rigged: Rig) -> None:
    job = rigged.job
    job.stop()
    renamed = RunningJob("another", job.folder, job.bootstrap_servers, {**job.overrides, **topics_of(job)})
    refused = renamed.command("run")
    assert refused.returncode == 4
    assert "--job take-over" in refused.stderr
    checkpoint = job.folder / "checkpoint"
    (checkpoint / "metadata").write_text('{"id":"00000000-0000-0000-0000-000000000000"}')
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)  # Hadoop would refuse what we have just written
    for way in (str(checkpoint), checkpoint.as_uri()):
        overrides = {**job.overrides, "KQUOTA_STREAM__CHECKPOINT": way}
        refused = RunningJob(job.name, job.folder, job.bootstrap_servers, overrides).command("run")
        assert refused.returncode == 5
        assert (
            f"checkpoint {way} does not fit the tables: it belongs to a query that has not written them"
            in refused.stderr
        )


def topics_of(job: RunningJob) -> dict[str, str]:
    return {name: value for name, value in job.environment.items() if name.endswith("_TOPIC")}
