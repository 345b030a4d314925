"""What a run of the job does beside its batches: upkeep of tables, and how long its threads rest."""

import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.errors import UsageError
from pipeline.job.job_run import Upkeep, places_on_one_node, refuse_state_on_one_node, rest_ms
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import StoredTable
from schemas.arrow import conform
from schemas.usage import UsageRow
from tests.fakes.clock import ManualClock
from tests.quota.factories import table, usage_row

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def all_read() -> int:
    """Until when usage is rolled up: later than any in these tests."""
    return 2 * NOW_MS


def write_usage(root: Path, *evaluated_at_ms: int) -> DeltaRsWriter:
    """A batch at each instant; one that is before the last one begins a time epoch."""
    writer = DeltaRsWriter(table_uri(str(root), "usage"), "job")
    writer.raise_epoch(1)
    time_epoch, last_ms = 0, 0
    for batch_id, at_ms in enumerate(evaluated_at_ms):
        time_epoch, last_ms = time_epoch + (at_ms < last_ms), at_ms
        writer.append(usage_of(batch_id, at_ms, time_epoch), {"q": batch_id}, {})
    return writer


def usage_of(batch_id: int, at_ms: int, time_epoch: int = 0) -> pa.Table:
    late = table([usage_row(at_ms - 10 * HOUR_MS, produced_bytes=1)])
    same: dict[str, Any] = {"cluster": "c", "query_id": "q", "quota_version": 1, "request_count": 1}
    return conform(late, UsageRow, batch_id=batch_id, time_epoch=time_epoch, evaluated_at_ms=at_ms, **same)


def batches(writer: DeltaRsWriter) -> list[int]:
    return sorted(writer.read(["batch_id"])["batch_id"].to_pylist())


def test_every_round_deletes_old_log_entries_that_appends_would_list(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    log = tmp_path / "usage" / "_delta_log"
    upkeep = Upkeep(TablesSettings(root=str(tmp_path)), ManualClock(NOW_MS), lambda: 0, all_read)
    writer = DeltaRsWriter(table_uri(str(tmp_path), "usage"), "job")
    writer.raise_epoch(1)
    for first in (0, 20, 40, 60):
        for batch_id in range(first, first + 20):
            writer.append(usage_of(batch_id, NOW_MS), {"q": batch_id}, {})
        for entry in log.iterdir():
            os.utime(entry, (NOW_MS / 1000, NOW_MS / 1000))
        upkeep.round()
        # What is older than the newest old checkpoint, which is that of the round before.
        assert len([*log.glob("*.json")]) <= 25
    assert writer.append(usage_of(80, NOW_MS), {"q": 80}, {})
    assert batches(writer) == [*range(81)]


@pytest.mark.parametrize(
    ("unread_from_ms", "left"),
    [(NOW_MS, [1, 2]), (NOW_MS - 3 * HOUR_MS, [0, 1, 2])],
)
def test_usage_is_kept_for_its_retention_and_until_it_is_rolled_up(
    tmp_path: Path, unread_from_ms: int, left: list[int]
) -> None:
    create_missing(str(tmp_path))
    usage = write_usage(tmp_path, NOW_MS - 2 * HOUR_MS - 1, NOW_MS - 2 * HOUR_MS, NOW_MS)
    settings = TablesSettings(root=str(tmp_path))
    Upkeep(settings, ManualClock(NOW_MS), lambda: 0, lambda: unread_from_ms).round()
    assert batches(usage) == left


@pytest.mark.parametrize(
    ("behind_ms", "left", "is_warned"),
    [(24 * HOUR_MS, [1, 2], False), (24 * HOUR_MS + 1, [1, 2], True), (NOW_MS, [1, 2], False)],
)
def test_usage_waits_for_a_day_for_roll_ups_that_are_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, behind_ms: int, left: list[int], is_warned: bool
) -> None:
    create_missing(str(tmp_path))
    usage = write_usage(tmp_path, NOW_MS - 24 * HOUR_MS - 1, NOW_MS - 24 * HOUR_MS, NOW_MS)
    settings = TablesSettings(root=str(tmp_path))
    Upkeep(settings, ManualClock(NOW_MS), lambda: 0, lambda: NOW_MS - behind_ms).round()
    assert batches(usage) == left
    assert ("more than 24 h behind" in caplog.text) is is_warned


@pytest.mark.parametrize("down_ms", [0, 365 * 24 * HOUR_MS])
def test_minutes_are_kept_for_90_days_before_the_newest_usage(tmp_path: Path, down_ms: int) -> None:
    create_missing(root := str(tmp_path))
    write_usage(tmp_path, NOW_MS)
    figures: dict[str, Any] = {"usage_by_minute": {"request_count": 1, "last_event_ms": 1}}
    figures["throttle_by_minute"] = {"quota_type": "", "held_ms": 1, "throttle_count": 0, "renewal_count": 0}
    for number, age_ms in enumerate([90 * 24 * HOUR_MS + 1, 90 * 24 * HOUR_MS, 0]):
        client: dict[str, Any] = {"cluster": "c", "broker_id": "", "user": "u", "minute_start_ms": NOW_MS - age_ms}
        for name, columns in figures.items():
            rows = conform(pa.table({"client_id": [str(number)]}), TABLES[name].model, **client, **columns)
            write_deltalake(table_uri(root, name), rows, mode="append")
    Upkeep(TablesSettings(root=root), ManualClock(NOW_MS + down_ms), lambda: 0, all_read).round()
    for name in ("usage_by_minute", "throttle_by_minute"):
        rows = StoredTable(table_uri(root, name)).read(["client_id"])
        assert sorted(rows["client_id"].to_pylist()) == ["1", "2"]


