from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.tables.address import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    """Four batches, two decisions, the second under a raised bound."""
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 1_000.0}))
    for produced_bytes in (30_000, 0):
        job.clock.advance(500)
        job.decided += job.batch([usage_row(job.clock.wall_ms, user="alice", produced_bytes=produced_bytes)])
    job.edit(QuotaChange("alice", "", {"producer_byte_rate": 2_000.0}))
    job.clock.advance(500)
    job.decided += job.batch([usage_row(job.clock.wall_ms, user="alice", produced_bytes=0)])
    job.flush()
    return job


def kquota(job: KeptJob, *words: str) -> tuple[int, str, str]:
    answer = CliRunner().invoke(app, ["throttles", *words, "--tables", job.root])
    return answer.exit_code, answer.stdout, answer.stderr


def falsify(job: KeptJob) -> None:
    uri = table_uri(job.root, "decisions")
    stored = DeltaTable(uri).to_pyarrow_table()
    rows = [{**row, "window_ms": row["window_ms"] + 1} for row in stored.to_pylist()]
    write_deltalake(uri, pa.Table.from_pylist(rows, stored.schema), mode="overwrite")


def test_a_decision_is_verified_from_its_usage(job: KeptJob) -> None:
    code, _, told = kquota(job, "explain", job.decided[-1]["decision_id"], "--verify")
    assert (code, told) == (0, "verified: recomputed from 3 usage rows, same row\n")


def test_explain_names_the_edit_that_set_the_bound(job: KeptJob) -> None:
    _, text, _ = kquota(job, "explain", job.decided[-1]["decision_id"])
    (line,) = [line for line in text.splitlines() if line.startswith("  T set")]
    assert "by quota table version 3: 1000 (1.0 kB/s) → 2000 (2.0 kB/s)" in line
    assert line.endswith("by carol at ops1: more for the nightly run")
    assert "  bound     T = 2000.0 bytes/s (2.0 kB/s)" in text.splitlines()


def test_a_falsified_decision_fails_with_the_columns_that_differ(job: KeptJob) -> None:
    falsify(job)
    window_ms = job.decided[-1]["window_ms"]
    code, _, told = kquota(job, "explain", job.decided[-1]["decision_id"], "--verify")
    assert code == 1
    assert f"window_ms: stored {window_ms + 1}, recomputed {window_ms}" in told


def test_a_range_is_verified_in_one_line(job: KeptJob) -> None:
    code, text, _ = kquota(job, "verify")
    assert code == 0
    assert text.endswith(" UTC, 3 batches with usage: 3 decisions, 0 mismatches\n")


def test_a_falsified_range_fails_and_shows_its_rows(job: KeptJob) -> None:
    falsify(job)
    code, text, _ = kquota(job, "verify", "--limit", "1")
    assert code == 1
    assert "3 decisions, 3 mismatches" in text
    assert text.count("window_ms: stored") == 1
