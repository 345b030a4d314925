import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.tables.quota_edit import QuotaChange
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    """A minute in which u uses 3 kB/s under a bound of 5 kB/s."""
    job = KeptJob(str(tmp_path), QuotaChange("u", "", {"producer_byte_rate": 5_000.0}))
    for _ in range(60):
        job.clock.advance(1_000)
        job.batch([usage_row(job.clock.wall_ms, produced_bytes=3_000)])
    job.flush()
    return job


def what_if(job: KeptJob, *words: str, bound: float = 2_000.0) -> tuple[int, str, str]:
    candidate = Path(job.root) / "candidate.yaml"
    candidate.write_text(f"quotas:\n- {{user: u, client_id: '', producer_byte_rate: {bound}}}\n", encoding="utf-8")
    ends = ["--since", str(job.clock.wall_ms - 59_000), "--until", str(job.clock.wall_ms + 1)]
    given = ["what-if", "--quotas", str(candidate), "--from", "usage", *ends, "--tables", job.root, *words]
    answer = CliRunner().invoke(app, given)
    return answer.exit_code, answer.stdout, answer.stderr


def test_it_says_who_would_be_throttled_and_how_exact_it_is(job: KeptJob) -> None:
    code, text, told = what_if(job)
    assert code == 0
    assert "newly throttled" in text
    assert "1 of 1 clients throttled, 1 newly, 0 no longer" in text
    assert "usage, the exact batches: 60 evaluations" in told


def test_a_candidate_above_the_use_throttles_nobody(job: KeptJob) -> None:
    _, text, _ = what_if(job, bound=4_000.0)
    assert "0 of 1 clients throttled" in text


def test_a_budget_that_is_broken_fails_and_says_which(job: KeptJob) -> None:
    code, _, told = what_if(job, "--fail-if", "throttled>5", "--fail-if", "newly_throttled>0")
    assert code == 1
    assert told.endswith("failed: newly_throttled>0: newly_throttled is 1\n")
    assert "throttled>5" not in told


def test_json_has_the_totals_and_the_clients(job: KeptJob) -> None:
    _, text, _ = what_if(job, "-o", "json")
    (document,) = json.loads(text)
    assert (document["totals"]["throttled"], [row["user"] for row in document["clients"]]) == (1, ["u"])


def test_the_page_stands_alone(job: KeptJob, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    what_if(job, "--html", str(page))
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") == 2
    assert "newly throttled" in html
    assert "http" not in html


def test_names_can_not_write_into_the_page(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("<default>", "", {"producer_byte_rate": 5_000.0}))
    job.batch([usage_row(job.clock.wall_ms + 59_000, user="<script>", produced_bytes=90_000)])
    job.flush()
    job.clock.advance(60_000)
    page = tmp_path / "report.html"
    what_if(job, "--html", str(page))
    assert "&lt;script&gt;" in page.read_text(encoding="utf-8")
    assert "<script" not in page.read_text(encoding="utf-8")
