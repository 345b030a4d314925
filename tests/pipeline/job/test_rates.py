"""The table `rates`, as a job without Spark and Kafka replaces it: the engine's own figures; a failure does no harm."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.stream.job_tables import DriverEpoch, JobTables, RatesTable
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.port import TableUnreadable, table_uri
from pipeline.tables.queries import read_table
from pipeline.tables.rates import Rates, read_rates
from quota.current_rates import COLUMNS
from tests.faults.hand_job import HandJob
from tests.pipeline.demo.played import throttle_one


@pytest.fixture
def job(tmp_path: Path) -> HandJob:
    """A client was throttled."""
    job = HandJob(tmp_path, {"producer_byte_rate": 10_000.0})
    job.start()
    throttle_one(job)
    return job


def stored(job: HandJob) -> pa.Table:
    """In a fixed order: a table is read in none."""
    return in_order(read_table(table_uri(job.settings.tables.root, "rates")))


def in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in ("user", "quota_type", "client_id", "own_rate")])


def facts(job: HandJob) -> Any:
    return read_rates(job.settings.tables.root, lambda rates: rates.facts)


def test_what_is_stored_is_what_the_engine_sees_at_the_newest_batch(job: HandJob) -> None:
    seen, found = job.decider.current_rates(job.purgatory.held_until())
    rows = stored(job)
    assert rows.select(COLUMNS.names).to_pylist() == in_order(found.rows).to_pylist() != []
    assert {*rows["as_of_ms"].to_pylist()} == {seen.evaluated_at_ms} == {int(facts(job)["as_of_ms"])}
    assert (int(facts(job)["batch_id"]), facts(job)["active_clients"]) == (seen.batch_id, "1")
    clients = pa.table({"user": ["alice"], "client_id": ["etl"]})
    owed = job.decider._engine.evaluate(clients, seen.evaluated_at_ms).to_pylist()[0]
    assert {(row["observed"], row["bound"]) for row in rows.to_pylist()} == {(owed["observed"], owed["bound"])}
    held = job.purgatory.held_until()["until_ms"].to_pylist()
    assert {row["held_until_ms"] for row in rows.to_pylist()} == {*held}


def test_without_anything_new_nothing_is_replaced_and_without_rows_there_still_is_an_instant(job: HandJob) -> None:
    job.clock.advance(60_000)
    job.purgatory.tick()
    job.rates.step()
    version = DeltaTable(table_uri(job.settings.tables.root, "rates")).version()
    job.rates.step()
    assert DeltaTable(table_uri(job.settings.tables.root, "rates")).version() == version
    job.send(b'{"event_time_ms":%d,"user":"bob","client_id":""}' % job.clock.wall_ms)
    job.step()
    assert stored(job).num_rows == 0
    assert int(facts(job)["as_of_ms"]) == job.decider.last.evaluated_at_ms


def test_a_driver_that_was_fenced_replaces_nothing_and_goes_on(job: HandJob) -> None:
    root, before = job.settings.tables.root, stored(job)
    other = JobTables(lambda name: DeltaRsWriter(table_uri(root, name), "hand"), "hand", "test", 5_000)
    DriverEpoch().raise_in({"rates": other.writers["rates"]}, "hand")
    job.rates._written = None
    assert job.rates.step() > 0
    assert (job.rates.failures, stored(job)) == (1, before)


def test_replaced_files_are_gone_when_they_are_older_than_two_minutes(
    job: HandJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[str] = []
    monkeypatch.setattr("pipeline.stream.job_tables.clean", cleaned.append)
    for after_ms in (59_000, 1_000, 59_999, 1):
        job.clock.advance(after_ms)
        job.rates.step()
    assert cleaned == [table_uri(job.settings.tables.root, "rates")] * 2


@pytest.mark.parametrize(("lost", "is_read"), [(0, True), (2, True), (3, False)])
def test_a_reader_that_loses_a_file_opens_the_table_again_twice(job: HandJob, lost: int, is_read: bool) -> None:
    left, lost_file = [lost], TableUnreadable("rates", "gone", is_file_missing=True)

    def read(rates: Rates) -> int:
        left[0] -= 1
        if left[0] >= 0:
            raise lost_file
        return rates.as_of_ms

    root = job.settings.tables.root
    if is_read:
        assert read_rates(root, read) == job.decider.last.evaluated_at_ms
        return
    with pytest.raises(TableUnreadable):
        read_rates(root, read)


def test_what_it_takes_is_a_twentieth_of_the_time_at_most(job: HandJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(held: pa.Table) -> Any:
        job.clock.advance(500)
        return job.decider.__class__.current_rates(job.decider, held)

    monkeypatch.setattr(job.decider, "current_rates", slow, raising=False)
    job.rates._written = None
    assert job.rates.step() == 9.5
    uri = "s3://lake/rates"
    writer = job.tables.writers["rates"]
    in_store = RatesTable(writer, uri, "test", job.decider, job.purgatory.held_until, job.clock)
    job.clock.advance(1)
    assert in_store.step() == 10.0
