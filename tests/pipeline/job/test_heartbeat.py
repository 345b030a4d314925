"""Whether a job without batches waits for usage or hangs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.job.lock import JobLock
from pipeline.job.status import Heartbeat, last_beat_ms, signs_of, status_of
from pipeline.process import FRESH_MS, LATE_AFTER_MS, activity_of
from pipeline.settings.model import Settings, TablesSettings
from tests.pipeline.cli.running import new_tables
from tests.waiting import wait_until

NOW_MS = 1_700_000_000_000
AGES_MS = (2_900, FRESH_MS, 3_100, LATE_AFTER_MS + 1)
BEATING = """
import sys
import time
from pathlib import Path
from pipeline.clock import SystemClock
from pipeline.job.status import Heartbeat
from pipeline.job.lock import JobLock

place = Path(sys.argv[1]), "kquota", sys.argv[2]
heart, clock = Heartbeat(*place), SystemClock()
with JobLock(*place):
    while True:
        if heart.is_due(clock.now().wall_ms):
            heart.beat(clock.now().wall_ms)
        time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("is_up", "batch_age_ms", "beat_age_ms", "expected"),
    [
        (True, 10_000, None, "working"),
        (True, 10_000, 999_999, "working"),
        (True, 10_001, 0, "idle"),
        (True, 10_001, 2_900, "idle"),
        (True, 10_001, 3_000, "idle"),
        (True, 10_001, 3_100, "unknown"),
        (True, 10_001, -3_000, "idle"),
        (True, 10_001, -3_100, "unknown"),  # the clock was set back since
        (True, 10_001, LATE_AFTER_MS, "unknown"),
        (True, 10_001, LATE_AFTER_MS + 1, "hung"),
        (True, None, 0, "idle"),
        (True, None, None, "unknown"),
        (True, 10_001, None, "unknown"),
        (False, 0, 0, "down"),
        (False, None, None, "down"),
    ],
)
def test_what_it_does_follows_from_its_process_its_batch_and_when_it_waited(
    is_up: bool, batch_age_ms: int | None, beat_age_ms: int | None, expected: str
) -> None:
    assert activity_of(is_up, batch_age_ms, beat_age_ms, 10_000) == expected


@pytest.mark.parametrize("root", ["tables", "s3://bucket/tables"])
def test_a_beat_is_found_by_who_looks_and_forgotten_by_the_next_life(root: str, tmp_path: Path) -> None:
    tables = root if "://" in root else str(tmp_path / root)
    if "://" not in root:
        (tmp_path / root).mkdir()
    place = (tmp_path, "kquota", tables)
    heart, signs = Heartbeat(*place), signs_of(*place)
    assert last_beat_ms(*place) is None
    heart.beat(NOW_MS)
    assert last_beat_ms(*place) == NOW_MS
    assert signs.last_wait_ms() == NOW_MS
    with JobLock(*place):
        assert signs.last_wait_ms() == NOW_MS
        Heartbeat(*place).forget()
        assert signs.last_wait_ms() is None


def test_of_a_process_that_was_stopped_nothing_is_claimed_after_three_seconds(tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    settings = Settings(tables=TablesSettings(root=root), run_dir=tmp_path)
    with subprocess.Popen([sys.executable, "-c", BEATING, str(tmp_path), root]) as beating:
        try:
            wait_until(lambda: last_beat_ms(tmp_path, "kquota", root) is not None, "a beat")
            beating.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, beating.pid, os.WSTOPPED)
            stopped_ms = last_beat_ms(tmp_path, "kquota", root) or 0
            found = [status_of(settings, stopped_ms + age_ms) for age_ms in AGES_MS]
        finally:
            beating.kill()
    told = [(status.state, status.activity) for status in found]
    assert told == [("up", "idle"), ("up", "idle"), ("up", "unknown"), ("up", "hung")]


@pytest.mark.parametrize(("at_ms", "is_due"), [(999, False), (1_000, True), (-1, True)])
def test_it_beats_once_a_second_and_at_once_when_the_clock_is_set_back(
    at_ms: int, is_due: bool, tmp_path: Path
) -> None:
    heart = Heartbeat(tmp_path, "kquota", "s3://bucket")
    heart.beat(NOW_MS)
    assert heart.is_due(NOW_MS + at_ms) is is_due


def test_a_disk_that_takes_nothing_is_told_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heart = Heartbeat(tmp_path / "missing", "kquota", "s3://bucket")
    heart.beat(NOW_MS)
    heart.beat(NOW_MS + 1_000)
    assert len(caplog.messages) == 1
    assert "cannot be written (No such file or directory)" in caplog.text


def test_a_damaged_beat_is_none(tmp_path: Path) -> None:
    (tmp_path / "kquota.heartbeat").write_text("soon")
    assert last_beat_ms(tmp_path, "kquota", "s3://bucket") is None
