"""Batches of a job on a clock set by hand: a clock that is ahead, and batches that are too old."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.evidence import Message
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob
from tests.log_messages import messages_of

FIVE_MINUTES_MS = 300_000
TOLERANCE_MS = 2_000
LIMIT_LOG = "pipeline.stream.usage_columns"


def usage_of(user: str, produced_bytes: int, event_time_ms: int) -> bytes:
    fields = {"event_time_ms": event_time_ms, "user": user, "client_id": "c", "produced_bytes": produced_bytes}
    return json.dumps(fields).encode()


def send_from_ahead(job: HandJob, *times_ms: int) -> None:
    """A meter and the leader of its partition are on a host whose clock is ahead."""
    for time_ms in times_ms:
        offset = len(job.messages)
        job.messages.append(Message(0, offset, time_ms, f"{offset}".encode(), usage_of("bob", 1, time_ms)))


def run_offender(job: HandJob, steps: int) -> None:
    """Alice sends at 20 times her quota."""
    for _ in range(steps):
        job.clock.advance(500)
        job.send(usage_of("alice", 100_000, job.clock.wall_ms))
        job.step()


def decisions_of(job: HandJob, user: str) -> int:
    rows = job.rows("decisions", ["user", "client_id"]).to_pylist()
    return sum(row["user"] == user and row["client_id"] is None for row in rows)


def last_batch(job: HandJob) -> dict[str, int]:
    columns = ["batch_id", "evaluated_at_ms", "processed_at_ms", "clamped_count", "late_count"]
    rows: list[dict[str, int]] = job.rows("batches", columns).to_pylist()
    return max(rows, key=lambda row: row["batch_id"])


def test_an_offender_is_throttled_while_one_clock_is_ahead_and_after_a_restart(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    run_offender(job, 4)
    send_from_ahead(job, job.clock.wall_ms + FIVE_MINUTES_MS)
    job.step()
    assert last_batch(job)["evaluated_at_ms"] == job.clock.wall_ms + TOLERANCE_MS
    assert last_batch(job)["clamped_count"] == 1
    for _ in range(60):
        job.clock.advance(500)
        job.step()
    before = decisions_of(job, "alice")
    run_offender(job, 10)
    assert decisions_of(job, "alice") == before + 10
    job.start()
    run_offender(job, 10)
    assert decisions_of(job, "alice") == before + 20
    assert last_batch(job)["late_count"] == 0
    while len(job.purgatory):
        job.clock.advance(500)
        job.step()
    assert job.verdict().told() == []


def test_the_log_names_the_client_that_is_ahead_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    with caplog.at_level(logging.WARNING, "pipeline.stream"):
        for _ in range(5):
            send_from_ahead(job, job.clock.wall_ms + FIVE_MINUTES_MS, job.clock.wall_ms + 1_000)
            job.step()
            job.clock.advance(10_000)
        (first,) = messages_of(caplog, LIMIT_LOG)
        assert "1 events" in first
        assert "298.0 s" in first
        assert "'bob'" in first
        job.clock.advance(20_000)
        send_from_ahead(job, job.clock.wall_ms + FIVE_MINUTES_MS)
        job.step()
    _, second = messages_of(caplog, LIMIT_LOG)
    assert "5 events" in second


LONG_MS = 147_000


def send_too_much(job: HandJob) -> None:
    now_ms = job.clock.wall_ms
    job.send(f'{{"event_time_ms":{now_ms},"user":"u","client_id":"c","produced_bytes":1000000}}'.encode())


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [
        (record.levelno, record.getMessage())
        for record in caplog.records
        if "no throttle is published" in record.getMessage()
    ]


def test_usage_that_has_waited_for_a_start_is_no_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = HandJob(tmp_path, RATES)
    job.start()
    send_too_much(job)
    job.clock.advance(LONG_MS)
    job.start()
    job.step()
    assert told(caplog) == [
        (
            logging.INFO,
            "batch_id=0 has usage from before this start: its 1 violations are recorded, but no throttle is published",
        )
    ]


def test_a_job_that_falls_behind_while_it_runs_gives_an_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = HandJob(tmp_path, RATES)
    job.start()
    send_too_much(job)
    job.clock.advance(LONG_MS)
    job.step()
    assert told(caplog) == [
        (logging.WARNING, "batch_id=0 is 147.0 s old: its 1 violations are recorded, but no throttle is published")
    ]


# Usage of a gap. The job answers what is not older than 60 s.
MINUTE_MS = 60_000


def started(folder: Path) -> HandJob:
    """A job that has had a batch just now."""
    job = HandJob(folder, RATES, in_memory=True)
    job.start()
    job.send(usage_of("alice", 1, job.clock.wall_ms))
    job.step()
    return job


def flags(job: HandJob) -> list[tuple[int, bool]]:
    """How old each row of the newest batches was when it was collected, in seconds, and whether it is of a gap."""
    processed_ms = {row["batch_id"]: row["processed_at_ms"] for row in job.rows("batches").to_pylist()}
    rows = [row for row in job.rows("usage").to_pylist() if row["batch_id"]]
    ages = ((processed_ms[row["batch_id"]] - row["last_event_ms"], row["in_gap"]) for row in rows)
    return sorted((age_ms // 1_000, in_gap) for age_ms, in_gap in ages)


def after_a_stop(job: HandJob) -> list[tuple[int, bool]]:
    """The process stands still for 70 s; its next batch has the usage of all of them."""
    begun_ms = job.clock.wall_ms
    job.clock.advance(70_000)
    for age_ms in (70_000, 69_500, 60_001, 60_000, 0):
        job.send(usage_of("alice", 1, begun_ms + 70_000 - age_ms))
    job.step()
    return [(0, False), (60, False), (60, True), (69, True), (70, False)]


def after_ten_quiet_minutes(job: HandJob) -> list[tuple[int, bool]]:
    job.clock.advance(10 * MINUTE_MS)
    job.send(usage_of("alice", 1, job.clock.wall_ms))
    job.step()
    return [(0, False)]


def a_backlog_in_batches(job: HandJob) -> list[tuple[int, bool]]:
    """After a stop three batches find usage of it; the one after them finds usage as old of one broker."""
    begun_ms = job.clock.wall_ms
    job.clock.advance(200_000)
    for age_ms in (180_000, 150_000, 70_000):
        job.send(usage_of("alice", 1, begun_ms + 200_000 - age_ms), usage_of("bob", 1, job.clock.wall_ms))
        job.step()
        job.clock.advance(500)
    for age_ms in (0, 65_000):
        job.send(usage_of("alice", 1, job.clock.wall_ms - age_ms), usage_of("bob", 1, job.clock.wall_ms))
        job.step()
        job.clock.advance(500)
    return sorted([*[(0, False)] * 6, (65, False), (71, True), (150, True), (180, True)])


def one_broker_behind(job: HandJob) -> list[tuple[int, bool]]:
    for _ in range(3):
        job.clock.advance(500)
        job.send(usage_of("alice", 1, job.clock.wall_ms - 65_000), usage_of("bob", 1, job.clock.wall_ms))
        job.step()
    return sorted([*[(0, False)] * 3, *[(65, False)] * 3])


def an_outage_and_then_one_broker_behind(job: HandJob) -> list[tuple[int, bool]]:
    """The usage of the broker that is behind stays of the gap as long as it happened in it, and no longer."""
    job.clock.advance(100_000)
    job.send(usage_of("alice", 1, job.clock.wall_ms - 65_000), usage_of("bob", 1, job.clock.wall_ms))
    job.step()
    for _ in range(3):
        job.clock.advance(4_000)
        job.send(usage_of("alice", 1, job.clock.wall_ms - 65_000), usage_of("bob", 1, job.clock.wall_ms))
        job.step()
    return sorted([*[(0, False)] * 4, (65, True), (65, True), (65, False), (65, False)])


def a_clock_an_hour_ahead(job: HandJob) -> list[tuple[int, bool]]:
    """For all that the job can know it has stood still for an hour, and so it publishes nothing."""
    job.clock.advance(500)
    job.set_clocks(driver_by_ms=60 * MINUTE_MS)
    job.send(usage_of("alice", 1_000_000, job.broker_ms))
    job.step()
    assert job.broker.records == []
    return [(3_600, True)]


GAPS = [
    *(after_a_stop, after_ten_quiet_minutes, a_backlog_in_batches, one_broker_behind),
    *(an_outage_and_then_one_broker_behind, a_clock_an_hour_ahead),
]


@pytest.mark.parametrize("trouble", GAPS)
def test_usage_that_could_not_be_answered_in_time_is_of_a_gap(
    trouble: Callable[[HandJob], list[tuple[int, bool]]], tmp_path: Path
) -> None:
    job = started(tmp_path)
    wanted = trouble(job)
    assert flags(job) == wanted
    assert job.verdict().told() == []


def test_a_gap_goes_on_after_a_kill(tmp_path: Path) -> None:
    job = started(tmp_path)
    begun_ms = job.clock.wall_ms
    job.clock.advance(200_000)
    for age_ms in (180_000, 150_000):
        job.send(usage_of("alice", 1, begun_ms + 200_000 - age_ms), usage_of("bob", 1, job.clock.wall_ms))
        job.step()
        job.start()
    assert flags(job) == [(0, False), (0, False), (150, True), (180, True)]
