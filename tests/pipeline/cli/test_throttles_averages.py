import json
from pathlib import Path

import pytest

from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import kquota
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row


@pytest.fixture
def kept(tmp_path: Path) -> KeptJob:
    return KeptJob(str(tmp_path), QuotaChange("<default>", "", {"producer_byte_rate": 100.0}))


def used(job: KeptJob, second: int, produced_bytes: int) -> int:
    """One batch of alice's; the throttle time it asks for."""
    rows = job.batch([usage_row(job.clock.wall_ms + second * 1000, user="alice", produced_bytes=produced_bytes)])
    return sum(row["throttle_time_ms"] for row in rows)


def test_averages_are_of_the_minute_before_the_instant(kept: KeptJob) -> None:
    first_ms, second_ms, _ = used(kept, 0, 1_100), used(kept, 1, 100), used(kept, 90, 5_000)
    kept.flush()
    instant = str(kept.clock.wall_ms + 1_000)
    answer = kquota("throttles", "averages", "--tables", kept.root, "--at", instant, "-o", "json")
    told = json.loads(answer.stdout)
    (row,) = told["throttle_times"]
    assert (row["sensor_user"], row["throttles"]) == ("alice", 2)
    assert row["throttle_time_avg_ms"] == (first_ms + second_ms) / 2
    assert told["exempt_request_percentage"] == 0.0


def test_a_minute_without_throttles_has_no_rows(kept: KeptJob) -> None:
    used(kept, 0, 5_000)
    kept.flush()
    answer = kquota("throttles", "averages", "--tables", kept.root, "--at", str(kept.clock.wall_ms + 80_000))
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert answer.stderr == "exempt requests took 0.00 % of one thread\n"
