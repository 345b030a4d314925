"""A job of an earlier release was killed; the job of today goes on with its topics, tables and checkpoint."""

from collections import Counter
from collections.abc import Iterator

import pytest

from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from tests.integration.running_job import RunningJob, usage
from tests.upgrade.kept import RELEASES, Kept, unpack
from tests.upgrade.making import JOB

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

# The kept messages and offsets are older than a broker keeps them; it must not delete them while the test runs.
FOR_EVER = {
    "log.retention.check.interval.ms": "86400000",
    "log.initial.task.delay.ms": "86400000",
    "log.cleaner.enable": "false",
    "offsets.retention.minutes": "2147483647",
}


@pytest.fixture(scope="module", params=RELEASES)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return unpack(request.param, tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def job(kept: Kept) -> Iterator[RunningJob]:
    """The job of today, when it has read all that was sent to the old one and new usage of carol."""
    with EmbeddedBroker(kept.folder / "broker", options=BrokerOptions(settings=FOR_EVER)) as broker:
        job = RunningJob(JOB, kept.folder, broker.bootstrap_servers)
        try:
            job.start()
            job.send(usage("carol", 5_000_000))
            job.wait_for_record(user="carol", action="throttle")
            job.wait_for_record(user="alice", action="release")
            yield job
        finally:
            job.close()


def test_every_message_counts_once_those_read_before_and_those_not_read_yet(job: RunningJob, kept: Kept) -> None:
    stored: Counter[str] = Counter()
    for row in job.table("usage", ["user", "produced_bytes"]).to_pylist():
        stored[row["user"]] += row["produced_bytes"]
    assert stored == kept.produced_bytes() + Counter(carol=5_000_000)
    assert job.table("dead_letters").num_rows == 1


def test_records_go_on_after_the_last_one_of_the_old_job(job: RunningJob, kept: Kept) -> None:
    records = job.records()
    assert records[: len(kept.records)] == kept.records
    assert [record["publish_seq"] for record in records] == list(range(len(records)))


def test_the_query_goes_on_with_the_old_checkpoint(job: RunningJob) -> None:
    batches = job.table("batches", ["query_id", "batch_id"]).to_pylist()
    assert len({batch["query_id"] for batch in batches}) == 1
    numbers = sorted(batch["batch_id"] for batch in batches)
    assert numbers == sorted(set(numbers))
    assert job.wait_for_line("took up 1 running throttles")


def test_decisions_of_both_releases_follow_from_the_stored_usage(job: RunningJob) -> None:
    verified = job.command("throttles", "verify", "--since", "3650d")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_the_doctor_finds_nothing_wrong(job: RunningJob) -> None:
    told = job.command("doctor")
    assert told.returncode == 0, told.stdout
