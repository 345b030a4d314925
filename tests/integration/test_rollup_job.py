"""The roll-up beside a running job; and another process verifies what the job has recorded."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from tests.integration.running_job import RunningJob, running_job, usage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

PAST_MS = 90_000


@pytest.fixture
def job(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[RunningJob]:
    with running_job("rolled", tmp_path, broker.bootstrap_servers) as running:
        running.overrides["KQUOTA_STREAM__ROLLUP_INTERVAL_MS"] = "500"
        added = running.command("quotas", "alter", "--user-defaults", "--add-config", "producer_byte_rate=1000")
        assert added.returncode == 0, added.stderr
        running.start()
        yield running


def wait_for_seconds(job: RunningJob) -> list[dict[str, object]]:
    """Send usage, which lets the roll-up go on, until it has rows."""

    def has_rows() -> bool:
        job.send(usage("bob", 1))
        return bool(job.table("usage_by_second").num_rows)

    job.wait_until(has_rows, "a row in usage_by_second")
    rows: list[dict[str, object]] = job.table("usage_by_second").to_pylist()
    return rows


def test_seconds_are_rolled_up_and_decisions_verified_while_the_job_runs(job: RunningJob) -> None:
    at_ms = time.time_ns() // 1_000_000 - PAST_MS
    events = [usage("alice", 20_000, event_time_ms=at_ms), usage("alice", 3_000, event_time_ms=at_ms // 1_000 * 1_000)]
    job.send(*events)
    job.wait_for_line("violations=1")
    (row,) = wait_for_seconds(job)
    assert (row["second_start_ms"], row["user"], row["produced_bytes"]) == (at_ms // 1_000 * 1_000, "alice", 23_000)
    verified = job.command("throttles", "verify")
    assert verified.stdout.endswith(" decisions, 0 mismatches\n"), verified.stderr
    assert verified.returncode == 0
    assert job.stop() == 0
    assert not [line for line in job.log if "Traceback" in line or "ERROR" in line]
