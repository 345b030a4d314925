"""What `kquota status` tells: of a job's lock, its heartbeat and its batches, and of what runs beside it."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.brokers.running import sync_lock
from pipeline.errors import Conflict
from pipeline.job.status import Heartbeat, is_down, job_lock, last_beat_ms, signs_of, status_of
from pipeline.process import FRESH_MS, LATE_AFTER_MS, activity_of
from pipeline.settings.model import Settings, TablesSettings
from tests.pipeline.cli.running import kquota, new_tables
from tests.pipeline.demo.played import new_job, throttle_one
from tests.pipeline.tables.quotas.test_source import GOOD, write_past_us
from tests.waiting import wait_until


def test_a_job_with_a_batch_tells_its_age_its_lag_and_whom_it_holds(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    batch_ms = job.clock.wall_ms - 1_000
    found = status_of(job.settings, job.clock.wall_ms)
    assert (found.last_batch_id, found.last_batch_age_ms, found.lag_ms) == (2, job.clock.wall_ms - batch_ms, 0)
    assert (found.held_users, found.held_clients) == (1, 0)
    assert (found.mode, found.quotas) == ("enforce", job.quotas.pin().version)
    assert (found.state, found.process) == ("down", None)
    assert status_of(job.settings, batch_ms - 1).last_batch_age_ms == 0, "stored while the command was starting"


@pytest.mark.parametrize(
    ("back_ms", "batch"),
    [(0, "its newest event was then 0.0 s old"), (3_600_000, "its time is 3599.0 s ahead of the wall")],
)
def test_time_ahead_of_the_wall_clock_is_shown_by_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back_ms: int, batch: str
) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    monkeypatch.setattr("pipeline.clock.time.time_ns", lambda: (job.clock.wall_ms - back_ms) * 1_000_000)
    assert batch in kquota("status", "--tables", job.settings.tables.root).stdout


@pytest.mark.parametrize("run_dir", ["run", "elsewhere"])
def test_a_job_is_up_while_a_process_holds_the_lock_of_its_tables(run_dir: str, tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    settings = Settings(tables=TablesSettings(root=root), run_dir=tmp_path / "run")
    with job_lock(tmp_path / run_dir, "kquota", root):
        assert status_of(settings, 0).state == "up"
    assert status_of(settings, 0).state == "down"


@pytest.mark.parametrize(("beat_ms", "age_ms"), [(9_970, 30), (10_000, 0), (10_030, 0), (13_000, 0), (13_001, -3_001)])
def test_a_wait_seen_while_the_tables_were_read_is_0_ms_old(tmp_path: Path, beat_ms: int, age_ms: int) -> None:
    settings = Settings(tables=TablesSettings(root=new_tables(tmp_path / "tables")), run_dir=tmp_path / "run")
    Heartbeat(settings.run_dir, settings.job, settings.tables.root).beat(beat_ms)
    assert status_of(settings, 10_000).last_wait_age_ms == age_ms


@pytest.mark.parametrize(("age_ms", "down"), [(10_000, False), (10_001, True), (None, True)])
def test_a_job_on_tables_in_a_store_is_up_while_it_writes_batches(age_ms: int | None, down: bool) -> None:
    settings = Settings(tables=TablesSettings(root="s3://bucket/tables"))
    assert is_down(settings, None, age_ms) is down
    assert not is_down(settings, "4711", None)


def test_an_invalid_version_of_the_quotas_is_not_in_force(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    decided_with = job.quotas.pin().version
    invalid = write_past_us(job.quota_table, {**GOOD, "producer_byte_rate": 0.0})
    found = status_of(job.settings, 0)
    # In between, the CHECK constraints were dropped, which changes no quota.
    assert (found.last_batch_quotas, found.quotas, found.newest_quotas) == (decided_with, invalid - 1, invalid)
    told = kquota("status", "--tables", job.settings.tables.root)
    assert (told.exit_code, told.stderr) == (1, ""), "its job is down"
    last = f"the last batch was decided with v{decided_with}"
    assert f"quotas  v{invalid - 1} in force, {last}; v{invalid} is newer and not valid\n" in told.stdout


def test_the_command_prints_lines_for_people_and_one_document_for_programs(tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    people = kquota("status", "--tables", root, "--bootstrap-server", "broker:9092")
    assert (people.exit_code, people.stderr) == (1, "")
    lines = dict(line.split(maxsplit=1) for line in people.stdout.splitlines())
    assert list(lines) == ["job", "batch", "quotas", "mode", "held", "nearest", "sync", "kafka", "tables"]
    assert (lines["job"], lines["batch"]) == ("kquota: down on this machine", "none yet")
    assert (lines["nearest"], lines["sync"]) == ("no rates yet", "none on this machine")
    assert (lines["kafka"], lines["tables"]) == ("broker:9092", root)
    document = json.loads(kquota("status", "--tables", root, "-o", "json").stdout)
    assert (document["state"], document["quotas"], document["last_batch_id"]) == ("down", 1, None)


def test_the_client_nearest_to_its_quota_is_named_with_its_sensor_and_the_time(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    job.rates.step()
    told = kquota("status", "--tables", job.settings.tables.root).stdout
    (line,) = (line for line in told.splitlines() if line.startswith("nearest "))
    share, rest = line.removeprefix("nearest alice/etl at ").split(" its ")
    assert re.fullmatch(r"\d{4} ×", share), "many times"
    at = datetime.fromtimestamp(job.decider.last.evaluated_at_ms / 1000, UTC)
    assert rest == f"producer_byte_rate, by the quota of user-principal 'alice', as of {at:%Y-%m-%dT%H:%M:%S} UTC"


def test_a_sync_of_this_machine_is_named(tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    with sync_lock(root):
        assert f"sync    up, process {os.getpid()}\n" in kquota("status", "--tables", root).stdout
    assert json.loads(kquota("status", "--tables", root, "-o", "json").stdout)["sync_process"] is None


NOW_MS = 1_700_000_000_000
AGES_MS = (2_900, FRESH_MS, 3_100, LATE_AFTER_MS + 1)
BEATING = """
import sys
import time
from pathlib import Path
from pipeline.clock import SystemClock
from pipeline.job.status import Heartbeat, job_lock

place = Path(sys.argv[1]), "kquota", sys.argv[2]
heart, clock = Heartbeat(*place), SystemClock()
with job_lock(*place):
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
    with job_lock(*place):
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


HOLD = """
import sys, time
from pathlib import Path
from pipeline.job.status import job_lock
with job_lock(Path(sys.argv[1]), "nightly", sys.argv[2]):
    print("held", flush=True)
    time.sleep(3_600)
"""


def test_a_second_driver_on_the_tables_is_refused_whatever_its_name_and_run_folder(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "one"), str(tables)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"held\n"
            second = job_lock(tmp_path / "two", "other", str(tables))
            with pytest.raises(Conflict, match=f"process {first.pid}") as refused, second:
                pass
            assert f"({tables}/" in refused.value.message
        finally:
            first.kill()