@pytest.mark.parametrize(
    ("down_ms", "left"), [(-3 * HOUR_MS, [0, 1, 2]), (3 * HOUR_MS, [1, 2]), (365 * 24 * HOUR_MS, [1, 2])]
)
def test_a_job_that_was_down_or_whose_clock_is_behind_its_usage_deletes_nothing_early(
    tmp_path: Path, down_ms: int, left: list[int]
) -> None:
    create_missing(str(tmp_path))
    usage = write_usage(tmp_path, NOW_MS - 2 * HOUR_MS - 1, NOW_MS - 2 * HOUR_MS, NOW_MS)
    Upkeep(TablesSettings(root=str(tmp_path)), ManualClock(NOW_MS + down_ms), lambda: 0, all_read).round()
    assert batches(usage) == left


@pytest.mark.parametrize("down_ms", [0, 5 * HOUR_MS, 365 * 24 * HOUR_MS])
def test_after_a_clock_was_set_back_a_job_that_was_down_keeps_what_its_next_start_needs(
    tmp_path: Path, down_ms: int
) -> None:
    create_missing(str(tmp_path))
    usage = write_usage(tmp_path, NOW_MS - 2 * HOUR_MS, NOW_MS + HOUR_MS, NOW_MS)
    Upkeep(TablesSettings(root=str(tmp_path)), ManualClock(NOW_MS + down_ms), lambda: 0, all_read).round()
    assert batches(usage) == [0, 1, 2]


@pytest.mark.parametrize(
    ("later_ms", "left"), [(2 * HOUR_MS, [0, 1, 2]), (3 * HOUR_MS, [0, 2]), (3 * HOUR_MS + 1, [2])]
)
def test_rows_dated_ahead_go_when_their_time_is_over(tmp_path: Path, later_ms: int, left: list[int]) -> None:
    create_missing(str(tmp_path))
    usage = write_usage(tmp_path, NOW_MS + HOUR_MS, NOW_MS, NOW_MS + later_ms)
    Upkeep(TablesSettings(root=str(tmp_path)), ManualClock(NOW_MS + later_ms), lambda: 0, all_read).round()
    assert batches(usage) == left


def test_idle_sensors_are_dropped_each_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    create_missing(str(tmp_path))
    idle = [7, 0]
    upkeep = Upkeep(TablesSettings(root=str(tmp_path)), ManualClock(NOW_MS), lambda: idle.pop(0), all_read)
    with caplog.at_level(logging.INFO):
        assert [upkeep.round(), upkeep.round()] == [60, 60]
    assert [line for line in caplog.messages if "idle" in line] == ["dropped 7 sensors that were idle for an hour"]


def test_if_upkeep_of_a_table_fails_that_is_logged_and_the_other_tables_get_theirs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_missing(str(tmp_path))
    usage = write_usage(tmp_path, NOW_MS - 3 * HOUR_MS, NOW_MS)
    for file in Path(tmp_path, "dead_letters", "_delta_log").iterdir():
        file.unlink()
    Upkeep(TablesSettings(root=str(tmp_path)), ManualClock(NOW_MS), lambda: 0, all_read).round()
    assert "upkeep of dead_letters failed" in caplog.text
    assert batches(usage) == [1]


@pytest.mark.parametrize(
    ("due_ms", "expected_ms"),
    [(None, 25), (900, 1), (1_000, 1), (1_001, 1), (1_002, 2), (1_024, 24), (1_025, 25), (1_026, 25), (9_000, 25)],
)
def test_a_rest_ends_when_something_is_due_or_after_the_longest_one(due_ms: int | None, expected_ms: int) -> None:
    assert rest_ms(due_ms, 1_000, 25) == expected_ms


STORE = "s3a://bucket/checkpoint"


def settings(root: str, checkpoint: str = STORE, *shared: str) -> Settings:
    return Settings.model_validate(
        {"tables": {"root": root}, "stream": {"checkpoint": checkpoint}, "spark": {"shared_folders": shared}}
    )


@pytest.mark.parametrize("root", [".kquota/tables", "/data/tables", "file:///data/tables", "FILE:///data/tables"])
def test_a_path_is_on_one_node(root: str) -> None:
    assert list(places_on_one_node(settings(root))) == [("tables.root", root)]


@pytest.mark.parametrize("root", ["s3://bucket/tables", "abfss://container@account/tables"])
def test_a_store_is_not(root: str) -> None:
    assert list(places_on_one_node(settings(root))) == []


@pytest.mark.parametrize(
    ("place", "is_shared"),
    [
        ("/mnt/kquota", True),
        ("/mnt/kquota/checkpoint", True),
        ("file:///mnt/kquota/checkpoint", True),
        ("file:/mnt/kquota/check%20point", True),
        ("/mnt/kquota2", False),
        ("/mnt", False),
        ("mnt/kquota", False),
    ],
)
def test_a_folder_that_every_node_mounts_is_shared(place: str, is_shared: bool) -> None:
    found = list(places_on_one_node(settings("s3://bucket/tables", place, "/mnt/kquota")))
    assert found == ([] if is_shared else [("stream.checkpoint", place)])


def test_the_refusal_names_setting_place_and_ways_out() -> None:
    with pytest.raises(UsageError) as refusal:
        refuse_state_on_one_node(settings("tables", "checkpoint"))
    assert refusal.value.exit_code == 2
    assert str(refusal.value) == (
        "'tables.root' tables is on one node's disk, and the cluster chooses the driver's node. Fix: name a store "
        "(s3://…, abfss://…), list the folder in 'spark.shared_folders' if every node mounts it, or submit with "
        "--deploy-mode client"
    )
