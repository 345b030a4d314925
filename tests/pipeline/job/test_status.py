"""What `kquota status` tells: of a job's lock, its heartbeat and its batches, and of what runs beside it."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from pipeline.brokers.running import sync_lock
from pipeline.errors import Conflict
from pipeline.job import status
from pipeline.job.status import (
    FRESH_MS,
    LATE_AFTER_MS,
    Heartbeat,
    job_lock,
    last_beat_ms,
    signs_of,
    status_of,
)
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
    assert (found.last_batch_id, found.health.last_batch_age_ms, found.health.lag_ms) == (
        2,
        job.clock.wall_ms - batch_ms,
        0,
    )
    assert (found.held_users, found.held_clients) == (1, 0)
    assert (found.mode, found.quotas) == ("enforce", job.quotas.pin().version)
    assert (found.health.state, found.health.process) == ("down", None)
    assert status_of(job.settings, batch_ms - 1).health.last_batch_age_ms == 0, "stored while the command was starting"


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
        assert status_of(settings, 0).health.process
    assert status_of(settings, 0).health.process is None


@pytest.mark.parametrize(("root", "age_ms", "code"), [("store", 9_000, 0), ("store", 11_000, 1), ("folder", 9_000, 1)])
def test_a_job_on_tables_in_a_store_is_up_while_it_writes_batches(
    root: str, age_ms: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    monkeypatch.setattr("pipeline.job.status.is_local", lambda _root: root == "folder")
    monkeypatch.setattr("pipeline.clock.time.time_ns", lambda: (job.clock.wall_ms - 1_000 + age_ms) * 1_000_000)
    assert kquota("status", "--tables", job.settings.tables.root).exit_code == code


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
    assert lines["job"].startswith("kquota: down on this machine. No micro-batch is stored yet. Start the job: ")
    assert lines["batch"] == "none yet"
    assert (lines["nearest"], lines["sync"]) == ("no rates yet", "none on this machine")
    assert (lines["kafka"], lines["tables"]) == ("broker:9092", root)
    document = json.loads(kquota("status", "--tables", root, "-o", "json").stdout)
    assert (document["health"]["process"], document["quotas"], document["last_batch_id"]) == (None, 1, None)


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
STALLED_AFTER_MS = 5_000
health = partial(status.health, stalled_after_ms=STALLED_AFTER_MS)
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


def batch(age_ms: int) -> dict[str, int]:
    return {"processed_at_ms": NOW_MS - age_ms, "evaluated_at_ms": NOW_MS - age_ms - 300}


@pytest.mark.parametrize(
    ("age_ms", "process", "was_seen", "state"),
    [
        (0, "7", True, "live"),
        (STALLED_AFTER_MS, "7", True, "live"),
        (STALLED_AFTER_MS + 1, "7", True, "stalled"),
        (0, None, True, "down"),  # killed just now
        (STALLED_AFTER_MS + 1, None, True, "down"),
        (0, None, False, "live"),  # a job of another machine
        (STALLED_AFTER_MS, None, False, "live"),
        (STALLED_AFTER_MS + 1, None, False, "stalled"),
        (-500, "7", True, "live"),  # the job's clock is ahead
        (None, "7", True, "starting"),
        (None, None, False, "starting"),
    ],
)
def test_the_state_follows_from_batch_and_process(
    age_ms: int | None, process: str | None, was_seen: bool, state: str
) -> None:
    found = health(NOW_MS, None if age_ms is None else batch(age_ms), process, was_seen=was_seen)
    assert found.state == state
    assert (found.text == "") == (state == "live")


def test_before_the_first_batch_it_says_how_to_start_the_job() -> None:
    assert health(NOW_MS, None, None, was_seen=False).text.endswith("kquota run.")


@pytest.mark.parametrize(
    ("age_ms", "wait_age_ms", "state", "title"),
    [
        (STALLED_AFTER_MS, None, "live", "Live"),
        (STALLED_AFTER_MS, LATE_AFTER_MS + 1, "live", "Live"),
        (20_000, 0, "quiet", "Quiet: no usage for 20 s"),
        (20_000, 2_900, "quiet", "Quiet: no usage for 20 s"),
        (20_000, FRESH_MS, "quiet", "Quiet: no usage for 20 s"),
        (20_000, 3_100, "stalled", "No micro-batch for 20 s"),
        (20_000, LATE_AFTER_MS, "stalled", "No micro-batch for 20 s"),
        (20_000, LATE_AFTER_MS + 1, "hung", "The job hangs: no micro-batch for 20 s"),
        (20_000, -500, "quiet", "Quiet: no usage for 20 s"),  # the job's clock is ahead
        (20_000, -3_100, "stalled", "No micro-batch for 20 s"),  # the clock was set back since
        (20_000, None, "stalled", "No micro-batch for 20 s"),
        (None, 0, "starting", "The job has written no micro-batch yet"),
        (None, LATE_AFTER_MS + 1, "hung", "The job has written no micro-batch yet"),
    ],
)
def test_a_job_that_waits_for_usage_is_quiet_and_one_that_does_not_hangs(
    age_ms: int | None, wait_age_ms: int | None, state: str, title: str
) -> None:
    waited_ms = None if wait_age_ms is None else NOW_MS - wait_age_ms
    found = health(NOW_MS, None if age_ms is None else batch(age_ms), "7", was_seen=True, waited_ms=waited_ms)
    assert (found.state, found.title) == (state, title)
    assert ("throttles end by themselves" in found.text) == (state in {"hung", "stalled"} and age_ms is not None)


@pytest.mark.parametrize(
    ("wait_age_ms", "text"),
    [
        (3_100, "The job's process 7 last looked for usage 3 s ago: a batch takes long, or it hangs."),
        (-3_100, "The job's process 7 runs, and was not yet seen to wait for usage: it starts, or hangs."),
        (None, "The job's process 7 runs, and was not yet seen to wait for usage: it starts, or hangs."),
    ],
)
def test_without_a_fresh_beat_it_says_what_is_not_known(wait_age_ms: int | None, text: str) -> None:
    waited_ms = None if wait_age_ms is None else NOW_MS - wait_age_ms
    assert health(NOW_MS, batch(20_000), "7", was_seen=True, waited_ms=waited_ms).text.startswith(text)


def test_of_a_process_that_is_gone_a_beat_says_nothing() -> None:
    assert health(NOW_MS, batch(20_000), None, was_seen=True, waited_ms=NOW_MS).state == "down"


def test_what_can_not_be_read_goes_before_all_else() -> None:
    found = health(NOW_MS, batch(0), "7", was_seen=True, failure="'usage' is damaged")
    assert (found.state, found.text) == ("unreadable", "'usage' is damaged")


def test_age_and_lag_are_told() -> None:
    found = health(NOW_MS, batch(1_200), "7", was_seen=True)
    assert (found.last_batch_age_ms, found.lag_ms, found.process) == (1_200, 300, "7")


def test_how_old_it_is_stands_in_the_title() -> None:
    assert health(NOW_MS, batch(125_000), "7", was_seen=True).title == "No micro-batch for 2 min 5 s"
    assert "2 min 5 s ago" in health(NOW_MS, batch(125_000), None, was_seen=True).text


@pytest.mark.parametrize(("known_for_ms", "state"), [(5_000, "live"), (5_001, "hung")])
def test_a_batch_of_a_clock_that_was_ahead_is_as_old_as_it_has_been_known(known_for_ms: int, state: str) -> None:
    batch = {"processed_at_ms": NOW_MS + 3_600_000, "evaluated_at_ms": NOW_MS + 3_600_000}
    found = health(NOW_MS, batch, "7", was_seen=True, waited_ms=NOW_MS - 60_000, collected_ms=NOW_MS - known_for_ms)
    assert (found.state, found.last_batch_age_ms, found.ahead_ms) == (state, known_for_ms, 3_600_000)


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
    told = [("waits for usage" in one.health.text, one.health.state) for one in found]
    assert told == [(True, "starting"), (True, "starting"), (False, "starting"), (False, "hung")]


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


def test_a_second_driver_on_the_tables_is_refused_whatever_its_name_and_run_folder(tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    second = job_lock(tmp_path / "two", "other", root)
    with job_lock(tmp_path / "one", "nightly", root), pytest.raises(Conflict) as refused, second:
        pass
    assert f"({root}/.kquota-job.lock is held by process {os.getpid()})" in refused.value.message
