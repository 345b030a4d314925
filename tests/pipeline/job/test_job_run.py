"""What a run of the job does beside its batches: upkeep of tables, and how long its threads rest."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.errors import UsageError
from pipeline.job.job_run import Upkeep, places_on_one_node, refuse_state_on_one_node, rest_ms
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from schemas.arrow import conform
from tests.fakes.clock import ManualClock
from tests.pipeline.tables.factories import job_writer, usage
from tests.quota.factories import usage_row

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def upkeep_of(root: Path, now_ms: int = NOW_MS, unread_ms: int = 2 * NOW_MS) -> Upkeep:
    """Of a job whose wall clock shows `now_ms`, and whose usage is rolled up until `unread_ms`."""
    return Upkeep(TablesSettings(root=str(root)), ManualClock(now_ms), Mock(return_value=7), lambda: unread_ms)


def usage_of(batch_id: int, at_ms: int, time_epoch: int = 0) -> pa.Table:
    late = usage_row(at_ms - 10 * HOUR_MS, produced_bytes=1)
    return usage(late, batch_id=batch_id, time_epoch=time_epoch, evaluated_at_ms=at_ms)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaRsWriter:
    """A job's writer of `usage`, which is one of four tables."""
    names = ("dead_letters", "usage", "usage_by_minute", "throttle_by_minute")
    monkeypatch.setattr("pipeline.job.job_run.WRITTEN_BY_THE_JOB", names)
    create_missing(str(tmp_path), [TABLES[name] for name in names])
    return job_writer(tmp_path, "usage")


def write(job: DeltaRsWriter, *evaluated_at_ms: int) -> None:
    """A batch at each instant; one that is before the last one begins a time epoch."""
    time_epoch, last_ms = 0, 0
    for batch_id, at_ms in enumerate(evaluated_at_ms):
        time_epoch, last_ms = time_epoch + (at_ms < last_ms), at_ms
        job.append(usage_of(batch_id, at_ms, time_epoch), {"q": batch_id}, {})


def batches(writer: DeltaRsWriter) -> list[int]:
    return sorted(writer.read(["batch_id"])["batch_id"].to_pylist())


def test_every_round_deletes_old_log_entries_that_appends_would_list(job: DeltaRsWriter, tmp_path: Path) -> None:
    log, upkeep = Path(job.uri, "_delta_log"), upkeep_of(tmp_path)
    for number, first in enumerate((0, 20, 40)):
        for batch_id in range(first, first + 20):
            job.append(usage_of(batch_id, NOW_MS), {"q": batch_id}, {})
        for entry in log.iterdir():
            os.utime(entry, (NOW_MS / 1000, NOW_MS / 1000))
        assert upkeep.round() == 60
        assert upkeep._expire_idle.call_count == number + 1  # type: ignore[attr-defined]
        # What is older than the newest old checkpoint, which is that of the round before.
        assert len([*log.glob("*.json")]) <= 25
    assert job.append(usage_of(60, NOW_MS), {"q": 60}, {})
    assert batches(job) == [*range(61)]


AGES_MS = (2 * HOUR_MS + 1, 2 * HOUR_MS, 0)
"""Usage is kept for two hours before the newest."""
YEAR_MS = 365 * 24 * HOUR_MS


@pytest.mark.parametrize(
    ("ages_ms", "now_ms", "unread_ms", "left"),
    [
        (AGES_MS, 0, NOW_MS, [1, 2]),
        (AGES_MS, 0, -3 * HOUR_MS, [0, 1, 2]),  # it is not rolled up
        (AGES_MS, -3 * HOUR_MS, NOW_MS, [0, 1, 2]),  # the job's clock is behind its usage
        (AGES_MS, 3 * HOUR_MS, NOW_MS, [1, 2]),  # the job was down
        (AGES_MS, YEAR_MS, NOW_MS, [1, 2]),
        # After a clock was set back a job that was down keeps what its next start needs.
        ((2 * HOUR_MS, -HOUR_MS, 0), 0, NOW_MS, [0, 1, 2]),
        ((2 * HOUR_MS, -HOUR_MS, 0), 5 * HOUR_MS, NOW_MS, [0, 1, 2]),
        ((2 * HOUR_MS, -HOUR_MS, 0), YEAR_MS, NOW_MS, [0, 1, 2]),
        # Rows dated ahead go when their time is over.
        ((-HOUR_MS, 0, -2 * HOUR_MS), 2 * HOUR_MS, NOW_MS, [0, 1, 2]),
        ((-HOUR_MS, 0, -3 * HOUR_MS), 3 * HOUR_MS, NOW_MS, [0, 2]),
        ((-HOUR_MS, 0, -3 * HOUR_MS - 1), 3 * HOUR_MS + 1, NOW_MS, [2]),
    ],
)
def test_usage_is_kept_for_its_retention_and_until_it_is_rolled_up(
    ages_ms: Sequence[int], now_ms: int, unread_ms: int, left: list[int], job: DeltaRsWriter, tmp_path: Path
) -> None:
    """`now_ms` and `unread_ms` count from the instant of age 0."""
    write(job, *(NOW_MS - age_ms for age_ms in ages_ms))
    upkeep_of(tmp_path, NOW_MS + now_ms, NOW_MS + unread_ms).round()
    assert batches(job) == left


