"""A start with other engine settings than those the stored batches were decided with.

Where only the decisions count, the job's tables are in memory; what is verified afterwards is in Delta.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pipeline import failpoints
from pipeline.settings.model import EngineSettings
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob

KEY = ("batch_id", "user", "quota_type")
FIGURES = ("observed", "bound", "window_ms", "raw_throttle_time_ms")


def by(*quick: tuple[int, int], long: tuple[tuple[int, int], ...]) -> pytest.MarkDecorator:
    """Numbers of samples and sample windows in ms. Each case starts whole jobs: most of them are for the long run."""
    cases = [*quick, *(pytest.param(*case, marks=pytest.mark.long) for case in long)]
    return pytest.mark.parametrize(("num_samples", "sample_window_ms"), cases)


def with_engine(job: HandJob, num_samples: int, sample_window_ms: int) -> None:
    engine = EngineSettings(num_samples=num_samples, sample_window_ms=sample_window_ms)
    job.settings = job.settings.model_copy(update={"engine": engine})


def new_job(folder: Path, num_samples: int, sample_window_ms: int, in_memory: bool = True) -> HandJob:
    job = HandJob(folder, RATES, in_memory)
    with_engine(job, num_samples, sample_window_ms)
    job.start()
    return job


def run(job: HandJob, steps: int, produced_bytes: int = 4_000) -> None:
    for number in range(steps):
        job.clock.advance(130)
        usage = {"event_time_ms": job.clock.wall_ms, "client_id": "c", "produced_bytes": produced_bytes}
        job.send(*(json.dumps({**usage, "user": user}).encode() for user in ("alice", f"other-{number % 3}")))
        job.step()


def decisions_of(job: HandJob, since_batch: int = 0) -> dict[Any, Any]:
    return {
        tuple(row[name] for name in KEY): [row[name] for name in FIGURES]
        for row in job.rows("decisions", [*KEY, *FIGURES]).to_pylist()
        if row["batch_id"] >= since_batch
    }


@by((4, 750), long=((8, 500), (4, 1_000), (3, 500), (4, 250), (2, 2_000), (4, 333)))
def test_the_job_starts_and_goes_on_deciding_also_when_it_is_started_once_more(
    tmp_path: Path, num_samples: int, sample_window_ms: int
) -> None:
    job = new_job(tmp_path, 4, 500)
    run(job, 20)
    with_engine(job, num_samples, sample_window_ms)
    for _ in range(3):
        job.start()
        before = job.spark.committed
        run(job, 10, produced_bytes=40_000)
        assert ("alice", "producer_byte_rate") in {key[1:] for key in decisions_of(job, before + 1)}


def test_with_another_sample_window_rates_begin_empty_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job(tmp_path, 4, 500)
    run(job, 30)
    assert job.decider.buckets().num_rows
    with_engine(job, 4, 750)
    with caplog.at_level(logging.WARNING, "pipeline.stream"):
        job.start()
    (line,) = caplog.messages
    assert "sample_window_ms 500 -> 750" in line
    assert "begin empty" in line
    assert job.decider.buckets().num_rows == 0
    before = job.spark.committed
    run(job, 1, produced_bytes=1)
    assert decisions_of(job, before + 1) == {}
    job.start()
    run(job, 1, produced_bytes=1)
    assert decisions_of(job, before + 1) == {}


def test_another_number_of_samples_counts_the_stored_usage_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed, always = new_job(tmp_path / "changed", 4, 500), new_job(tmp_path / "always", 8, 500)
    for job in (changed, always):
        run(job, 20)
    with_engine(changed, 8, 500)
    with caplog.at_level(logging.INFO, "pipeline.stream"):
        for job in (changed, always):
            job.start()
            run(job, 20)
        changed.start()
    (line,) = (line for line in caplog.messages if "engine settings" in line)
    assert "num_samples 4 -> 8" in line
    assert decisions_of(changed, 20) == decisions_of(always, 20)
    assert len(decisions_of(changed, 20)) > 10


@by((4, 750), long=((8, 500), (2, 1_000)))
def test_a_batch_cut_short_is_decided_with_the_settings_it_was_recorded_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_samples: int, sample_window_ms: int
) -> None:
    jobs = [new_job(tmp_path / name, 4, 500) for name in ("killed", "whole")]
    killed, whole = jobs
    for job in jobs:
        run(job, 20)
    monkeypatch.setattr(failpoints, "_armed", failpoints.Failpoint("usage.appended:1:raise"))
    with pytest.raises(failpoints.FailpointReached):
        run(killed, 1)
    monkeypatch.setattr(failpoints, "_armed", None)
    run(whole, 1)
    with_engine(killed, num_samples, sample_window_ms)
    killed.start()
    assert decisions_of(killed, 20) == decisions_of(whole, 20)
    assert decisions_of(killed, 20)
