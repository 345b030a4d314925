"""What every `TableWriter` must do: delta-rs on a disk and in an object store, and the fake in memory."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.errors import Conflict, PipelineError, TableMissing
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.opening import open_table
from pipeline.tables.port import Condition, TableUnwritable, TableWriter, table_uri
from schemas.arrow import arrow_schema, conform
from schemas.usage import UsageRow
from tests.fakes.table import MemoryTable, MemoryWriter
from tests.object_store import ObjectStore

START_MS = 1_700_000_000_000
NewWriter = Callable[[str], TableWriter]
PLACES = ("disk", "store")
on_files = pytest.mark.parametrize("place", PLACES, indirect=True)


@pytest.fixture(params=["memory", *PLACES])
def place(request: pytest.FixtureRequest) -> str:
    """Where the table is: in the fake in memory, on a disk, or in an object store."""
    found: str = request.param
    return found


@pytest.fixture
def root(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    root = str(tmp_path)
    if place == "store":
        store: ObjectStore = request.getfixturevalue("store")
        root = store.address(f"contract/{tmp_path.parent.name}/{tmp_path.name}")
    create_missing(root, [TABLES["usage"]])
    return root


@pytest.fixture
def new_writer(place: str) -> NewWriter:
    """Opens another writer of a table; each call is another driver."""
    if place == "memory":
        table = MemoryTable("usage", arrow_schema(UsageRow).empty_table())
        return lambda _: MemoryWriter(table, "job")
    return lambda uri: DeltaRsWriter(uri, "job")


@pytest.fixture
def uri(root: str) -> str:
    return table_uri(root, "usage")


@pytest.fixture
def writer(new_writer: NewWriter, uri: str) -> TableWriter:
    writer = new_writer(uri)
    writer.raise_epoch(1)
    return writer


def usage(*users: str, batch_id: int = 0) -> pa.Table:
    rows = pa.table(
        {
            "sample_start_ms": [START_MS] * len(users),
            "broker_id": [""] * len(users),
            "user": pa.array(users, pa.string()),
            "client_id": ["etl"] * len(users),
            "produced_bytes": [5] * len(users),
            "request_count": [1] * len(users),
            "last_event_ms": [START_MS + 5] * len(users),
        }
    )
    return conform(
        rows,
        UsageRow,
        cluster="c1",
        query_id="q1",
        batch_id=batch_id,
        evaluated_at_ms=START_MS + 1000,
        quota_version=3,
    )


def stored_users(writer: TableWriter) -> list[str]:
    return sorted(writer.read(["user"])["user"].to_pylist())


def test_appended_rows_are_read_back_as_they_were(writer: TableWriter) -> None:
    rows = usage("alice", "bob")
    assert writer.append(rows, {"q1": 0}, {})
    assert writer.read().select(rows.column_names).cast(rows.schema).sort_by("user") == rows


def test_a_batch_written_again_by_the_next_driver_is_skipped(
    writer: TableWriter, new_writer: NewWriter, uri: str
) -> None:
    assert writer.append(usage("alice"), {"q1": 7}, {})
    successor = new_writer(uri)
    successor.raise_epoch(2)
    assert not successor.append(usage("alice"), {"q1": 7}, {})
    assert not successor.append(usage("alice"), {"q1": 6}, {})
    assert successor.append(usage("bob"), {"q1": 8}, {})
    assert stored_users(successor) == ["alice", "bob"]


def test_an_append_without_rows_makes_no_commit(writer: TableWriter) -> None:
    before = writer.commit_metadata(9)
    assert writer.append(usage(), {"q1": 0}, {})
    assert (writer.commit_metadata(9), writer.recorded_version("q1")) == (before, None)


def test_all_versions_of_a_commit_and_the_epoch_are_recorded(writer: TableWriter) -> None:
    writer.append(usage("alice"), {"q1": 4, "job:publish": 17}, {})
    recorded = [writer.recorded_version(app_id) for app_id in ("q1", "job:publish", "job", "q2")]
    assert recorded == [4, 17, 1, None]


def test_the_first_app_id_guards_the_rows_and_the_versions_of_the_others_must_grow(writer: TableWriter) -> None:
    writer.append(usage("alice"), {"q1": 4, "job:publish": 17}, {})
    assert not writer.append(usage("alice"), {"q1": 4, "job:publish": 17}, {})
    with pytest.raises(PipelineError, match=r"version 17 of 'job:publish' is not above 17, which .* has recorded"):
        writer.append(usage("bob"), {"q1": 5, "job:publish": 17}, {})
    assert writer.append(usage("bob"), {"job:publish": 18}, {})
    assert (writer.recorded_version("q1"), writer.recorded_version("job:publish")) == (4, 18)


def test_a_driver_with_a_lower_epoch_is_fenced(writer: TableWriter, new_writer: NewWriter, uri: str) -> None:
    writer.append(usage("alice"), {"q1": 0}, {})
    new_writer(uri).raise_epoch(2)
    with pytest.raises(Conflict, match="epoch 2 is recorded, this driver has 1"):
        writer.append(usage("bob"), {"q1": 1}, {})
    assert stored_users(writer) == ["alice"]


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_that_is_not_above_the_recorded_one_is_refused(
    writer: TableWriter, new_writer: NewWriter, uri: str, epoch: int
) -> None:
    with pytest.raises(Conflict):
        new_writer(uri).raise_epoch(epoch)


def test_the_id_of_a_table_stays(writer: TableWriter, new_writer: NewWriter, uri: str) -> None:
    before = writer.table_id
    writer.append(usage("alice"), {"q1": 0}, {})
    assert writer.table_id == new_writer(uri).table_id == before
    assert len(before) >= 32


@pytest.mark.parametrize("place", ["disk"], indirect=True)
def test_a_table_that_was_made_anew_has_another_id(root: str, new_writer: NewWriter, uri: str) -> None:
    before = new_writer(uri).table_id
    shutil.rmtree(uri)
    create_missing(root, [TABLES["usage"]])
    assert new_writer(uri).table_id != before


@pytest.mark.parametrize("users", [("bob", "carol"), ()])
def test_rows_are_replaced_with_their_metadata_in_one_commit(writer: TableWriter, users: tuple[str, ...]) -> None:
    for before in (("alice",), ("dora", "emil")):
        writer.replace(usage(*before), {})
    commits = len(writer.commit_metadata(9))
    writer.replace(usage(*users), {"as_of_ms": "7"})
    assert (stored_users(writer), len(writer.commit_metadata(9))) == ([*users], commits + 1)
    newest = writer.commit_metadata(1)[0]
    assert (newest["as_of_ms"], json.loads(newest["versions"])) == ("7", {"job": 1})


def test_a_driver_that_is_fenced_replaces_nothing(writer: TableWriter, new_writer: NewWriter, uri: str) -> None:
    writer.replace(usage("alice"), {})
    new_writer(uri).raise_epoch(2)
    with pytest.raises(Conflict, match="epoch 2 is recorded, this driver has 1"):
        writer.replace(usage("bob"), {})
    assert stored_users(writer) == ["alice"]


def test_nothing_is_replaced_before_the_epoch_is_raised(new_writer: NewWriter, uri: str) -> None:
    with pytest.raises(PipelineError, match="before the driver had raised its epoch"):
        new_writer(uri).replace(usage("alice"), {})


@on_files
def test_a_replacement_that_another_commit_came_before_is_not_tried_again(
    writer: TableWriter, new_writer: NewWriter, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, write = new_writer(uri), "pipeline.tables.delta_rs.write_deltalake"

    def write_second(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(write, write_deltalake)
        other.raise_epoch(2)
        write_deltalake(*arguments, **options)

    writer.replace(usage("alice"), {})
    monkeypatch.setattr(write, write_second)
    with pytest.raises(Conflict, match=r"a commit to .* failed once because other commits came first"):
        writer.replace(usage("bob"), {})
    assert stored_users(writer) == ["alice"]


def test_the_epoch_is_raised_by_a_commit_without_rows(writer: TableWriter) -> None:
    assert (len(writer.commit_metadata(9)), writer.recorded_version("job"), writer.read().num_rows) == (1, 1, 0)


def test_an_append_before_the_epoch_is_refused(new_writer: NewWriter, uri: str) -> None:
    with pytest.raises(PipelineError):
        new_writer(uri).append(usage("alice"), {"q1": 0}, {})


@on_files
def test_maintenance_may_commit_between_two_appends(writer: TableWriter, uri: str) -> None:
    writer.append(usage("alice"), {"q1": 0}, {})
    writer.append(usage("bob"), {"q1": 1}, {})
    open_table(uri).optimize.compact()
    assert writer.append(usage("carol"), {"q1": 2}, {})
    assert stored_users(writer) == ["alice", "bob", "carol"]


def test_metadata_is_read_back_newest_first(writer: TableWriter) -> None:
    writer.append(usage("alice"), {"q1": 0}, {"end_offsets": '{"t": {"0": 5}}'})
    writer.append(usage("alice"), {"q1": 1, "job:publish": 3}, {"end_offsets": '{"t": {"0": 9}}'})
    newest, older = writer.commit_metadata(2)
    assert [note["end_offsets"] for note in (newest, older)] == ['{"t": {"0": 9}}', '{"t": {"0": 5}}']
    assert json.loads(newest["versions"]) == {"q1": 1, "job:publish": 3, "job": 1}


def test_only_rows_that_meet_all_conditions_are_read(writer: TableWriter) -> None:
    for batch_id, user in enumerate(["alice", "bob", "carol"]):
        writer.append(usage(user, batch_id=batch_id), {"q1": batch_id}, {})
    assert writer.read(["user"], [("batch_id", "=", 1)])["user"].to_pylist() == ["bob"]
    assert writer.read(["user"], [("batch_id", ">=", 1), ("user", "!=", "bob")])["user"].to_pylist() == ["carol"]
    assert sorted(writer.read(["user"], [("user", "in", ["alice", "bob"])])["user"].to_pylist()) == ["alice", "bob"]


def test_of_each_client_the_last_row_counts_and_only_if_it_meets_the_conditions(writer: TableWriter) -> None:
    for batch_id, users in enumerate([("alice",), ("bob",), ("alice",), ("carol",)]):
        writer.append(usage(*users, batch_id=batch_id), {"q1": batch_id}, {})

    def last(*conditions: list[Condition]) -> list[tuple[str, int]]:
        found = writer.last_of_each(["user", "client_id"], "batch_id", *conditions)
        return sorted((row["user"], row["batch_id"]) for row in found.to_pylist())

    assert last() == [("alice", 2), ("bob", 1), ("carol", 3)]
    assert last([("batch_id", "<", 2)]) == [("alice", 0), ("bob", 1)]
    assert last([], [("batch_id", "<", 2)]) == [("bob", 1)]
    assert last([("batch_id", "<", 0)]) == []


def test_the_newest_value_of_a_column_is_known_without_a_read(writer: TableWriter) -> None:
    assert writer.newest_value("batch_id") is None
    for batch_id in (3, 4, 2):
        writer.append(usage("alice", batch_id=batch_id), {f"q{batch_id}": 0}, {})
    assert writer.newest_value("batch_id") == 4


def test_the_newest_instant_is_of_the_newest_time_epoch(writer: TableWriter) -> None:
    assert writer.newest_instant() is None
    for number, (epoch, at_ms) in enumerate([(0, 900), (0, 800), (1, 500), (1, 600), (1, 550)]):
        rows = conform(usage("alice"), UsageRow, evaluated_at_ms=at_ms, time_epoch=epoch)
        writer.append(rows, {f"q{number}": 0}, {})
        assert writer.newest_instant() == ((0, 900) if number < 2 else (1, 500 if number == 2 else 600))


@on_files
def test_a_missing_table_is_named(new_writer: NewWriter, root: str) -> None:
    with pytest.raises(TableMissing, match=r"no Delta table at .*nowhere"):
        new_writer(table_uri(root, "nowhere"))


@on_files
def test_drivers_that_commit_at_the_same_time_overwrite_nothing(new_writer: NewWriter, uri: str) -> None:
    writers = {"first": new_writer(uri), "second": DeltaRsWriter(uri, "maintenance")}
    for writer in writers.values():
        writer.raise_epoch(1)
    stored: dict[str, int] = dict.fromkeys(writers, 0)
    first_is_done = Event()

    def append(name: str, least: int) -> None:
        number = 0
        while number < least or (name == "second" and not first_is_done.is_set()):
            with suppress(Conflict, TableUnwritable):
                stored[name] += writers[name].append(usage(f"{name}-{number}"), {name: number}, {})
            number += 1

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(append, "second", 1)
        try:
            append("first", 20)
        finally:
            first_is_done.set()
        beside.result()
    users = stored_users(writers["second"])
    assert {name: sum(user.startswith(name) for user in users) for name in writers} == stored
    assert len(set(users)) == len(users)
    assert stored["first"] > 0
