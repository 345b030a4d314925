"""What `kquota quotas describe -o wide` and `effective` show: rates beside bounds, and the level that holds."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import Answer, kquota
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    """Of 10 kB/s: alice uses 5 kB/s, bob (in shadow) 20 kB/s, and eve, who has the default's, 0.1 kB/s."""
    quotas = (
        QuotaChange("alice", "", {"producer_byte_rate": 10_000.0}),
        QuotaChange("bob", "", {"producer_byte_rate": 10_000.0, "mode": "shadow"}),
        QuotaChange("<default>", "", {"producer_byte_rate": 10_000.0}),
        QuotaChange("idle", "", {"producer_byte_rate": 10_000.0}),
        QuotaChange("free", "", {"mode": "exempt"}),
    )
    job = KeptJob(str(tmp_path), *quotas)
    for _ in range(20):
        job.clock.advance(1_000)
        used = {"alice": 5_000, "bob": 20_000, "eve": 100}
        job.batch([usage_row(job.clock.wall_ms, user=user, produced_bytes=count) for user, count in used.items()])
    job.show_rates()
    return job


def describe(job: KeptJob, *words: str) -> Answer:
    return kquota("quotas", "describe", *words, "--tables", job.root)


def test_the_quota_nearest_to_its_bound_comes_first_with_its_rate(job: KeptJob) -> None:
    answer = describe(job, "-o", "wide")
    assert answer.stderr.startswith("rates at 2023-11-14T22:13:40 UTC, batch 19, ")
    header, *lines = answer.stdout.splitlines()
    assert header.split("  ")[0] == "user"
    assert [line.split()[0] for line in lines] == ["<default>", "bob", "alice", "free", "idle"]
    shown = [" ".join(line.split()) for line in lines]
    # 11 windows of one second, the newest of which has just begun: W = 10 s.
    # Until bob's own quota is enforced, the default holds for him as it does for eve.
    assert shown[0].startswith("<default> producer_byte_rate 10000 (10.0 kB/s) 22.0 kB/s 220.0 % bob 2 enforce")
    assert shown[1].startswith("bob producer_byte_rate 10000 (10.0 kB/s) 22.0 kB/s 220.0 % bob 1 shadow")
    assert shown[2].startswith("alice producer_byte_rate 10000 (10.0 kB/s) 5.5 kB/s 55.0 % alice 1 enforce")
    assert shown[4].startswith("idle producer_byte_rate 10000 (10.0 kB/s) 0.0 B/s 0.0 % 0 enforce")
    lines = describe(job, "--user", "alice", "-o", "wide").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["user", "alice"], "only those that are meant"


def test_other_formats_need_no_rates(job: KeptJob) -> None:
    shutil.rmtree(f"{job.root}/rates")
    for output in ("kafka", "table", "json"):
        assert describe(job, "-o", output).exit_code == 0
    assert describe(job, "-o", "wide").exit_code == 2


def test_before_the_first_batch_there_are_no_rates(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 1.0}))
    answer = describe(job, "-o", "wide")
    assert answer.exit_code == 0
    assert answer.stderr.startswith("no rates: the job has stored none yet\n")


def test_the_levels_and_the_live_clients_that_share_are_shown(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 1_048_576.0}))
    at_ms = job.clock.wall_ms
    job.batch([usage_row(at_ms, user="alice", client_id=name, produced_bytes=1) for name in ("etl", "web")])
    job.flush()
    effective = ("quotas", "effective", "alice", "etl", "--tables", job.root, "-o")
    text = kquota(*effective, "wide").stdout
    assert "1048576 (1.0 MB/s)  alice" in text, "the bound that holds, exactly and readable"
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("producer_byte_rate")] == ["alice/web"]
    (document,) = json.loads(kquota(*effective, "json").stdout)
    assert [row["level"] for row in document["levels"] if row["bounds"]] == [3]
    assert document["effective"][0]["shared_with"] == ["alice/web"]
    assert document["effective"][1]["bound"] is None
