"""What `kquota status` tells: of a job's lock, its heartbeat and its batches, and of what runs beside it."""

import json
import os
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.brokers.running import sync_lock
from pipeline.job import status
from pipeline.job.status import FRESH_MS, LATE_AFTER_MS, Heartbeat, job_lock, last_beat_ms, signs_of, status_of
from pipeline.settings.model import Settings, TablesSettings
from tests.pipeline.cli.running import kquota, new_tables
from tests.pipeline.demo.played import new_job, throttle_one
from tests.pipeline.tables.quotas.test_source import GOOD, write_past_us


def test_a_job_tells_its_batchs_age_its_lag_and_whom_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    job.rates.step()
    now_ms = job.clock.wall_ms
    found = status_of(job.settings, now_ms)
    assert (found.last_batch_id, found.health.last_batch_age_ms, found.health.lag_ms) == (2, 1_000, 0)
    assert (found.held_users, found.held_clients) == (1, 0)
    assert (found.mode, found.quotas) == ("enforce", job.quotas.pin().version)
    assert (found.health.state, found.health.process) == ("down", None)
    # Stored while the command was starting.
    assert status_of(job.settings, now_ms - 1_001).health.last_batch_age_ms == 0
    monkeypatch.setattr("pipeline.clock.time.time_ns", lambda: (now_ms - 3_600_000) * 1_000_000)
    told = kquota("status", "--tables", job.settings.tables.root).stdout
    assert "; its time is 3599.0 s ahead of the wall clock\n" in told
    at = datetime.fromtimestamp(job.decider.last.evaluated_at_ms / 1000, UTC)
    sensor = f"its producer_byte_rate, by the quota of user-principal 'alice', as of {at:%Y-%m-%dT%H:%M:%S} UTC"
    assert re.search(rf"^nearest alice/etl at \d{{4}} × {re.escape(sensor)}$", told, re.MULTILINE)


