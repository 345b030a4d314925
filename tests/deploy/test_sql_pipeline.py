"""The views of batches, dead letters, edits and freshness, against plain Python over the raw rows."""

from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.stream.job_tables import WRITTEN_BY_THE_JOB
from pipeline.tables.quotas.history import versions
from schemas.throttle_record import written_ms
from tests.deploy.conftest import registered
from tests.deploy.raw_rows import set_of
from tests.deploy.written_tables import Written
from tests.pipeline.dashboard.stepped_tables import STEPS_MS, SteppedTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_dead_letters_are_counted_by_the_cause_that_the_jobs_reading_found(written: Written) -> None:
    expected = Counter(row["cause"] for row in written.rows("dead_letters"))
    rows = written.view("dead_letters_by_cause")
    assert {row["cause"]: row["letters"] for row in rows} == expected
    assert len(expected) >= 2
    assert sum(expected.values()) == 3
    assert any("is no text" in row["newest_value"] for row in rows)
    for row in rows:
        raw = [one for one in written.rows("dead_letters") if one["cause"] == row["cause"]]
        assert row["newest_at_ms"] == max(one["appended_at_ms"] for one in raw)
        newest = [one for one in raw if one["appended_at_ms"] == row["newest_at_ms"]]
        assert row["newest_place"] in {f"{one['topic']}:{one['partition']}:{one['offset']}" for one in newest}


def test_batches_tell_their_messages_their_age_and_when_their_records_were_stored(written: Written) -> None:
    rows = sorted(written.view("batch_facts"), key=lambda row: int(row["batch_id"]))
    assert len(rows) == len(written.rows("batches"))
    assert sum(row["messages"] or 0 for row in rows[1:]) == len(written.tables.job.messages) - 1
    assert {row["since_last_ms"] for row in rows[1:10]} == {5_000}
    stored: dict[int, list[int]] = defaultdict(list)
    for row in written.rows("throttle_events"):
        if row["due_ms"] is None and row["cause"] == "violation":
            stored[row["batch_id"]].append(written_ms(row))
    with_records = {row["batch_id"]: row for row in rows if row["records"]}
    assert {batch_id: row["records"] for batch_id, row in with_records.items()} == {
        batch_id: len(at_ms) for batch_id, at_ms in stored.items()
    }
    for batch_id, row in with_records.items():
        since_ms = [at_ms - row["processed_at_ms"] for at_ms in stored[batch_id]]
        found = row["collected_to_first_record_ms"], row["collected_to_last_record_ms"]
        assert found == (min(since_ms), max(since_ms))
    assert all(row["age_ms"] == row["processed_at_ms"] - row["evaluated_at_ms"] for row in rows)


def test_edits_are_those_of_the_history_of_the_command_line(written: Written) -> None:
    rows = written.view("quota_edits")
    expected = {
        (version.commit.version, change.user, change.client_id)
        for version in versions(written.tables.job.quota_table, 100)
        for change in version.changes
    }
    assert set_of(rows, ("version", "user", "client_id")) == expected
    (raised,) = (row for row in rows if row["reason"] == "month end")
    assert (raised["actor"], raised["change"]) == ("ada", "changed")
    assert (raised["producer_byte_rate_before"], raised["producer_byte_rate"]) == (100_000.0, 250_000.0)
    assert {row["change"] for row in rows} == {"added", "changed", "removed"}


def test_versions_and_freshness_are_those_of_the_tables(written: Written) -> None:
    batches = written.rows("batches")
    decided = Counter(row["quota_version"] for row in batches)
    assert {row["quota_version"]: row["batches"] for row in written.view("quota_versions")} == decided
    for row in written.view("quota_versions"):
        at_ms = [one["evaluated_at_ms"] for one in batches if one["quota_version"] == row["quota_version"]]
        assert (row["first_evaluated_at_ms"], row["last_evaluated_at_ms"]) == (min(at_ms), max(at_ms))
    fresh = {row["table_name"]: row for row in written.view("freshness")}
    assert fresh.keys() == set(WRITTEN_BY_THE_JOB)
    for name, row in fresh.items():
        of_row = written_ms if name == "throttle_events" else itemgetter(row["measured_by"])
        assert row["newest_ms"] == max(map(of_row, written.rows(name))), name
    assert fresh["batches"]["age_seconds"] < fresh["usage_by_minute"]["age_seconds"]


def test_after_a_clock_was_set_back_the_newest_is_what_came_since(spark: "SparkSession", tmp_path: Path) -> None:
    tables = SteppedTables(tmp_path, STEPS_MS[0])
    tables.live(12)
    with registered(spark, "kquota_stepped", tables.root, {"freshness", "batch_facts", "quota_versions"}):
        fresh = {row["table_name"]: row["newest_ms"] for row in spark.sql("TABLE kquota_stepped.freshness").collect()}
        facts = spark.sql("TABLE kquota_stepped.batch_facts").collect()
        (version,) = spark.sql("SELECT * FROM kquota_stepped.quota_versions").collect()
    newest_ms = tables.alone.now_ms - 1_000
    assert (fresh["batches"], fresh["usage"]) == (tables.now_ms, newest_ms)
    assert fresh["throttle_events"] <= tables.now_ms
    assert sorted({row["time_epoch"] for row in facts}) == [0, 1]
    assert all(row["since_last_ms"] is None or row["since_last_ms"] >= 0 for row in facts)
    assert (version["last_evaluated_at_ms"], version["batches"]) == (newest_ms, 42)
