"""What every `TableWriter` must do: delta-rs on a disk and in an object store, and the fake in memory."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.errors import Conflict, PipelineError
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.port import Condition, TableWriter
from schemas.arrow import arrow_schema
from schemas.usage import UsageRow
from tests.fakes.table import MemoryTable, MemoryWriter
from tests.object_store import ObjectStore
from tests.pipeline.tables.factories import new_table, usage
from tests.quota.factories import usage_row
from tests.waiting import wait_until

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
    if place != "store":
        return str(tmp_path)
    store: ObjectStore = request.getfixturevalue("store")
    return store.address(f"contract/{tmp_path.parent.name}/{tmp_path.name}")


@pytest.fixture
def uri(root: str) -> str:
    return new_table(root, "usage")


@pytest.fixture
def new_writer(place: str) -> NewWriter:
    """Opens another writer of a table; each call is another driver."""
    if place == "memory":
        table = MemoryTable("usage", arrow_schema(UsageRow).empty_table())
        return lambda _: MemoryWriter(table, "job")
    return lambda uri: DeltaRsWriter(uri, "job")


@pytest.fixture
def writer(new_writer: NewWriter, uri: str) -> TableWriter:
    writer = new_writer(uri)
    writer.raise_epoch(1)
    return writer


def usage_of(*users: str, **columns: Any) -> pa.Table:
    rows = (usage_row(START_MS, user=user, client_id="etl", produced_bytes=5) for user in users)
    return usage(*rows, **({"evaluated_at_ms": START_MS} | columns))


def stored_users(writer: TableWriter) -> list[str]:
    return sorted(writer.read(["user"])["user"].to_pylist())


def test_a_batch_written_again_is_skipped(writer: TableWriter, new_writer: NewWriter, uri: str) -> None:
    assert writer.append(usage_of("alice"), {"q1": 7}, {})
    successor = new_writer(uri)
    successor.raise_epoch(2)
    assert not successor.append(usage_of("alice"), {"q1": 7}, {})
    assert not successor.append(usage_of("alice"), {"q1": 6}, {})
    assert successor.append(usage_of("bob"), {"q1": 8}, {})
    assert successor.read().sort_by("user").to_pylist() == usage_of("alice", "bob").to_pylist()


def test_the_epoch_has_a_commit_without_rows_and_an_append_without_rows_has_none(writer: TableWriter) -> None:
    assert (len(writer.commit_metadata(9)), writer.recorded_version("job"), writer.read().num_rows) == (1, 1, 0)
    assert writer.append(usage_of(), {"q1": 0}, {})
    assert (len(writer.commit_metadata(9)), writer.recorded_version("q1")) == (1, None)


def test_the_first_app_id_guards_the_rows_and_the_versions_of_the_others_must_grow(writer: TableWriter) -> None:
    writer.append(usage_of("alice"), {"q1": 4, "job:publish": 17}, {})
    assert not writer.append(usage_of("alice"), {"q1": 4, "job:publish": 17}, {})
    with pytest.raises(PipelineError, match=r"version 17 of 'job:publish' is not above 17, which .* has recorded"):
        writer.append(usage_of("bob"), {"q1": 5, "job:publish": 17}, {})
    assert writer.append(usage_of("bob"), {"job:publish": 18}, {})
    recorded = [writer.recorded_version(app_id) for app_id in ("q1", "job:publish", "job", "q2")]
    assert recorded == [4, 18, 1, None]


WRITES: list[Callable[[TableWriter, pa.Table], object]] = [
    lambda writer, rows: writer.append(rows, {"q1": 1}, {}),
    lambda writer, rows: writer.replace(rows, {}),
]
each_write = pytest.mark.parametrize("write", WRITES, ids=["append", "replace"])


@each_write
def test_a_lower_epoch_is_fenced(
    write: Callable[..., object], writer: TableWriter, new_writer: NewWriter, uri: str
) -> None:
    writer.append(usage_of("alice"), {"q1": 0}, {})
    for epoch in (0, 1):
        with pytest.raises(Conflict):
            new_writer(uri).raise_epoch(epoch)
    new_writer(uri).raise_epoch(2)
    with pytest.raises(Conflict, match="epoch 2 is recorded, this driver has 1"):
        write(writer, usage_of("bob"))
    assert stored_users(writer) == ["alice"]


@each_write
def test_the_epoch_is_raised_before_any_write(write: Callable[..., object], new_writer: NewWriter, uri: str) -> None:
    with pytest.raises(PipelineError, match="before the driver had raised its epoch"):
        write(new_writer(uri), usage_of("alice"))


def test_a_table_keeps_its_id_until_it_is_made_anew(
    place: str, writer: TableWriter, new_writer: NewWriter, uri: str, root: str
) -> None:
    before = writer.table_id
    writer.append(usage_of("alice"), {"q1": 0}, {})
    assert writer.table_id == new_writer(uri).table_id == before
    assert len(before) >= 32
    if place == "disk":
        shutil.rmtree(uri)
        assert new_writer(new_table(root, "usage")).table_id != before


@pytest.mark.parametrize("users", [("bob", "carol"), ()])
def test_rows_are_replaced_with_their_metadata_in_one_commit(writer: TableWriter, users: tuple[str, ...]) -> None:
    for before in (("alice",), ("dora", "emil")):
        writer.replace(usage_of(*before), {})
    commits = len(writer.commit_metadata(9))
    writer.replace(usage_of(*users), {"as_of_ms": "7"})
    assert (stored_users(writer), len(writer.commit_metadata(9))) == ([*users], commits + 1)
    newest = writer.commit_metadata(1)[0]
    assert (newest["as_of_ms"], json.loads(newest["versions"])) == ("7", {"job": 1})


@on_files
def test_a_replacement_that_another_commit_came_before_is_not_tried_again(
    writer: TableWriter, new_writer: NewWriter, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, write = new_writer(uri), "pipeline.tables.delta_rs.write_deltalake"

    def write_second(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(write, write_deltalake)
        other.raise_epoch(2)
        write_deltalake(*arguments, **options)

    writer.replace(usage_of("alice"), {})
    monkeypatch.setattr(write, write_second)
    with pytest.raises(Conflict, match=r"a commit to .* failed once because other commits came first"):
        writer.replace(usage_of("bob"), {})
    assert stored_users(writer) == ["alice"]


def test_metadata_is_read_back_newest_first(writer: TableWriter) -> None:
    writer.append(usage_of("alice"), {"q1": 0}, {"end_offsets": '{"t": {"0": 5}}'})
    writer.append(usage_of("alice"), {"q1": 1, "job:publish": 3}, {"end_offsets": '{"t": {"0": 9}}'})
    newest, older = writer.commit_metadata(2)
    assert [note["end_offsets"] for note in (newest, older)] == ['{"t": {"0": 9}}', '{"t": {"0": 5}}']
    assert json.loads(newest["versions"]) == {"q1": 1, "job:publish": 3, "job": 1}


def test_only_rows_that_meet_all_conditions_are_read(writer: TableWriter) -> None:
    for batch_id, user in enumerate(["alice", "bob", "carol"]):
        writer.append(usage_of(user, batch_id=batch_id), {"q1": batch_id}, {})
    for conditions, users in (
        ([("batch_id", "=", 1)], ["bob"]),
        ([("batch_id", ">=", 1), ("user", "!=", "bob")], ["carol"]),
        ([("user", "in", ["alice", "bob"])], ["alice", "bob"]),
    ):
        assert sorted(writer.read(["user"], conditions)["user"].to_pylist()) == users


def test_of_each_client_the_last_row_counts_and_only_if_it_meets_the_conditions(writer: TableWriter) -> None:
    for batch_id, users in enumerate([("alice",), ("bob",), ("alice",), ("carol",)]):
        writer.append(usage_of(*users, batch_id=batch_id), {"q1": batch_id}, {})

    def last(*conditions: list[Condition]) -> list[tuple[str, int]]:
        found = writer.last_of_each(["user", "client_id"], "batch_id", *conditions)
        return sorted((row["user"], row["batch_id"]) for row in found.to_pylist())

    assert last() == [("alice", 2), ("bob", 1), ("carol", 3)]
    assert last([("batch_id", "<", 2)]) == [("alice", 0), ("bob", 1)]
    assert last([], [("batch_id", "<", 2)]) == [("bob", 1)]
    assert last([("batch_id", "<", 0)]) == []


def test_the_newest_value_and_the_newest_instant_are_known_without_a_read(writer: TableWriter) -> None:
    assert (writer.newest_value("batch_id"), writer.newest_instant()) == (None, None)
    instants = [(0, 900), (0, 800), (1, 500), (1, 600), (1, 550)]
    newest = [(0, 900), (0, 900), (1, 500), (1, 600), (1, 600)]
    for number, (epoch, at_ms) in enumerate(instants):
        rows = usage_of("alice", batch_id=at_ms, evaluated_at_ms=at_ms, time_epoch=epoch)
        writer.append(rows, {f"q{number}": 0}, {})
        assert (writer.newest_value("batch_id"), writer.newest_instant()) == (900, newest[number])


@on_files
def test_of_two_drivers_the_older_is_fenced_and_no_row_is_lost_or_stored_twice(
    writer: TableWriter, new_writer: NewWriter, uri: str
) -> None:
    stored: list[bool] = []

    def append_until_fenced() -> str:
        try:
            for number in range(2_000):  # far more than it makes until then, however slow the other one is
                stored.append(writer.append(usage_of(f"{number:04}"), {"q1": number}, {}))  # noqa: PERF401
        except Conflict as exc:
            return exc.message
        return ""

    newer = new_writer(uri)
    with ThreadPoolExecutor(1) as pool:
        older = pool.submit(append_until_fenced)
        wait_until(lambda: bool(newer.recorded_version("q1")), "the older one's second append")
        newer.raise_epoch(2)
        start = (newer.recorded_version("q1") or 0) + 1
        for number in range(start, start + 5):
            assert newer.append(usage_of(f"{number:04}"), {"q1": number}, {})
    assert "epoch 2 is recorded" in older.result()
    assert stored == [True] * start
    assert stored_users(newer) == [f"{number:04}" for number in range(start + 5)]
