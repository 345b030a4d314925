"""The judge finds each change of what a job left, and nothing where there is none.

Defects of the job that it must find stand in tests/mutations/whole_job.txt.
"""

import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.faults.__main__ import main
from tests.faults.evidence import Evidence
from tests.faults.hand_job import AT_LEAST, HandJob, Load, live
from tests.faults.rounds import Outcome
from tests.faults.verdict import Verdict
from tests.faults.verifier import verify


def test_a_job_without_a_defect_is_equal(tmp_path: Path) -> None:
    load = Load(tmp_path, in_memory=True)
    live(load)
    assert load.job.verdict(AT_LEAST).told() == []


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> HandJob:
    """A short life of a correct job."""
    load = Load(tmp_path_factory.mktemp("short"), in_memory=True)
    load.steps(30)
    load.come_to_rest()
    return load.job


@pytest.fixture
def found(job: HandJob) -> Evidence:
    return deepcopy(job.evidence())


def judged(job: HandJob, found: Evidence) -> Verdict:
    return verify(found, job.rules)


Tamper = Callable[[Evidence], Any]


def drop(table: str) -> Tamper:
    return lambda found: found.tables[table].pop(0)


def repeat(table: str) -> Tamper:
    return lambda found: found.tables[table].append(dict(found.tables[table][0]))


def more(table: str, column: str) -> Tamper:
    """One more in a column of the first row that has a number there."""

    def tamper(found: Evidence) -> None:
        row = next(row for row in found.tables[table] if row[column] is not None)
        row[column] += 1

    return tamper


TAMPERED: dict[str, Tamper] = {
    **{f"{table}: lost": drop(table) for table in ("usage", "dead_letters", "decisions", "batches")},
    **{f"{table}: duplicated": repeat(table) for table in ("usage", "dead_letters", "decisions")},
    "publish_seq: lost": drop("throttle_events"),
    "publish_seq: duplicated": repeat("throttle_events"),
    "usage: different": more("usage", "request_count"),
    "batches: different": more("batches", "clamped_count"),
    "decisions: different": more("decisions", "raw_throttle_time_ms"),
    "dead_letters: different": lambda found: found.tables["dead_letters"][0].update(appended_at_ms=1),
    "buckets: different": more("sensor_state", "tokens"),
    "begins: different": more("throttle_events", "owed_ms"),
    "topic: lost": lambda found: found.records.pop(1),
    "topic: duplicated": lambda found: found.records.append(found.records[0]),
    "topic: different": lambda found: found.records.insert(0, found.records.pop(1)),
    "messages: lost": lambda found: found.messages.append(found.messages[-1].__class__(0, 10**6, 1, b"k", b"{}")),
}


def test_what_a_short_life_leaves_is_equal(job: HandJob, found: Evidence) -> None:
    assert judged(job, found).told() == []


@pytest.mark.parametrize("told", TAMPERED)
def test_what_was_tampered_with_is_found(told: str, job: HandJob, found: Evidence) -> None:
    TAMPERED[told](found)
    lines = judged(job, found).told()
    assert [line for line in lines if line.startswith(told)], lines


@pytest.mark.parametrize(("tamper", "ends_with"), [(None, 0), ("topic: lost", 1)])
def test_the_command_ends_with_1_if_a_round_differs_and_prints_the_sums(
    tamper: str | None, ends_with: int, job: HandJob, found: Evidence, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if tamper:
        TAMPERED[tamper](found)
    verdict = judged(job, found)
    monkeypatch.setattr(sys, "argv", ["faults", "--points", "usage.appended"])
    monkeypatch.setattr("tests.faults.__main__.play_apart", lambda point, *_: Outcome(point, 1.5, verdict))
    assert main() == ends_with
    assert f"1 kills: {ends_with} lost, 0 duplicated, 0 different." in capsys.readouterr().out


def test_a_verdict_that_has_compared_too_little_is_a_failure(job: HandJob, found: Evidence) -> None:
    verdict = verify(found, job.rules, at_least={"messages": 10**6, "topic": 0})
    assert [line for line in verdict.told() if "too few" in line] == verdict.told() != []
