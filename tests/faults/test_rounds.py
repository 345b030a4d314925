"""Rounds of `python -m tests.faults`, and one with the tables in an object store: real brokers, jobs and kills."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Unreachable
from pipeline.jvm.jars import fetch
from tests.faults.evidence import Evidence
from tests.faults.rig import starts_in
from tests.faults.rounds import STEPS, play, play_apart, play_stored
from tests.faults.stepped_clock import COMPILER, ClockHistory, stepped_clock
from tests.object_store import ObjectStore

JOB = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]
NEEDS_COMPILER = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler: apt-get install gcc libc6-dev")


LOG = [
    "23:59:59.500 INFO throttle.purgatory took up 3 running throttles",
    "00:00:01.000 INFO stream.query batch_id=1",
    "00:00:02.250 INFO throttle.purgatory took up 1 running throttles",
]


def test_the_log_tells_when_running_throttles_were_taken_up_also_around_midnight() -> None:
    now = datetime(2026, 11, 22, 0, 5, tzinfo=UTC).timestamp()
    starts = [datetime.fromtimestamp(start_ms / 1_000, UTC).isoformat() for start_ms in starts_in(LOG, now)]
    assert starts == ["2026-11-21T23:59:59.500000+00:00", "2026-11-22T00:00:02.250000+00:00"]


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler: apt-get install gcc libc6-dev")
def test_a_job_killed_in_a_batch_while_all_clocks_are_set_leaves_what_one_leaves_that_is_not(tmp_path: Path) -> None:
    assert play_apart("usage.appended", tmp_path / "round", 11, False, STEPS[0]).verdict["differences"] == []


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_a_job_whose_check_fails_goes_on_in_its_process(broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert play("check.appended", tmp_path, broker.bootstrap_servers, 11, True).verdict["differences"] == []


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_a_job_with_tables_and_checkpoint_in_a_store_loses_and_repeats_nothing(
    store: ObjectStore, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    try:
        fetch(lambda _: None, "s3")
        is_checkpoint_stored = True
    except Unreachable:  # Spark cannot read S3; the tables can be there all the same
        is_checkpoint_stored = False
    outcome = play_stored(tmp_path, store, broker.bootstrap_servers, 17, is_checkpoint_stored)
    assert outcome.verdict["differences"] == []


HISTORY = ClockHistory(
    steps=[(100_000, 0), (130_000, 20_001), (150_000, 2), (170_000, -3_599_997)], lives=[101_000, 140_000]
)


def test_rows_and_starts_are_put_on_the_first_clock() -> None:
    tables: dict[str, list[dict[str, Any]]] = {
        "batches": [{"processed_at_ms": 160_001}],
        "throttle_events": [
            {"publish_seq": 0, "throttled_until_ms": 121_000, "throttle_time_ms": 1_000, "due_ms": None},
            {"publish_seq": 1, "throttled_until_ms": 161_002, "throttle_time_ms": 1_000, "due_ms": 180_000},
        ],
    }
    told = HISTORY.tell(Evidence("usage", [], [], tables, {}, starts=[110_000, 162_001, 155_002]))
    assert told.tables["batches"][0]["moved_ms"] == 20_001
    assert [row["moved_ms"] for row in told.tables["throttle_events"]] == [0, 2]
    assert [row["due_ms"] for row in told.tables["throttle_events"]] == [None, 159_999]
    assert told.starts == [110_000, 142_000, 155_000]
    assert told.moved == [(0, 0), (20_001, 1), (2, 1)]


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler: apt-get install gcc libc6-dev")
def test_processes_of_its_block_follow_the_clock_and_this_one_does_not(tmp_path: Path) -> None:
    program = "import time; print(time.time_ns() // 1_000_000, int(time.time() * 1_000))"
    shown, wanted = [], []
    with stepped_clock(tmp_path) as clock:
        for seconds in (0, 3_600, -3_620):
            clock.step(seconds)
            wanted.append(clock.steps[-1][1])
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            shown.append([ClockHistory(clock.steps).moved_ms(int(one)) for one in done.stdout.split()])
    assert shown == [[ahead_ms] * 2 for ahead_ms in wanted]
    assert wanted == [1, 3_600_002, -19_997]
