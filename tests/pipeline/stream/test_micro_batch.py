"""Batches of a job on a clock set by hand: a clock that is ahead, and batches that are too old."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.failpoints import FailpointReached
from pipeline.settings.model import EngineSettings
from tests.faults.evidence import Message
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob, armed
from tests.log_messages import messages_of

FIVE_MINUTES_MS = 300_000
LIMIT_LOG = "pipeline.stream.usage_columns"


@pytest.fixture
def job(tmp_path: Path) -> HandJob:
    job = HandJob(tmp_path, RATES, in_memory=True)
    job.start()
    return job


def usage_of(user: str, produced_bytes: int, event_time_ms: int) -> bytes:
    fields = {"event_time_ms": event_time_ms, "user": user, "client_id": "c", "produced_bytes": produced_bytes}
    return json.dumps(fields).encode()


def send_from_ahead(job: HandJob, *times_ms: int) -> None:
    """A meter and the leader of its partition are on a host whose clock is ahead."""
    for time_ms in times_ms:
        offset = len(job.messages)
        job.messages.append(Message(0, offset, time_ms, f"{offset}".encode(), usage_of("bob", 1, time_ms)))


def test_the_log_names_the_client_that_is_ahead_once_a_minute(job: HandJob, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pipeline.stream"):
        for _ in range(5):
            send_from_ahead(job, job.clock.wall_ms + FIVE_MINUTES_MS, job.clock.wall_ms + 1_000)
            job.step()
            job.clock.advance(10_000)
        (first,) = messages_of(caplog, LIMIT_LOG)
        for told in ("1 events", "298.0 s", "'bob'"):
            assert told in first
        job.clock.advance(20_000)
        send_from_ahead(job, job.clock.wall_ms + FIVE_MINUTES_MS)
        job.step()
    _, second = messages_of(caplog, LIMIT_LOG)
    assert "5 events" in second


@pytest.mark.parametrize(
    ("restarts", "level", "told"),
    [(True, logging.INFO, "has usage from before this start"), (False, logging.WARNING, "is 147.0 s old")],
)
def test_old_usage_is_an_alarm_of_a_job_that_is_behind_and_none_after_a_stop(
    restarts: bool, level: int, told: str, job: HandJob, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job.send(usage_of("u", 1_000_000, job.clock.wall_ms))
    job.clock.advance(147_000)
    if restarts:
        job.start()
    job.step()
    wanted = level, f"batch_id=0 {told}: 1 violation recorded, but no throttle is published"
    logged = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [one for one in logged if "no throttle is published" in one[1]] == [wanted]


# Usage of a gap. The job answers what is not older than 60 s.


def flags(job: HandJob) -> list[tuple[int, bool]]:
    """How old each row of the newest batches was when it was collected, in seconds, and whether it is of a gap."""
    processed_ms = {row["batch_id"]: row["processed_at_ms"] for row in job.rows("batches").to_pylist()}
    rows = [row for row in job.rows("usage").to_pylist() if row["batch_id"]]
    ages = ((processed_ms[row["batch_id"]] - row["last_event_ms"], row["in_gap"]) for row in rows)
    return sorted((age_ms // 1_000, in_gap) for age_ms, in_gap in ages)


def step_with(job: HandJob, *ages_ms: int) -> None:
    """A batch of usage of alice that is so old, and of bob's of now."""
    now_ms = job.clock.wall_ms
    job.send(*(usage_of("alice", 1, now_ms - age_ms) for age_ms in ages_ms), usage_of("bob", 1, now_ms))
    job.step()


def after_a_stop(job: HandJob) -> list[tuple[int, bool]]:
    """The process stands still for 70 s; its next batch has the usage of all of them."""
    job.clock.advance(70_000)
    step_with(job, 70_000, 69_500, 60_001, 60_000)
    return [(0, False), (60, False), (60, True), (69, True), (70, False)]


def a_backlog_in_batches(job: HandJob) -> list[tuple[int, bool]]:
    """After a stop three batches find usage of it; the one after them finds usage as old of one broker."""
    begun_ms = job.clock.wall_ms
    job.clock.advance(200_000)
    for at_ms in (20_000, 50_000, 130_000):
        step_with(job, job.clock.wall_ms - begun_ms - at_ms)
        job.clock.advance(500)
    for age_ms in (0, 65_000):
        step_with(job, age_ms)
        job.clock.advance(500)
    return sorted([*[(0, False)] * 6, (65, False), (71, True), (150, True), (180, True)])