@pytest.mark.parametrize(("behind_ms", "is_warned"), [(24 * HOUR_MS, False), (24 * HOUR_MS + 1, True), (NOW_MS, False)])
def test_usage_waits_for_a_day_for_roll_ups_that_are_behind(
    job: DeltaRsWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture, behind_ms: int, is_warned: bool
) -> None:
    write(job, NOW_MS - 24 * HOUR_MS - 1, NOW_MS - 24 * HOUR_MS, NOW_MS)
    upkeep_of(tmp_path, unread_ms=NOW_MS - behind_ms).round()
    assert batches(job) == [1, 2]
    assert ("more than 24 h behind" in caplog.text) is is_warned


@pytest.mark.parametrize("down_ms", [0, YEAR_MS])
def test_minutes_are_kept_for_90_days_before_usage(job: DeltaRsWriter, tmp_path: Path, down_ms: int) -> None:
    write(job, NOW_MS)
    figures: dict[str, Any] = {"usage_by_minute": {"request_count": 1, "last_event_ms": 1}}
    figures["throttle_by_minute"] = {"quota_type": "", "held_ms": 1, "throttle_count": 0, "renewal_count": 0}
    for number, age_ms in enumerate([90 * 24 * HOUR_MS + 1, 90 * 24 * HOUR_MS, 0]):
        client: dict[str, Any] = {"cluster": "c", "broker_id": "", "user": "u", "minute_start_ms": NOW_MS - age_ms}
        for name, columns in figures.items():
            rows = conform(pa.table({"client_id": [str(number)]}), TABLES[name].model, **client, **columns)
            write_deltalake(table_uri(str(tmp_path), name), rows, mode="append")
    upkeep_of(tmp_path, NOW_MS + down_ms).round()
    for name in figures:
        rows = read_table(table_uri(str(tmp_path), name), ["client_id"])
        assert sorted(rows["client_id"].to_pylist()) == ["1", "2"]


def test_if_upkeep_of_a_table_fails_that_is_logged_and_the_other_tables_get_theirs(
    job: DeltaRsWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(job, NOW_MS - 3 * HOUR_MS, NOW_MS)
    for file in Path(tmp_path, "dead_letters", "_delta_log").iterdir():
        file.unlink()
    upkeep_of(tmp_path).round()
    assert "upkeep of dead_letters failed" in caplog.text
    assert batches(job) == [1]


@pytest.mark.parametrize(
    ("due_ms", "expected_ms"),
    [(None, 25), (900, 1), (1_000, 1), (1_001, 1), (1_002, 2), (1_024, 24), (1_025, 25), (1_026, 25), (9_000, 25)],
)
def test_a_rest_ends_when_something_is_due_or_after_the_longest_one(due_ms: int | None, expected_ms: int) -> None:
    assert rest_ms(due_ms, 1_000, 25) == expected_ms


STORE = "s3a://bucket/checkpoint"


def settings(root: str, checkpoint: str = STORE) -> Settings:
    shared = ["/mnt/kquota"]
    return Settings.model_validate(
        {"tables": {"root": root}, "stream": {"checkpoint": checkpoint}, "spark": {"shared_folders": shared}}
    )


LOCAL = [".kquota/tables", "/data/tables", "file:///data/tables", "FILE:///data/tables"]
SHARED = ["/mnt/kquota", "/mnt/kquota/check", "file:///mnt/kquota/check", "file:/mnt/kquota/check%20point", STORE]


@pytest.mark.parametrize(
    ("place", "is_on_one_node"),
    [
        *((place, True) for place in [*LOCAL, "/mnt/kquota2", "/mnt", "mnt/kquota"]),
        *((place, False) for place in [*SHARED, "abfss://container@account/tables"]),
    ],
)
def test_a_path_is_on_one_node_unless_every_node_mounts_it(place: str, is_on_one_node: bool) -> None:
    found = list(places_on_one_node(settings(STORE, place)))
    assert found == ([("stream.checkpoint", place)] if is_on_one_node else [])


def test_the_refusal_names_the_setting_and_the_place() -> None:
    with pytest.raises(UsageError, match=r"^'tables\.root' tables is on one node's disk, .* 'spark\.shared_folders'"):
        refuse_state_on_one_node(settings("tables", "checkpoint"))
