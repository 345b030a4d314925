"""Results as peers leave them: in files, and in our table."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.messages import MEASURES
from bench.peers.results import Book, FileResults, Result, Results, UsageTableResults
from bench.peers.stages import Store

ALICE = (1_000, "alice", "etl")


def write(file: Path, at_ms: int, produced_bytes: int | None, second: str = "second_ms") -> None:
    row = {second: 1_000, "user": "alice", "client_id": "etl", **dict.fromkeys(MEASURES, 1)}
    pq.write_table(pa.Table.from_pylist([row | {"produced_bytes": produced_bytes}]), file)
    os.utime(file, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def test_files_are_read_once_and_added(tmp_path: Path) -> None:
    book = Book(FileResults(tmp_path))
    write(tmp_path / "0.parquet", 5_000, 7)
    book.read()
    write(tmp_path / "1.parquet", 6_000, 8)
    book.read()
    book.read()
    assert book.sums == {ALICE: (15, 2, 2, 2, 2)}
    assert (book.first_ms, book.last_ms) == ({ALICE: 5_000}, {ALICE: 6_000})


def test_rows_of_our_table_count_from_their_commit_on_and_compaction_adds_nothing(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    table = UsageTableResults(tmp_path)
    before = table.progress()
    for number, (produced_bytes, is_data) in enumerate([(7, True), (None, True), (7, False)]):
        write(tmp_path / f"{number}.parquet", 1, produced_bytes, "sample_start_ms")
        commit = log / f"{number:020}.json"
        commit.write_text(
            '{"commitInfo":{}}\n' + json.dumps({"add": {"path": f"{number}.parquet", "dataChange": is_data}})
        )
        os.utime(commit, ns=((5_000 + number) * 1_000_000,) * 2)
    assert table.progress() != before
    book = Book(table)
    book.read()
    assert book.sums == {ALICE: (7, 2, 2, 2, 2)}  # null is no request of that type, and adds nothing
    assert (book.first_ms, book.last_ms) == ({ALICE: 5_000}, {ALICE: 5_001})


class Updates(Results):
    """A peer that gives a new sum for each change."""

    adds = False

    def read(self) -> Iterator[Result]:
        return iter([Result(1.0, ALICE, (1,)), Result(2.0, ALICE, (3,))])


def test_the_last_update_of_a_sum_holds() -> None:
    book = Book(Updates())
    book.read()
    assert book.sums == {ALICE: (3,)}
    assert (book.first_ms, book.last_ms) == ({ALICE: 1.0}, {ALICE: 2.0})


def test_what_was_measured_is_known_for_the_same_commit_and_amounts_only(tmp_path: Path) -> None:
    store = Store(tmp_path, "abc")
    assert store.known("steady Flink SQL", {"clients": 5}) is None
    assert store.keep("steady Flink SQL", {"clients": 5}, {"verdict": "right"}) == {"verdict": "right"}
    assert store.known("steady Flink SQL", {"clients": 5}) == {"verdict": "right"}
    assert store.known("steady Flink SQL", {"clients": 6}) is None
    assert Store(tmp_path, "def").known("steady Flink SQL", {"clients": 5}) is None
