"""The whole job with its tables in Spark's own catalog, which forgets their names when the job ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from tests.faults.rounds import AT_LEAST, play
from tests.integration.running_job import RunningJob, usage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

_GOES_ON_SECONDS = 30.0


def in_catalog(folder: Path) -> dict[str, str]:
    return {
        "KQUOTA_TABLES__ROOT": "catalog:spark_catalog.kquota",
        "KQUOTA_TABLES__LOCATION": str(folder / "tables"),
        "KQUOTA_TABLES__WRITER": "delta-spark",
        "KQUOTA_STREAM__TRIGGER_MS": "1000",
    }


@pytest.fixture
def job(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[RunningJob]:
    """A job with topics and without tables."""
    running = RunningJob("catalog", tmp_path, broker.bootstrap_servers, in_catalog(tmp_path))
    running.create_topics()
    yield running
    running.close()


def test_the_job_creates_its_tables_follows_edits_and_finds_all_after_a_restart(job: RunningJob) -> None:
    job.start()
    assert any("created tables quotas, usage," in line for line in job.log)
    job.wait_for_line(f"lie under {job.folder / 'tables'}: what works without Spark finds them by tables.location")
    edited = job.command("quotas", "alter", "--user-defaults", "--add-config", "producer_byte_rate=1000")
    assert edited.returncode == 0, edited.stderr
    job.wait_for_line("in force")
    job.send(usage("alice", 200_000))
    first = job.wait_for_record(user="alice", action="throttle")
    assert first["bound"] == 1_000.0
    explained = job.command("throttles", "explain", str(first["decision_id"])[:8])
    assert (explained.returncode, "alice" in explained.stdout) == (0, True), explained.stderr
    assert job.stop() == 0, job.log[-20:]
    assert job.command("status", "-o", "json").returncode == 0

    since = len(job.log)
    job.start()
    assert not any("created tables" in line for line in job.log[since:])
    assert any("rebuilt rates from" in line for line in job.log[since:])
    job.send(usage("bob", 200_000))
    assert job.wait_for_record(user="bob", action="throttle")["publish_seq"] > first["publish_seq"]


@pytest.mark.parametrize("point", ["usage.appended", "outbox.appended"])
def test_a_job_that_is_killed_leaves_what_a_job_leaves_that_is_not(
    point: str, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    outcome = play(
        point, tmp_path, broker.bootstrap_servers, 11, goes_on_seconds=_GOES_ON_SECONDS, overrides=in_catalog(tmp_path)
    )
    assert outcome.verdict["differences"] == []
    for check, least in AT_LEAST.items():
        assert outcome.verdict["compared"][check] >= least, check
