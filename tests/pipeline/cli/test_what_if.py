"""`kquota what-if`: what it asks of the tables, what it prints, and when it fails; and `kquota simulate`."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import Answer, kquota
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.factories import EventTable
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


def what_if(job: KeptJob, *words: str, bound: str = "2kB/s") -> Answer:
    candidate = Path(job.root) / "candidate.yaml"
    candidate.write_text(f"quotas:\n- {{user: u, client_id: '', producer_byte_rate: {bound}}}\n", encoding="utf-8")
    ends = ("--since", str(job.clock.wall_ms - 59_000), "--until", str(job.clock.wall_ms + 1))
    return kquota("what-if", "--quotas", str(candidate), *ends, "--tables", job.root, *words)


def document(job: KeptJob, *words: str) -> dict[str, Any]:
    (found,) = json.loads(what_if(job, *words, "-o", "json").stdout)
    return dict(found)


def test_what_a_table_leaves_out_is_shown_by_the_option_it_names(job: KeptJob) -> None:
    job.batch([usage_row(job.clock.wall_ms, client_id="d", produced_bytes=3_000)])
    job.flush()
    assert "\n1 of 2 clients are not shown: --limit 2\n" in what_if(job, "--limit", "1").stdout
    text = what_if(job, "--limit", "2").stdout
    assert ("u/d" in text, "not shown" in text) == (True, False)


def test_a_raise_is_compared_with_todays_quotas(job: KeptJob) -> None:
    job.edit(QuotaChange("u", "", {"producer_byte_rate": 1_000.0}))
    assert document(job)["clients"][0]["change"] == "shorter", "the candidate is above the bound of today"


def test_a_line_whose_replay_differs_from_what_happened_is_unsure(job: KeptJob) -> None:
    EventTable(Path(job.root), epoch=9).write(("c", "throttle", job.clock.wall_ms - 49_000, 5_000))
    (row,) = document(job)["clients"]
    assert (row["throttle_seconds_happened"], row["replay_off_percent"], row["is_off"]) == (5.0, 100.0, True)
    assert "unsure: off by 100 %" in what_if(job).stdout


def test_a_range_without_usage_is_told_and_holds_nobody(job: KeptJob) -> None:
    newest_ms = job.clock.wall_ms
    asked = ("--since", str(newest_ms - 159_000), "--until", str(newest_ms + 90_001))
    told = what_if(job, *asked).stderr
    assert "begins 1 min 40 s after --since and ends 1 min 30 s before --until: the report leaves out the rest" in told
    found = document(job, *asked)
    ends = [found["about"][name] for name in ("usage_since_ms", "usage_until_ms", "since_ms", "until_ms")]
    assert ends == [newest_ms - 59_000, newest_ms + 1, newest_ms - 159_000, newest_ms + 90_001]
    assert found["totals"] == document(job)["totals"]


@pytest.mark.parametrize(("bound", "throttled"), [("2kB/s", 1), ("2000", 1), ("4kB/s", 0)])
def test_a_budget_that_is_broken_fails_and_says_which(bound: str, throttled: int, job: KeptJob) -> None:
    answer = what_if(job, "--fail-if", "throttled>5", "--fail-if", "newly_throttled>0", bound=bound)
    assert f"{throttled} of 1 clients throttled" in answer.stdout
    assert answer.exit_code == throttled
    assert answer.stderr.endswith("failed: newly_throttled>0: newly_throttled is 1\n") is bool(throttled)
    assert "throttled>5" not in answer.stderr


EXAMPLE = Path(__file__).parents[3] / "examples" / "simulate"
FILES = str(EXAMPLE / "quotas.yaml"), str(EXAMPLE / "events.jsonl")


def test_a_simulation_is_the_same_beside_a_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "kquota.toml"
    settings.write_text("[stream]\ntrigger_ms = 250\n")
    plain = kquota("simulate", *FILES)
    monkeypatch.setenv("KQUOTA_CONFIG", str(settings))
    assert kquota("simulate", *FILES) == plain
    assert kquota("simulate", *FILES, "--config", str(settings)) != plain


@pytest.mark.parametrize("file", FILES)
def test_a_simulation_with_one_kind_of_file_alone_is_wrong_usage(file: str) -> None:
    answer = kquota("simulate", file)
    assert (answer.exit_code, answer.stdout) == (2, "")
