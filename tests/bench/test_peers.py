"""Results as peers leave them, and the tables of the comparison: losses are told, and what is wrong has no speed."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.life import CaughtUp, Steady
from bench.peers.messages import MEASURES
from bench.peers.report import markdown
from bench.peers.results import FileResults, Result, Results, UsageTableResults
from bench.probe import Probed

ALICE = (1_000, "alice", "etl")
LOSS = "3 missing, as x"


def write(file: Path, at_ms: int, produced_bytes: int | None, second: str = "second_ms") -> None:
    row = {second: 1_000, "user": "alice", "client_id": "etl", **dict.fromkeys(MEASURES, 1)}
    pq.write_table(pa.Table.from_pylist([row | {"produced_bytes": produced_bytes}]), file)
    os.utime(file, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def test_files_are_read_once_and_added(tmp_path: Path) -> None:
    results = FileResults(tmp_path)
    write(tmp_path / "0.parquet", 5_000, 7)
    results.read()
    write(tmp_path / "1.parquet", 6_000, 8)
    results.read()
    results.read()
    assert results.sums == {ALICE: (15, 2, 2, 2, 2)}
    assert (results.first_ms, results.last_ms) == ({ALICE: 5_000}, {ALICE: 6_000})


def test_rows_of_our_table_count_from_their_commit_on_and_compaction_adds_nothing(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    results = UsageTableResults(tmp_path)
    before = results.progress()
    for number, (produced_bytes, is_data) in enumerate([(7, True), (None, True), (7, False)]):
        write(tmp_path / f"{number}.parquet", 1, produced_bytes, "sample_start_ms")
        commit = log / f"{number:020}.json"
        commit.write_text(
            '{"commitInfo":{}}\n' + json.dumps({"add": {"path": f"{number}.parquet", "dataChange": is_data}})
        )
        os.utime(commit, ns=((5_000 + number) * 1_000_000,) * 2)
    assert results.progress() != before
    results.read()
    assert results.sums == {ALICE: (7, 2, 2, 2, 2)}  # null is no request of that type, and adds nothing
    assert (results.first_ms, results.last_ms) == ({ALICE: 5_000}, {ALICE: 5_001})


class Updates(Results):
    """A peer that gives a new sum for each change."""

    adds = False

    def new(self) -> Iterator[Result]:
        return iter([(1.0, ALICE, (1,)), (2.0, ALICE, (3,))])


def test_the_last_update_of_a_sum_holds() -> None:
    results = Updates()
    results.read()
    assert results.sums == {ALICE: (3,)}
    assert (results.first_ms, results.last_ms) == ({ALICE: 1.0}, {ALICE: 2.0})


def caught(cold: float, warm: float, wrong: str = "") -> CaughtUp:
    return CaughtUp(4.25, 6.0, cold, warm, 812.3, wrong)


def steady(answered: int, wrong: str = "") -> Steady:
    return Steady(100, [float(number) for number in range(1, answered + 1)], 7.04, 900.0, 0.5, wrong)


PROBED = Probed([60.0, 80.0], [50], 300.0, 500.0, 0.7, [0.0, 1.0])


def test_a_lost_comparison_is_told() -> None:
    text = markdown({"catch-up kquota array": caught(1e5, 2e5), "catch-up Kafka Streams array": caught(2e5, 1e5)}, "")
    assert "| kquota | right | 200 | 100 | 4.2 | 6.0 | 812 |" in text
    assert "kquota ÷ Kafka Streams = 2.00 warm, 0.50 cold; the target is 3, warm: **not met**." in text


def test_wrong_sums_have_no_figures_and_no_ratio() -> None:
    runs: dict[str, Any] = {
        "catch-up kquota object": caught(1e5, 2e5),
        "catch-up Kafka Streams object": caught(5e5, 6e5, LOSS),
        "steady Kafka Streams": steady(100, LOSS),
        "probe": PROBED,
    }
    text = markdown(runs, "")
    assert "| Kafka Streams | **wrong** |  |  |  |  |  |" in text
    assert "600" not in text
    assert "÷ Kafka Streams" not in text
    assert f"* catch-up Kafka Streams object: wrong sums: {LOSS}" in text
    assert f"* steady Kafka Streams: wrong sums: {LOSS}" in text


def test_what_could_not_run_says_why() -> None:
    text = markdown({"steady Kafka Streams": "no JDK (javac)\nmore"}, "")
    assert "| Kafka Streams | not measured |" in text
    assert "* steady Kafka Streams: no JDK (javac)" in text
    assert "more" not in text


def test_a_peer_that_falls_behind_has_no_percentiles() -> None:
    text = markdown({"steady kquota": steady(90), "steady Kafka Streams": steady(89), "probe": PROBED}, "")
    assert "| kquota | right | 46 | 89 | 7.0 | 900 | 0.50 |" in text
    assert "| Kafka Streams | right | falls behind: 89 of 100 answered |  | 7.0 | 900 | 0.50 |" in text
    assert "÷ Kafka Streams" not in text


def test_a_record_is_held_against_the_results_of_kafka_streams() -> None:
    text = markdown({"steady Kafka Streams": steady(100), "probe": PROBED}, "")
    assert "after p50 70, p99 80 ms, at 0.70 cores (at most 1: met), with 800 MB." in text
    assert "÷ Kafka Streams = 1.39 p50, 0.81 p99; the target is 1.4: met." in text
    assert "at 1.20 cores (at most 1: **not met**)" in markdown({"probe": replace(PROBED, cores=1.2)}, "")
