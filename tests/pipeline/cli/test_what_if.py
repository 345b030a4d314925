import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.documents import UnreadableFile
from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.event_table import EventTable
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


def quotas_file(job: KeptJob, bound: float) -> Path:
    candidate = Path(job.root) / "candidate.yaml"
    candidate.write_text(f"quotas:\n- {{user: u, client_id: '', producer_byte_rate: {bound}}}\n", encoding="utf-8")
    return candidate


def what_if(job: KeptJob, *words: str, bound: float = 2_000.0) -> tuple[int, str, str]:
    ends = ["--since", str(job.clock.wall_ms - 59_000), "--until", str(job.clock.wall_ms + 1)]
    given = ["what-if", "--quotas", str(quotas_file(job, bound)), *ends, "--tables", job.root, *words]
    answer = CliRunner().invoke(app, given)
    return answer.exit_code, answer.stdout, answer.stderr


def test_it_says_who_would_be_throttled_and_how_exact_it_is(job: KeptJob) -> None:
    code, text, told = what_if(job)
    assert code == 0
    assert "newly throttled" in text
    assert "1 of 1 clients throttled; against the usage with today's quotas 1 newly, 0 no longer" in text
    assert re.search(r"usage, the exact batches: 60 evaluations, 60 rows; \d+\.\d s\n", told)


def test_what_a_table_leaves_out_is_shown_by_the_option_it_names(job: KeptJob) -> None:
    job.batch([usage_row(job.clock.wall_ms, client_id="d", produced_bytes=3_000)])
    job.flush()
    _, text, _ = what_if(job, "--limit", "1")
    assert "\n1 of 2 clients are not shown: --limit 2\n" in text
    _, text, _ = what_if(job, "--limit", "2")
    assert ("u/d" in text, "not shown" in text) == (True, False)


def test_a_raise_is_compared_with_todays_quotas(job: KeptJob) -> None:
    job.edit(QuotaChange("u", "", {"producer_byte_rate": 1_000.0}))
    (today,) = json.loads(what_if(job, "-o", "json")[1])
    assert today["clients"][0]["change"] == "shorter", "the candidate is above the bound of today"


def test_a_line_whose_replay_differs_from_what_happened_is_unsure(job: KeptJob) -> None:
    began_ms = job.clock.wall_ms - 59_000
    events = EventTable(Path(job.root), epoch=9)
    events.write(("c", "throttle", began_ms + 10_000, 5_000))
    code, text, _ = what_if(job, "-o", "json")
    (row,) = json.loads(text)[0]["clients"]
    assert (code, row["throttle_seconds_happened"], row["replay_off_percent"], row["is_off"]) == (0, 5.0, 100.0, True)
    assert "unsure: off by 100 %" in what_if(job)[1]


def test_it_says_which_range_has_usage_and_what_of_the_range_asked_for_has_none(job: KeptJob) -> None:
    newest_ms = job.clock.wall_ms
    _, _, told = what_if(job)
    assert "usage from 2023-11-14T22:13:21 to 2023-11-14T22:14:20 UTC\n" in told
    asked = ["--since", str(newest_ms - 159_000), "--until", str(newest_ms + 90_001)]
    _, _, told = what_if(job, *asked)
    assert (
        "UTC; it begins 1 min 40 s after --since and ends 1 min 30 s before --until: the report leaves out the rest\n"
        in told
    )
    _, text, _ = what_if(job, *asked, "-o", "json")
    about = json.loads(text)[0]["about"]
    ends = about["usage_since_ms"], about["usage_until_ms"], about["since_ms"], about["until_ms"]
    assert ends == (newest_ms - 59_000, newest_ms + 1, newest_ms - 159_000, newest_ms + 90_001)


def test_throttles_are_not_counted_after_the_usage_has_ended(job: KeptJob) -> None:
    texts = [what_if(job, *words, "-o", "json")[1] for words in ((), ("--until", str(job.clock.wall_ms + 90_001)))]
    assert json.loads(texts[0])[0]["totals"] == json.loads(texts[1])[0]["totals"]


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


def test_a_candidate_that_is_missing_is_named_with_files_like_it(job: KeptJob) -> None:
    quotas_file(job, 1.0)
    given = ["what-if", "--quotas", f"{job.root}/candidat.yaml", "--tables", job.root]
    answer = CliRunner().invoke(app, given)
    assert isinstance(answer.exception, UnreadableFile)
    assert "there is no such file" in str(answer.exception)
    assert str(answer.exception).endswith(f"correct the path: the folder is {job.root}; it has candidate.yaml")


def test_a_candidate_may_have_units(job: KeptJob) -> None:
    candidate = Path(job.root) / "units.yaml"
    candidate.write_text("- {user: u, producer_byte_rate: 2kB/s}\n", encoding="utf-8")
    _, text, _ = what_if(job, "-o", "json")
    ends = ["--since", str(job.clock.wall_ms - 59_000), "--until", str(job.clock.wall_ms + 1), "-o", "json"]
    given = ["what-if", "--quotas", str(candidate), *ends, "--tables", job.root]
    with_units = CliRunner().invoke(app, given).stdout
    assert json.loads(with_units)[0]["totals"] == json.loads(text)[0]["totals"]
