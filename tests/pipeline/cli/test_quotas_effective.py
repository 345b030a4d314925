import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 1_048_576.0}))
    at_ms = job.clock.wall_ms
    job.batch([usage_row(at_ms, user="alice", client_id=client_id, produced_bytes=1) for client_id in ("etl", "web")])
    job.flush()
    return job


def effective(job: KeptJob, *words: str) -> tuple[int, str, str]:
    given = ["quotas", "effective", "--user", "alice", "--client-id", "etl", "--tables", job.root, *words]
    answer = CliRunner().invoke(app, given)
    return answer.exit_code, answer.stdout, answer.stderr


def test_the_levels_and_the_live_clients_that_share_are_printed(job: KeptJob) -> None:
    code, text, told = effective(job, "-o", "wide")
    assert (code, told) == (0, "quotas v2, recent clients: 2\n")
    (matched,) = [" ".join(line.split()) for line in text.splitlines() if line.endswith("producer_byte_rate")]
    assert matched == "3 alice enforce producer_byte_rate 1048576 (1.0 MB/s) producer_byte_rate"
    assert "1048576 (1.0 MB/s)  alice" in text, "the bound that holds, exactly and readable"
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("producer_byte_rate")] == ["alice/web"]


def test_json_has_all_of_it(job: KeptJob) -> None:
    _, text, _ = effective(job, "-o", "json")
    (document,) = json.loads(text)
    assert [row["level"] for row in document["levels"] if row["bounds"]] == [3]
    assert document["effective"][0]["shared_with"] == ["alice/web"]
    assert document["effective"][1]["bound"] is None
