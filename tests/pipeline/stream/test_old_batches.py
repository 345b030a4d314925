"""A batch that is too old to be published is an alarm, unless it has waited for the job to start."""

import logging
from pathlib import Path

import pytest

from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob

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