@pytest.mark.parametrize("run_dir", ["run", "elsewhere"])
def test_a_job_is_up_while_a_process_holds_the_lock_of_its_tables(run_dir: str, tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    settings = Settings(tables=TablesSettings(root=root), run_dir=tmp_path / "run")
    with job_lock(tmp_path / run_dir, "kquota", root):
        assert status_of(settings, 0).health.process
    assert status_of(settings, 0).health.process is None


def test_a_job_on_a_store_is_up_while_it_writes_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    batch_ms = job.clock.wall_ms - 1_000
    for place, age_ms, code in (("store", 9_000, 0), ("store", 11_000, 1), ("folder", 9_000, 1)):
        monkeypatch.setattr("pipeline.job.status.is_local", lambda _root, is_local=place == "folder": is_local)
        monkeypatch.setattr("pipeline.clock.time.time_ns", lambda now_ms=batch_ms + age_ms: now_ms * 1_000_000)
        assert kquota("status", "--tables", job.settings.tables.root).exit_code == code


def test_an_invalid_version_of_the_quotas_is_not_in_force(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    decided_with = job.quotas.pin().version
    invalid = write_past_us(job.quota_table, {**GOOD, "producer_byte_rate": 0.0})
    found = status_of(job.settings, 0)
    # In between, the CHECK constraints were dropped, which changes no quota.
    assert (found.last_batch_quotas, found.quotas, found.newest_quotas) == (decided_with, invalid - 1, invalid)
    assert f"; v{invalid} is newer and not valid\n" in kquota("status", "--tables", job.settings.tables.root).stdout


def test_the_command_prints_lines_for_people_and_one_document_for_programs(tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    people = kquota("status", "--tables", root, "--bootstrap-server", "broker:9092")
    assert (people.exit_code, people.stderr) == (1, "")
    lines = dict(line.split(maxsplit=1) for line in people.stdout.splitlines())
    assert list(lines) == ["job", "batch", "quotas", "mode", "held", "nearest", "sync", "kafka", "tables"]
    assert "Start the job: " in lines["job"]
    assert (lines["batch"], lines["nearest"], lines["sync"]) == ("none yet", "no rates yet", "none on this machine")
    assert (lines["kafka"], lines["tables"]) == ("broker:9092", root)
    document = json.loads(kquota("status", "--tables", root, "-o", "json").stdout)
    assert (document["health"]["process"], document["quotas"], document["last_batch_id"]) == (None, 1, None)
    with sync_lock(root):
        assert f"sync    up, process {os.getpid()}\n" in kquota("status", "--tables", root).stdout


NOW_MS = 1_700_000_000_000
STALLED_AFTER_MS = 5_000
health = partial(status.health, stalled_after_ms=STALLED_AFTER_MS)


def batch(age_ms: int) -> dict[str, int]:
    return {"processed_at_ms": NOW_MS - age_ms, "evaluated_at_ms": NOW_MS - age_ms - 300}


HERE = {"process": "7", "was_seen": True}
GONE = {"process": None, "was_seen": True}
ELSEWHERE = {"process": None, "was_seen": False}


@pytest.mark.parametrize(
    ("age_ms", "job", "wait_age_ms", "state"),
    [
        (0, HERE, None, "live"),
        (-500, HERE, None, "live"),  # the job's clock is ahead
        (STALLED_AFTER_MS, HERE, None, "live"),
        (STALLED_AFTER_MS, HERE, LATE_AFTER_MS + 1, "live"),
        (STALLED_AFTER_MS + 1, HERE, None, "stalled"),
        (0, GONE, None, "down"),  # killed just now
        (STALLED_AFTER_MS + 1, GONE, None, "down"),
        (0, ELSEWHERE, None, "live"),
        (STALLED_AFTER_MS, ELSEWHERE, None, "live"),
        (STALLED_AFTER_MS + 1, ELSEWHERE, None, "stalled"),
        (None, HERE, None, "starting"),
        (None, ELSEWHERE, None, "starting"),
        # A job that waits for usage is quiet, and one that does not hangs.
        (20_000, HERE, 0, "quiet"),
        (20_000, HERE, 2_900, "quiet"),
        (20_000, HERE, FRESH_MS, "quiet"),
        (20_000, HERE, 3_100, "stalled"),
        (20_000, HERE, LATE_AFTER_MS, "stalled"),
        (20_000, HERE, LATE_AFTER_MS + 1, "hung"),
        (20_000, HERE, -500, "quiet"),  # the job's clock is ahead
        (20_000, HERE, -3_100, "stalled"),  # the clock was set back since
        (None, HERE, 0, "starting"),
        (None, HERE, LATE_AFTER_MS + 1, "hung"),
    ],
)
def test_the_state_follows_from_batch_process_and_beat(
    age_ms: int | None, job: dict[str, Any], wait_age_ms: int | None, state: str
) -> None:
    waited_ms = None if wait_age_ms is None else NOW_MS - wait_age_ms
    found = health(NOW_MS, None if age_ms is None else batch(age_ms), waited_ms=waited_ms, **job)
    assert (found.state, found.text == "") == (state, state == "live")


def test_what_a_beat_does_not_change() -> None:
    assert health(NOW_MS, batch(20_000), None, was_seen=True, waited_ms=NOW_MS).state == "down"
    found = health(NOW_MS, batch(0), "7", was_seen=True, failure="'usage' is damaged")
    assert (found.state, found.text) == ("unreadable", "'usage' is damaged")


@pytest.mark.parametrize(("known_for_ms", "state"), [(5_000, "live"), (5_001, "hung")])
def test_a_batch_dated_ahead_is_as_old_as_it_has_been_known(known_for_ms: int, state: str) -> None:
    batch = {"processed_at_ms": NOW_MS + 3_600_000, "evaluated_at_ms": NOW_MS + 3_600_000}
    found = health(NOW_MS, batch, "7", was_seen=True, waited_ms=NOW_MS - 60_000, collected_ms=NOW_MS - known_for_ms)
    assert (found.state, found.last_batch_age_ms, found.ahead_ms) == (state, known_for_ms, 3_600_000)


@pytest.mark.parametrize("root", ["", "s3://bucket/tables"])
def test_a_beat_is_found_by_who_looks_and_forgotten_by_the_next_life(root: str, tmp_path: Path) -> None:
    place = (tmp_path, "kquota", root or str(tmp_path))
    heart, signs = Heartbeat(*place), signs_of(*place)
    assert last_beat_ms(*place) is None
    heart.beat(NOW_MS)
    assert last_beat_ms(*place) == signs.last_wait_ms() == NOW_MS
    with job_lock(*place):
        assert signs.last_wait_ms() == NOW_MS
        Heartbeat(*place).forget()
        assert signs.last_wait_ms() is None


@pytest.mark.parametrize(("at_ms", "is_due"), [(999, False), (1_000, True), (-1, True)])
def test_it_beats_each_second_and_when_the_clock_is_set_back(at_ms: int, is_due: bool, tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, "kquota", "s3://bucket")
    heart.beat(NOW_MS)
    assert heart.is_due(NOW_MS + at_ms) is is_due


def test_a_disk_that_takes_no_beat_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heart = Heartbeat(tmp_path / "missing", "kquota", "s3://bucket")
    for _ in range(2):
        heart.beat(NOW_MS)
    assert len(caplog.messages) == 1