def an_outage_and_then_one_broker_behind(job: HandJob) -> list[tuple[int, bool]]:
    """The usage of the broker that is behind stays of the gap as long as it happened in it, and no longer."""
    for later_ms in (100_000, 4_000, 4_000, 4_000):
        job.clock.advance(later_ms)
        step_with(job, 65_000)
    return sorted([*[(0, False)] * 4, (65, True), (65, True), (65, False), (65, False)])


def a_kill_in_the_backlog(job: HandJob) -> list[tuple[int, bool]]:
    job.clock.advance(200_000)
    for age_ms in (180_000, 150_000):
        step_with(job, age_ms)
        job.start()
    return [(0, False), (0, False), (150, True), (180, True)]


GAPS = [after_a_stop, a_backlog_in_batches, an_outage_and_then_one_broker_behind, a_kill_in_the_backlog]


@pytest.mark.parametrize("trouble", GAPS)
def test_usage_that_could_not_be_answered_in_time_is_of_a_gap(
    trouble: Callable[[HandJob], list[tuple[int, bool]]], job: HandJob
) -> None:
    job.send(usage_of("alice", 1, job.clock.wall_ms))
    job.step()
    assert sorted(trouble(job)) == flags(job)
    assert job.verdict().told() == []


# A start with other engine settings than those the stored batches were decided with.


KEY = ("batch_id", "user", "quota_type")
FIGURES = ("observed", "bound", "window_ms", "raw_throttle_time_ms")


def with_engine(job: HandJob, num_samples: int, sample_window_ms: int) -> None:
    engine = EngineSettings(num_samples=num_samples, sample_window_ms=sample_window_ms)
    job.settings = job.settings.model_copy(update={"engine": engine})


def with_samples(folder: Path, num_samples: int) -> HandJob:
    job = HandJob(folder, RATES, in_memory=True)
    with_engine(job, num_samples, 500)
    job.start()
    return job


def run(job: HandJob, steps: int, produced_bytes: int = 4_000) -> None:
    for number in range(steps):
        job.clock.advance(130)
        users = ("alice", f"other-{number % 3}")
        job.send(*(usage_of(user, produced_bytes, job.clock.wall_ms) for user in users))
        job.step()


def decisions_of(job: HandJob, since_batch: int = 0) -> dict[Any, Any]:
    return {
        tuple(row[name] for name in KEY): [row[name] for name in FIGURES]
        for row in job.rows("decisions", [*KEY, *FIGURES]).to_pylist()
        if row["batch_id"] >= since_batch
    }


def test_with_another_sample_window_rates_begin_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = with_samples(tmp_path, 4)
    run(job, 30)
    assert job.decider.buckets()[0].num_rows
    with_engine(job, 4, 750)
    with caplog.at_level(logging.WARNING, "pipeline.stream"):
        job.start()
    (line,) = caplog.messages
    assert "sample_window_ms 500 -> 750" in line
    assert "begin empty" in line
    assert job.decider.buckets()[0].num_rows == 0
    before = job.spark.committed
    run(job, 1, produced_bytes=1)
    assert decisions_of(job, before + 1) == {}
    job.start()
    run(job, 1, produced_bytes=1)
    assert decisions_of(job, before + 1) == {}
    run(job, 10, produced_bytes=40_000)
    assert ("alice", "producer_byte_rate") in {key[1:] for key in decisions_of(job, before + 1)}


def test_another_number_of_samples_counts_stored_usage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changed, always = with_samples(tmp_path / "changed", 4), with_samples(tmp_path / "always", 8)
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


@pytest.mark.parametrize(("num_samples", "sample_window_ms"), [(4, 750), (8, 500)])
def test_a_batch_cut_short_is_decided_with_the_settings_it_was_recorded_with(
    tmp_path: Path, num_samples: int, sample_window_ms: int
) -> None:
    jobs = [with_samples(tmp_path / name, 4) for name in ("killed", "whole")]
    killed, whole = jobs
    for job in jobs:
        run(job, 20)
    with armed("usage.appended"), pytest.raises(FailpointReached):
        run(killed, 1)
    run(whole, 1)
    with_engine(killed, num_samples, sample_window_ms)
    killed.start()
    assert decisions_of(killed, 20) == decisions_of(whole, 20)
    assert decisions_of(killed, 20)
